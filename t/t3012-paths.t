#!/bin/sh

test_description='checkpoints are found at whatever level the user points to'

. "$SHARNESS_SH"

step='step-00000100'

# same PATH: what is there is what "four" is.
same() {
	fsdp-ls "$1" >have && sed 1d have >have.rest && test_cmp want.rest have.rest
}

test_expect_success 'make a checkpoint' '
	ckpt_make four && fsdp-ls four >want && sed 1d want >want.rest
'

test_expect_success 'files that only say where the data lies' '
	for name in $step/manifest.json $step/index.h5 $step/shard-00002.h5 latest; do
		same four/$name && grep "^four/$step: hdf5, step 100" have || return 1
	done &&
	(cd four/$step && fsdp-ls index.h5) >have && grep "^\.: hdf5" have
'

test_expect_success 'a directory above it' '
	mkdir -p run/logs run/out && cp -r four run/out/ckpts && touch run/logs/x run/y &&
	same run && grep "^run/out/ckpts/$step: hdf5" have &&
	fsdp-verify run >out && grep "^good: 89 tensors" out &&
	fsdp-diff run four && fsdp-reshard -w 2 run/out two && fsdp-diff run two
'

test_expect_success 'several below it: one has to be named' '
	cp -r two run/two && expect_code 65 fsdp-ls run 2>err &&
	grep "^fsdp-ls: run: holds 2 checkpoints: name one of them" err
'

test_expect_success 'a manifest.json of someone else is none' '
	mkdir foreign && echo "{\"format\": \"x\"}" >foreign/manifest.json &&
	expect_code 65 fsdp-ls foreign 2>err && grep "no checkpoint that can be read" err &&
	fsdp-consolidate four foreign/model.safetensors &&
	fsdp-ls foreign >out && grep "^foreign: safetensors" out
'

test_expect_success 'distributed checkpoints of PyTorch: one of their files' '
	fsdp-convert --to dcp -w 2 four dcp && same_list() {
		fsdp-ls dcp | sed 1d >a && fsdp-ls "$1" | sed 1d >b && test_cmp a b
	} && same_list dcp/.metadata && same_list dcp/__1_0.distcp
'

test_expect_success SAMPLES 'the files by which other tools name the newest' '
	n=0 && for file in $(find "$FSDP_SAMPLES/checkpoints" -name "latest*"); do
		fsdp-ls "$file" >a && fsdp-ls "$(dirname "$file")" >b && test_cmp b a || return 1
		n=$((n + 1))
	done && test $n -gt 1
'

test_expect_success SAMPLES 'the directory above each sample' '
	n=0 && for sample in "$FSDP_SAMPLES"/checkpoints/*/; do
		fsdp-ls -q "$sample/ckpt" 2>/dev/null || continue
		fsdp-ls "$sample/ckpt" | sed 1d >a && fsdp-ls "$sample" | sed 1d >b &&
		test_cmp a b || return 1
		n=$((n + 1))
	done && test $n -gt 50
'

test_expect_success 'a dry run says what it would do, and whether it fits' '
	fsdp-convert -n --to safetensors four x.safetensors >out &&
	grep "would be safetensors, from hdf5" out &&
	grep "^[0-9]* tensors, .* bytes) in 1 file$" out &&
	grep "bytes) to read in [0-9]* copies$" out &&
	grep "^[0-9.]* .iB needed, .* free there$" out && test ! -e x.safetensors &&
	fsdp-convert -n --json --to safetensors four x.safetensors >out &&
	grep "\"bytes_needed\": [1-9]" out
'

test_expect_success 'safetensors beside a PyTorch checkpoint do not hide it' '
	fsdp-convert --to dcp four beside &&
	fsdp-convert --only model four beside/model.safetensors &&
	fsdp-ls beside >out && grep "^beside: dcp$" out && grep "^optim/" out &&
	fsdp-ls beside/model.safetensors >out && grep ": safetensors$" out
'

test_done
