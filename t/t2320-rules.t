#!/bin/sh

test_description='rules: names and shapes of other programs, and back'

. "$SHARNESS_SH"

hf="$FSDP_SAMPLES/checkpoints/hf-gpt2-sharded-a/ckpt"
llama="$FSDP_SAMPLES/checkpoints/hf-llama-tied-bf16-a/ckpt"

# by_rules TEXT SOURCE TARGET [OPTION]...: convert by rules that are given.
by_rules() {
	printf '%b' "$1" >rules.txt && rm -rf "$3" &&
		source=$2 target=$3 && shift 3 &&
		fsdp-convert --rules ./rules.txt "$@" "$source" "$target" >out
}

# holds FILE TENSOR SHAPE NUMBER...: it is so.
holds() {
	fsdp-ls --values="$2" "$1" >values.out &&
		head -n 1 values.out | grep -F " $3," &&
		shift 3 && sed 1d values.out | tr -s ' \n' '\n\n' | sed '/^$/d' \
		>numbers && printf '%s\n' "$@" | test_cmp - numbers
}

# refused TEXT RULES [OPTION]...: with a message that holds TEXT.
refused() {
	printf '%b' "$2" >rules.txt && text=$1 && shift 2 &&
		expect_code 2 fsdp-convert --rules ./rules.txt "$@" small.h5 no \
			2>err && grep -F -e "$text" err && test ! -e no
}

test_expect_success 'make checkpoints' '
	ckpt_make four && ckpt_make --strategy hybrid:2 --vocab 300 other &&
	printf "%s" "{" \
		"\"a\":{\"dtype\":\"U8\",\"shape\":[2,3],\"data_offsets\":[0,6]}," \
		"\"b\":{\"dtype\":\"U8\",\"shape\":[1,3],\"data_offsets\":[6,9]}," \
		"\"h.0.w\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[9,11]}," \
		"\"h.1.w\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[11,13]}," \
		"\"copy\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[13,15]}," \
		"\"s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[15,16]}}" >head &&
	safetensors small.safetensors "$(cat head)" \
		"\1\2\3\4\5\6\7\10\11\12\13\14\15\12\13\16" &&
	fsdp-convert --to hdf5-file small.safetensors small.h5 >out
'

test_expect_success 'transposed, renamed' '
	by_rules "a\0047 = t\n# a comment\n\nb = c # and one more\n" small.h5 1.h5 &&
	holds 1.h5 t "[3, 2]" 1 4 2 5 3 6 &&
	holds 1.h5 c "[1, 3]" 7 8 9 &&
	holds 1.h5 s "[]" 14 &&
	by_rules "t\0047 = a\nc = b\n" 1.h5 2.h5 && fsdp-diff small.h5 2.h5
'

test_expect_success 'joined, padded, and the other way round' '
	by_rules "a:2 + b:1 + pad:4 = whole\n" small.h5 1.h5 &&
	grep "whole: 1 rows of zeros are added to the 3 of a" out &&
	holds 1.h5 whole "[4, 3]" 1 2 3 4 5 6 7 8 9 0 0 0 &&
	rm 2.h5 && fsdp-convert --rules reverse:./rules.txt 1.h5 2.h5 >out &&
	grep "whole: the last 1 of its 4 rows are padding and left out" out &&
	fsdp-diff small.h5 2.h5 &&
	fsdp-convert --json --rules reverse:./rules.txt 1.h5 3.h5 >out &&
	grep "\"whole: the last 1" out
'

test_expect_success 'joined and transposed' '
	by_rules "a + b = whole\0047\n" small.h5 1.h5 &&
	holds 1.h5 whole "[3, 3]" 1 4 7 2 5 8 3 6 9 &&
	by_rules "whole\0047 = a:rows + b:1\n" 1.h5 2.h5 --set rows=2 &&
	fsdp-diff small.h5 2.h5
'

test_expect_success 'stacked, and unstacked' '
	by_rules "h.{i}.w = w[i]\n" small.h5 1.h5 &&
	holds 1.h5 w "[2, 2]" 10 11 12 13 &&
	rm 2.h5 && fsdp-convert --rules reverse:./rules.txt 1.h5 2.h5 &&
	fsdp-diff small.h5 2.h5
'

test_expect_success 'prefixes, what is dropped, what need not be there' '
	by_rules "strip h.\nkind {n}.* = *.{n}\nw = x\n? no = thing\ndrop s\n" \
		small.h5 1.h5 &&
	grep "^s: is left out" out &&
	holds 1.h5 x.0 "[2]" 10 11 && holds 1.h5 x.1 "[2]" 12 13 &&
	test_must_fail fsdp-ls 1.h5 s
'

test_expect_success 'a tied copy is left out, another tensor is not' '
	by_rules "tied copy = h.0.w\na = b2\n" small.h5 1.h5 &&
	test_must_fail fsdp-ls 1.h5 copy &&
	rm 2.h5 && fsdp-convert --rules reverse:./rules.txt 1.h5 2.h5 &&
	fsdp-ls 2.h5 >list && grep "copy is tied to h.0.w" list &&
	refused "copy is not tied to h.1.w" "tied copy = h.1.w\na = b2\n"
'

test_expect_success 'characters that mean something, after a backslash' '
	by_rules "{x} = \\\\{\\\\[\\\\:.{x}\n" small.h5 1.h5 &&
	fsdp-ls 1.h5 "{?:.a"
'

test_expect_success 'what does not fit is told with its line' '
	refused "line 2: fits no tensor of small.h5" "a = b2\nnone = other\n" &&
	refused "line 1: there is tensor a, but not z" "a + z = c\n" &&
	refused "but not the first one that it belongs" "? z + a = c\n" &&
	refused "tensor s has no rows" "a + s = c\n" &&
	refused "tensors a and copy cannot be joined" "a + copy = c\n" &&
	refused "too few dimensions to be transposed" "s\0047 = c\n" &&
	refused "no first dimension of at most 65536" "s[i] = c.{i}\n" &&
	refused "cannot be divided" "a = x + y + z\n" &&
	refused "give it with --set much=N" "a = x:much + y:1\n" &&
	refused "was made already" "a = c\nb = c\n" &&
	refused "tensor a is used by line 1 already" "a + a = c\n" &&
	refused "tensor b is used by line 1 already" "b = d\na + b = c\n" &&
	refused "not b, which belongs to it" "drop b\na + b = c\n" &&
	refused "would both be named copy" "a = copy\n" &&
	refused "tensor w: number 0 of 2 is missing" "strip h.0.\nh.{i}.w = w[i]\n"
'

test_expect_success 'a line that is no rule is told' '
	for line in "a" "a =" "= a" "a b = c" "a + b = c + d" "{i = b" "a[i = b" \
		"a{i} = b" "a = b{i}" "a* = b" "a** = b**" "a\0047\0047 = b" "a:3 = b" \
		"pad:3 = b" "a + pad:0 = b" "pad:2 + a = b" "a = b c" "kind a = b" \
		"tied a" "drop" "strip" "drop a b" "a{i}[i] = b{i}"; do
		refused "line 1: " "$line\n" || return 1
	done &&
	refused "holds no rule" "# nothing\n" &&
	expect_code 2 fsdp-convert --rules gpt3 small.h5 no 2>err &&
	grep "neither a set of rules nor a file" err &&
	expect_code 64 fsdp-convert --rules list:gpt3 2>err
'

test_expect_success 'the sets are listed, and each can be read and reversed' '
	fsdp-convert --rules list >sets && grep "^gpt2-llmc  *GPT-2" sets &&
	while read -r set rest; do
		fsdp-convert --rules "list:$set" >set.txt && test -s set.txt ||
			return 1
		for how in "" reverse:; do
			fsdp-convert -n --rules "./set.txt" small.h5 x 2>err ||
			grep "fits no tensor" err || return 1
		done
	done <sets
'

for source in four other; do
	test_expect_success "$source: to llm.c and back, optimizer and all" '
		fsdp-convert --rules gpt2-llmc '$source' '$source'.h5 >out &&
		fsdp-ls '$source'.h5 "v.qkvw" >list && grep "\[2, 192, 64\]" list &&
		fsdp-reshard -w 3 --set vocab_size=$(test '$source' = four &&
			echo 8192 || echo 300) --rules reverse:gpt2-llmc '$source'.h5 \
			'$source'-back >out &&
		fsdp-diff '$source' '$source'-back && fsdp-verify '$source'-back
	'
done

test_expect_success 'the optimizer goes with --only-model' '
	fsdp-convert --only-model --rules gpt2-llmc four only.h5 >out &&
	test_must_fail fsdp-ls only.h5 "m.*" && fsdp-ls only.h5 params.wte
'

test_expect_success 'names of PyTorch, and back' '
	fsdp-convert --to dcp -w 3 --rules torch four torch >out &&
	fsdp-ls torch optim.state.transformer.wte.weight.exp_avg_sq &&
	fsdp-convert --rules reverse:torch torch four-again >out &&
	fsdp-diff four four-again
'

test_expect_success 'one after the other, across formats' '
	fsdp-convert --to dcp -w 3 --rules gpt2-linear --rules torch four dcp >out &&
	fsdp-ls dcp model.transformer.h.1.attn.k_proj.weight &&
	fsdp-convert --to dcp -w 2 --rules reverse:torch \
		--rules reverse:gpt2-linear dcp dcp-again >out &&
	fsdp-diff four dcp-again
'

test_expect_success 'compared through rules, which keep an eye on checksums' '
	fsdp-diff --rules gpt2-linear --rules torch four dcp &&
	test_must_fail fsdp-diff --rules gpt2-linear four dcp >out &&
	expect_code 0 fsdp-diff --rules gpt2-llmc four four.h5 &&
	expect_code 0 fsdp-diff --rules reverse:gpt2-llmc \
		--set vocab_size=8192 four.h5 four &&
	cp -r four bad && ckpt_pieces bad model/transformer.h.1.attn.c_attn.bias \
		>pieces && read -r _ _ file at <pieces &&
	flip "$(find bad -name "$(basename "$file")")" $((at + 99)) &&
	expect_code 2 fsdp-diff --rules gpt2-linear --rules torch bad dcp 2>err &&
	grep checksum err && expect_code 2 fsdp-diff --rules none four dcp
'

# damaged SOURCE RULES TENSOR: an altered byte of it is found.
damaged() {
	rm -rf bad no.h5 && cp -r "$1" bad &&
		ckpt_pieces bad "$3" >pieces && read -r _ _ file at <pieces &&
		flip "$(find bad -name "$(basename "$file")")" $((at + 99)) &&
		test_must_fail fsdp-convert --to hdf5-file --rules "$2" bad no.h5 2>err &&
		cat err && grep -E "checksum|CRC-32" err && test ! -e no.h5
}

test_expect_success 'altered bytes are found, also where they are moved' '
	for t in wte.weight h.1.ln_1.weight h.0.attn.c_attn.weight; do
		damaged four gpt2-llmc model/transformer.$t || return 1
	done &&
	printf "%b" "kind optim.state.transformer.*.{of} = {of}.*\n" \
		"h.{i}.attn.c_attn.weight\0047 = q.{i} + k.{i} + v.{i}\n" \
		"h.{i}.attn.c_attn.bias = qb.{i} + kb.{i} + vb.{i}\n" \
		"h.{i}.mlp.c_fc.weight\0047 = fc.{i}\n" >split.txt &&
	for t in h.0.attn.c_attn.weight h.1.attn.c_attn.bias \
		h.0.mlp.c_fc.weight; do
		damaged four gpt2-linear optim/exp_avg/transformer.$t &&
		damaged torch ./split.txt optim.state.transformer.$t.exp_avg ||
			return 1
	done
'

test_expect_success SAMPLES 'Hugging Face to llm.c and back' '
	cp -r "$hf" hf && fsdp-convert --rules gpt2-llmc hf llmc.h5 >out &&
	grep "127 rows of zeros are added to the 257 of" out &&
	fsdp-convert --only-model --rules reverse:gpt2-llmc --set vocab_size=257 \
		llmc.h5 back.safetensors >out &&
	fsdp-diff hf back.safetensors
'

test_expect_success SAMPLES,PYTHON_H5PY 'numpy transposes and stacks the same' '
	fsdp-convert --to hdf5-file hf hf.h5 >out &&
	"$PYTHON" - hf.h5 llmc.h5 <<-\EOF
	import sys
	import h5py
	import numpy as np
	hf, llmc = (h5py.File(name, "r") for name in sys.argv[1:])
	names = {"qkvw": "attn.c_attn", "attprojw": "attn.c_proj",
	         "fcw": "mlp.c_fc", "fcprojw": "mlp.c_proj"}
	for ours, theirs in names.items():
	    want = np.stack([hf[f"transformer.h.{i}.{theirs}.weight"][:].T
	                     for i in range(2)])
	    assert want.tobytes() == llmc["params." + ours][:].tobytes(), ours
	wte = np.pad(hf["transformer.wte.weight"][:], ((0, 127), (0, 0)))
	assert wte.tobytes() == llmc["params.wte"][:].tobytes()
	EOF
'

test_expect_success SAMPLES 'what is encoded is decoded on the way' '
	printf "%b" "w\0047 = t\nz = a + b\n" >zstd.txt &&
	set -- --to hdf5-file --rules ./zstd.txt &&
	zstd="$FSDP_SAMPLES/checkpoints/dcp215-zstd-a/ckpt" &&
	fsdp-convert --to hdf5-file "$zstd" plain.h5 >out &&
	fsdp-convert "$@" plain.h5 want.h5 >out &&
	fsdp-convert "$@" "$zstd" have.h5 >out && fsdp-diff want.h5 have.h5
'

test_expect_success SAMPLES 'grouped queries: Llama fused and apart again' '
	cp -r "$llama" llama && fsdp-convert --rules llama-fused llama fused >out &&
	fsdp-ls fused "*1.self_attn.qkv_proj.weight" >list &&
	grep "\[48, 24\]" list &&
	fsdp-ls fused "*0.mlp.gate_up_proj.weight" >list && grep "\[80, 24\]" list &&
	fsdp-convert --rules reverse:llama-fused fused apart >out &&
	fsdp-diff llama apart
'

test_done
