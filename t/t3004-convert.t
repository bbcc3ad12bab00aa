#!/bin/sh

test_description='fsdp-convert, fsdp-reshard, fsdp-consolidate'

. "$SHARNESS_SH"

wte=model/transformer.wte.weight
step='step-00000100'

# has PATTERN: the table of tensors in "list" has a line that fits.
has() {
	grep -e "$1" list
}

test_expect_success 'make a checkpoint' '
	ckpt_make four && cp -r four before
'

test_expect_success '4 full, 2 hybrid, 3 grad-op, 1, 4 full: the same values' '
	fsdp-reshard --world 2 --strategy hybrid:1 four/$step two >out 2>err &&
	test_must_be_empty err &&
	grep "^two: hdf5, step 100, 2 ranks, hybrid:1, from hdf5, step 100, 4 ranks, full$" out &&
	grep "^89 tensors, .* in [0-9]* files, .* s (.*/s)$" out &&
	fsdp-diff --metadata four two &&
	fsdp-reshard -w 3 --strategy grad-op two three && fsdp-diff two three &&
	fsdp-reshard -w 1 --strategy none three one && fsdp-diff three one &&
	fsdp-reshard -w 4 --strategy full one back && fsdp-diff --metadata four back
'

test_expect_success 'every one of them is good, digests included' '
	for d in two three one back; do
		fsdp-verify $d >out && grep "^good: 89 tensors" out &&
		fsdp-ls $d >list && has "1 tied name" || return 1
	done
'

test_expect_success 'resharding to the same ranks gives the same pieces' '
	for t in $wte optim/exp_avg/transformer.h.1.mlp.c_fc.weight; do
		ckpt_pieces four $t | cut -d" " -f1-3 >want &&
		ckpt_pieces back $t | cut -d" " -f1-3 >have &&
		test -s want && test_cmp want have || return 1
	done
'

test_expect_success 'what is not given stays: ranks, then strategy' '
	fsdp-reshard --strategy grad-op two two-grad && fsdp-ls two-grad >list &&
	has "2 ranks, grad-op$" &&
	fsdp-reshard -w 6 three six && fsdp-ls six >list && has "6 ranks, grad-op$" &&
	fsdp-diff six two-grad
'

test_expect_success 'chunks: rows as torch.chunk deals them' '
	fsdp-reshard -w 3 --strategy chunk four/$step chunks >out &&
	grep "3 ranks, chunk, from hdf5, step 100, 4 ranks, full$" out &&
	fsdp-ls -l chunks $wte >list && has "3 ranks, chunk$" &&
	rows=$(sed -n "s/^$(echo $wte | sed "s,/,.,") .*\[\([0-9]*\), .*/\1/p" list) &&
	test -n "$rows" && most=$(((rows + 2) / 3)) &&
	ckpt_pieces chunks $wte | cut -d" " -f1-3 >have &&
	row=$(awk -v n=$most "NR == 1 { print \$2 / n }" have) &&
	printf "%d %d shard-0000%d.h5\n" 0 $((most * row)) 0 \
		$((most * row)) $((most * row)) 1 \
		$((2 * most * row)) $(((rows - 2 * most) * row)) 2 >want &&
	test_cmp want have &&
	fsdp-verify chunks && fsdp-diff --metadata four chunks
'

test_expect_success 'from chunks: what is not given stays, and any other' '
	fsdp-reshard -w 2 chunks chunks2 >out && grep "^chunks2: .* 2 ranks, chunk," out &&
	fsdp-diff chunks chunks2 &&
	fsdp-reshard -w 4 --strategy full chunks2 full4 && fsdp-verify full4 &&
	fsdp-diff --metadata four full4 &&
	expect_code 78 fsdp-convert --to dcp --strategy full four/$step no 2>err &&
	grep "dcp holds rows of each rank" err && test ! -e no
'

test_expect_success 'more ranks than elements, more ranks than files' '
	fsdp-reshard -w 90 --strategy full --files 3 four/$step many &&
	fsdp-ls many >list && has "90 ranks, full$" && has "in 3 files" &&
	fsdp-verify many && fsdp-diff four many
'

test_expect_success 'a strategy that does not fit is 78, with the numbers' '
	expect_code 78 fsdp-reshard -w 4 --strategy hybrid:3 four/$step no 2>err &&
	grep "^fsdp-reshard: .*3.*4" err && test ! -e no
'

test_expect_success 'to safetensors and back' '
	fsdp-convert --only-model four/$step model.safetensors &&
	fsdp-ls model.safetensors >list && has "^transformer.wte.weight  *f32 " &&
	! grep "optim" list && ! grep "^model/" list &&
	fsdp-diff --only-model -x "buffer/*" four model.safetensors &&
	fsdp-convert -w 3 --strategy full --rename "*=model/*" model.safetensors again &&
	fsdp-verify again && fsdp-ls again >list && has "3 ranks, full$" &&
	fsdp-diff --only-model -i "transformer.*" four again
'

test_expect_success 'to safetensors nothing is left out unasked, and back' '
	fsdp-convert four/$step every.safetensors &&
	fsdp-diff four every.safetensors &&
	fsdp-consolidate --all four/$step every && fsdp-diff four every &&
	fsdp-convert -w 4 --strategy chunk every four-again &&
	fsdp-verify four-again && fsdp-diff four four-again &&
	fsdp-consolidate --only optim four/$step states.safetensors &&
	fsdp-diff --only optim four states.safetensors
'

test_expect_success 'what the format has no place for is refused, not lost' '
	for o in "--world 2" "--files 2" "--strategy full"; do
		expect_code 78 fsdp-convert --to safetensors $o four/$step no 2>err &&
		grep "^fsdp-convert: safetensors has no place for ${o%% *}: " err ||
			return 1
	done &&
	expect_code 78 fsdp-convert --to dcp --files 2 four/$step no 2>err &&
	grep "dcp has no place for --files" err && test ! -e no
'

test_expect_success 'a target inside the source is refused' '
	expect_code 78 fsdp-reshard -w 2 four/$step four/$step/two 2>err &&
	grep "two: lies inside the source" err &&
	expect_code 78 fsdp-convert four/$step ./four/../four/$step/x.h5 &&
	fsdp-verify four/$step
'

test_expect_success 'progress in lines, where there is no terminal' '
	fsdp-convert --progress four/$step seen 2>err && test -s err &&
	! grep -v "^fsdp-convert: writing  *[0-9]*%  .*/s  .* left$" err &&
	tail -n 1 err | grep "100%" && fsdp-verify --progress seen 2>err &&
	tail -n 1 err | grep "^fsdp-verify: verifying 100%" &&
	fsdp-diff --progress four seen 2>err && tail -n 1 err | grep " 100% " &&
	fsdp-ls --stats --progress seen 2>err && tail -n 1 err | grep " 100% " &&
	fsdp-verify --progress -q seen 2>err && test_must_be_empty err
'

test_expect_success 'one HDF5 file and back, all of it' '
	fsdp-consolidate --all four/$step all.h5 && fsdp-ls all.h5 >list &&
	has "all.h5: hdf5-file" && has "^optim/exp_avg/transformer.wpe.weight " &&
	fsdp-diff four all.h5 &&
	fsdp-convert -w 5 all.h5 five && fsdp-verify five && fsdp-diff four five
'

test_expect_success PYTHON_H5PY 'h5py reads it' '
	cat >check.py <<-\END &&
	import h5py
	whole = h5py.File("all.h5", "r")
	index = h5py.File("four/step-00000100/index.h5", "r")
	n = 0
	def check(name, item):
	    global n
	    if isinstance(item, h5py.Dataset) and name.startswith(("model/", "optim/")):
	        assert (item[()] == index[name][()]).all(), name
	        n += 1
	whole.visititems(check)
	assert n >= 86, n
	END
	"$PYTHON" check.py
'

test_expect_success 'a file of the HDF5 kind, and of safetensors, by name' '
	fsdp-consolidate four/$step by-name.hdf5 && fsdp-ls by-name.hdf5 >list &&
	has ": hdf5-file" && has "^transformer.wte.weight" &&
	fsdp-convert --to safetensors --only-model four/$step plain &&
	fsdp-ls plain >list && has ": safetensors$"
'

test_expect_success 'safetensors of a size: an index, and the same values' '
	fsdp-consolidate --shard-size 1MB four/$step parts && ls parts &&
	test -s parts/model.safetensors.index.json &&
	fsdp-ls parts >list && has ": safetensors$" &&
	fsdp-diff parts model.safetensors &&
	for f in parts/*.safetensors; do
		test $(stat -c %s "$f") -le 3000000 || return 1
	done
'

test_expect_success 'config.json comes along' '
	mkdir hf && fsdp-consolidate four/$step hf >out && grep "^hf/model.safetensors: " out &&
	grep "model_type" hf/config.json && fsdp-diff hf/model.safetensors parts
'

test_expect_success 'include and exclude' '
	fsdp-convert --to hdf5-file -i "*wte*" -i "*wpe*" -x "optim/exp_avg_sq/*" \
		four/$step some.h5 && fsdp-ls some.h5 >list && has "^4 tensors" &&
	has "^optim/exp_avg/transformer.wpe.weight" && ! grep exp_avg_sq list &&
	fsdp-diff -i "*w[tp]e*" -x "*sq*" four some.h5
'

test_expect_success 'a pattern that fits nothing writes nothing' '
	expect_code 65 fsdp-convert -i "nothing*" four/$step no 2>err &&
	grep "^fsdp-convert: .*nothing\*" err && test ! -e no &&
	expect_code 65 fsdp-convert -i "*.wpee.weight" four/$step no 2>err &&
	grep "did you mean .*/transformer.wpe.weight.?$" err &&
	expect_code 65 fsdp-convert --rename nothing=some four/$step no 2>err
'

test_expect_success 'only optimizer state' '
	fsdp-convert --only optim four/$step optim && fsdp-verify optim &&
	fsdp-ls optim >list && has "^optim/exp_avg/transformer.wpe.weight " &&
	! grep "^model/" list && ! grep "^buffer/" list &&
	fsdp-diff --only optim four optim && expect_code 1 fsdp-diff four optim &&
	fsdp-convert --to safetensors --only optim four/$step optim.safetensors &&
	fsdp-diff optim optim.safetensors &&
	fsdp-convert --to dcp --rename "model/*=model.*" --rename "optim/*=optimizer.*" \
		four/$step other && fsdp-convert --only model other just-model &&
	fsdp-ls just-model >list && has "^model.transformer.wpe" &&
	has "^buffer/" && ! grep "^optimizer" list &&
	expect_code 64 fsdp-convert --only models four no 2>err &&
	grep "kind must be model or optim, not .models" err
'

test_expect_success 'rename' '
	fsdp-convert --to hdf5-file --only-model --rename "transformer.*=body.*" \
		--rename "body.wte.weight=embedding" four/$step renamed.h5 &&
	fsdp-ls renamed.h5 >list && has "^embedding " && has "^body.wpe.weight " &&
	! grep "^transformer" list
'

test_expect_success 'two names that become one' '
	expect_code 2 fsdp-convert --only-model --to hdf5-file \
		--rename "transformer.wte.weight=transformer.wpe.weight" \
		four/$step no.h5 2>err && test ! -e no.h5 &&
	grep "transformer.wpe.weight" err
'

test_expect_success 'cast' '
	fsdp-consolidate --cast bf16 four/$step half.safetensors &&
	fsdp-ls half.safetensors >list && has "^transformer.wte.weight  *bf16 " &&
	fsdp-diff --rtol 0.00391 half.safetensors model.safetensors &&
	expect_code 1 fsdp-diff --rtol 0.001 half.safetensors model.safetensors &&
	fsdp-consolidate --cast f64 four/$step double.h5 &&
	fsdp-ls double.h5 >list && has "^transformer.wte.weight  *f64 " &&
	fsdp-diff --atol 1e-300 double.h5 model.safetensors &&
	fsdp-consolidate --cast f32 double.h5 single.safetensors &&
	fsdp-diff -i "transformer.*" single.safetensors model.safetensors
'

test_expect_success PYTHON_H5PY 'cast rounds to nearest, ties to even' '
	safetensors ties.safetensors \
		"{\"x\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}" \
		"\000\200\200\077\000\200\201\077\001\200\200\077" &&
	fsdp-convert --to safetensors --cast bf16 ties.safetensors even.safetensors &&
	fsdp-ls --values x even.safetensors | sed 1d >have &&
	echo "1  1.016  1.008" >want && test_cmp want have
'

test_expect_success 'a dry run says what, and writes nothing' '
	ls -A >before.list && fsdp-reshard -n -v -w 2 four/$step dry >out &&
	grep "^dry: would be hdf5, step 100, 2 ranks, full, from" out &&
	rm -f before.list2 && ls -A >after.list && test ! -e dry &&
	! ls -A | grep tmp-
'

test_expect_success PYTHON_H5PY 'JSON' '
	fsdp-reshard --json -w 2 four/$step json >out.json &&
	"$PYTHON" -c "import json; d = json.load(open(\"out.json\"))
assert d[\"target\"] == \"json\" and d[\"format\"] == \"hdf5\"
assert d[\"tensors\"] == 89 and d[\"dry_run\"] is False
assert d[\"bytes_written\"] >= 7517241 and d[\"bytes_read\"] >= 7517241"
'

test_expect_success 'a target that is there is refused, whatever it is' '
	echo text >file && mkdir full && echo text >full/model.safetensors &&
	for t in file two model.safetensors all.h5 full; do
		expect_code 74 fsdp-convert --to safetensors --only-model \
			four/$step $t 2>err && grep "^fsdp-convert: .*is there already" err || return 1
	done &&
	expect_code 74 fsdp-reshard -w 2 four/$step two 2>err &&
	test "$(cat file)" = text && test "$(cat full/model.safetensors)" = text &&
	fsdp-verify two
'

test_expect_success 'a directory that is there takes it inside' '
	mkdir run && fsdp-reshard -w 2 four run >out &&
	grep "^run/step-00000100: hdf5" out && fsdp-verify run &&
	expect_code 74 fsdp-reshard -w 2 four run &&
	fsdp-consolidate --to hdf5-file four run/ && fsdp-ls run/model.h5
'

test_expect_success 'a source that is damaged: 65, named, nothing left' '
	cp -r four bad && ckpt_pieces bad $wte | sed -n 3p >piece &&
	read -r first count file offset <piece &&
	flip bad/$step/$file $((offset + 77)) &&
	mkdir at && expect_code 65 fsdp-reshard -w 2 bad at/two 2>err &&
	grep "$file" err && grep "$wte" err && test -z "$(ls -A at)" &&
	rm bad/$step/$file && expect_code 65 fsdp-reshard -w 2 bad at/two 2>err &&
	test -z "$(ls -A at)" && expect_code 65 fsdp-reshard -w 2 nowhere at/two
'

test_expect_success !ROOT 'a directory that may not be written' '
	mkdir locked && chmod a-w locked &&
	expect_code 74 fsdp-reshard -w 2 four/$step locked/two 2>err &&
	grep "^fsdp-reshard: .*locked" err && test -z "$(ls -A locked)"
'

test_expect_success 'no such directory' '
	expect_code 74 fsdp-reshard -w 2 four/$step no/such/two 2>err &&
	grep "^fsdp-reshard: no/such: .*No such file or directory" err
'

# Mounts belong to a namespace of their own: they go when it ends.
if test_have_prereq ROOT && unshare -m true 2>/dev/null; then
	test_set_prereq MOUNT
fi

test_expect_success MOUNT 'a full file system: 74, nothing left' '
	mkdir small && cat >inside <<-END &&
	mount -t tmpfs -o size=3m none small || exit 9
	fsdp-reshard -w 2 four/$step small/two
	echo \$? >code
	ls -A small >left
	fsdp-consolidate four/$step small/m.safetensors &&
	fsdp-consolidate --to hdf5-file four/$step small/m.h5
	echo \$? >code2
	ls -A small >left2
	END
	run_timeout 60 unshare -m sh inside 2>err && echo 74 >want &&
	test_cmp want code && test_must_be_empty left &&
	grep "^fsdp-reshard: .*small.*bytes" err &&
	test_cmp want code2 && printf "%s\n" config.json m.safetensors >want && test_cmp want left2
'

test_expect_success MOUNT 'room that goes while it is written: 74, nothing left' '
	cat >inside <<-END &&
	mount -t tmpfs -o size=12m none small || exit 9
	head -c 9000000 /dev/zero >small/other
	fsdp-reshard -w 2 four/$step small/two
	echo \$? >code
	rm small/other
	ls -A small >left
	END
	run_timeout 60 unshare -m sh inside 2>err && echo 74 >want &&
	test_cmp want code && test_must_be_empty left
'

test_expect_success MOUNT 'a file system that is read-only: 74' '
	cat >inside <<-END &&
	mount -t tmpfs -o ro none small || exit 9
	fsdp-reshard -w 2 four/$step small/two
	echo \$? >code
	ls -A small >left
	END
	run_timeout 60 unshare -m sh inside 2>err && echo 74 >want &&
	test_cmp want code && test_must_be_empty left && grep "Read-only" err
'

test_expect_success 'a signal: it ends by it, and nothing is left' '
	mkdir kill && ckpt_make --width 512 --layers 3 big &&
	{ fsdp-reshard -w 3 big kill/three & pid=$!; } &&
	sleep 0.3; kill -TERM $pid 2>/dev/null; wait $pid; code=$? &&
	{ test $code = 0 || test $code = 143; } &&
	# It may come just after the target has got its name.
	test -z "$(ls -A kill | grep -vx three)" &&
	{ test ! -e kill/three || fsdp-verify kill/three; }
'

test_expect_success 'killed: what is left is never taken for a checkpoint' '
	rm -rf kill && mkdir kill &&
	{ fsdp-reshard -w 3 big kill/three & pid=$!; } &&
	sleep 0.2; kill -KILL $pid 2>/dev/null; wait $pid
	test ! -e kill/three || fsdp-verify kill/three
'

test_expect_success 'the sources are as they were' '
	diff -r before four
'

test_expect_success 'what the target has no place for is told' '
	for format in torch dcp safetensors; do
		fsdp-convert --to $format four lost-$format >out &&
		grep "^note: $format has no place for the source.s step and meta" out ||
		return 1
	done &&
	fsdp-convert --json --to torch four lost.pt >notes &&
	python3 -c "
import json
assert len(json.load(open(\"notes\"))[\"notes\"]) == 1" &&
	fsdp-convert --to hdf5-file four kept.h5 >out && ! grep note out
'

test_done
