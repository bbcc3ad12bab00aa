#!/bin/sh

test_description='fsdp-verify: every kind of damage is named'

. "$SHARNESS_SH"

wte=model/transformer.wte.weight
step='step-00000100'

# fresh: the checkpoint as it was, in c/.
fresh() {
	rm -rf c && cp -r good c
}

# finds PATTERN...: verify ends with 1, and a line fits each pattern.
finds() {
	expect_code 1 fsdp-verify c/$step >out 2>err || return 1
	test_must_be_empty err &&
	grep "^not good: " out &&
	for pattern; do
		grep -e "$pattern" out || return 1
	done
}

test_expect_success 'make a checkpoint' '
	ckpt_make good
'

test_expect_success 'a good one: nothing is found, all is counted' '
	fsdp-verify good/$step >out 2>err && test_must_be_empty err &&
	line_count 1 out &&
	grep "^good: 89 tensors, 6 files, " out &&
	bytes=$(cat good/$step/*.h5 | wc -c) &&
	fsdp-verify --json good/$step >out &&
	grep "\"good\": true" out && grep "\"bytes\": $bytes," out &&
	grep "\"unchecked\": 0," out
'

test_expect_success 'the directory of checkpoints, and threads' '
	fsdp-verify -j 3 good >out && grep "^good: 89 tensors" out &&
	fsdp-verify -j 1 --max-mem 4M good >out && grep "^good: 89 tensors" out
'

test_expect_success 'digests are those that the writer left' '
	fsdp-verify --json good/$step | grep -o "\"digest_[a-z]*\": \"[0-9a-f]*\"" |
		sort >have && line_count 2 have &&
	sed -n "/\"digests\"/,/}/p" good/$step/manifest.json |
		grep -o "\"[a-z]*\": \"[0-9a-f]\{32\}\"" |
		sed "s/^\"/\"digest_/" | sort >want &&
	test_cmp want have
'

test_expect_success 'a shard that was cut' '
	fresh && truncate -s -100 c/$step/shard-00002.h5 &&
	finds "shard-00002.h5: cut off: has [0-9]* bytes instead of [0-9]*$" &&
	line_count 2 out
'

test_expect_success 'a shard that is longer' '
	fresh && echo more >>c/$step/shard-00001.h5 &&
	finds "shard-00001.h5: too long: has"
'

test_expect_success 'a byte of data: file, tensor and elements are named' '
	fresh && ckpt_pieces c $wte | sed -n 2p >piece &&
	read -r first count file offset <piece &&
	flip c/$step/$file $((offset + 1000)) &&
	finds "$file: tensor $wte: elements \[$first, $((first + count))), bytes \[$offset, $((offset + 4 * count))): their CRC-32C"
'

test_expect_success 'only the block that has it' '
	rm -rf c && ckpt_make --world 1 c && ckpt_pieces c $wte >piece &&
	read -r first count file offset <piece &&
	flip c/$step/$file $((offset + 1048576)) &&
	finds "tensor $wte: elements \[262144, 524288), bytes" &&
	! grep "elements \[0, " out
'

test_expect_success 'two places: both are named' '
	fresh && ckpt_pieces c "optim/exp_avg/transformer.wpe.weight" >piece &&
	read -r first count file offset <piece &&
	flip c/$step/$file $offset &&
	ckpt_pieces c buffer/half >piece &&
	read -r first count file2 offset <piece &&
	flip c/$step/$file2 $offset &&
	finds "$file: tensor optim/exp_avg/transformer.wpe.weight: " \
		"$file2: tensor buffer/half: elements \[0, 15)"
'

test_expect_success 'a byte of the HDF5 header' '
	fresh && flip c/$step/shard-00003.h5 20 &&
	finds "shard-00003.h5: its CRC-32C is .*: what was altered is HDF5.s own"
'

test_expect_success 'a byte of the index; files are checked all the same' '
	fresh && flip c/$step/index.h5 5000 && flip c/$step/shard-00000.h5 20 &&
	finds "index.h5: its CRC-32C is " "shard-00000.h5: its CRC-32C"
'

test_expect_success 'an index that is cut, and one that is missing' '
	fresh && truncate -s 3000 c/$step/index.h5 &&
	finds "index.h5: has 3000 bytes instead of" &&
	rm c/$step/index.h5 && finds "index.h5: missing"
'

test_expect_success 'a byte of the manifest' '
	fresh && sed -i "s/\"step\": 100/\"step\": 101/" c/$step/manifest.json &&
	finds "manifest.json: .*altered"
'

test_expect_success 'no manifest' '
	fresh && rm c/$step/manifest.json && finds "no manifest.json: .*interrupted"
'

test_expect_success 'a shard is missing; the others are checked' '
	fresh && rm c/$step/shard-00001.h5 && flip c/$step/shard-00003.h5 20 &&
	finds "shard-00001.h5: missing$" "shard-00003.h5: its CRC-32C"
'

test_expect_success 'a file too many' '
	fresh && cp c/$step/shard-00001.h5 c/$step/shard-00004.h5 &&
	finds "shard-00004.h5: is no part of the checkpoint$"
'

test_expect_success 'two shards exchanged' '
	fresh && cd c/$step && mv shard-00001.h5 x && mv shard-00002.h5 shard-00001.h5 &&
	mv x shard-00002.h5 && cd ../.. &&
	finds "shard-00001.h5: holds what shard-00002.h5 should hold" \
		"shard-00002.h5: holds what shard-00001.h5 should hold"
'

test_expect_success 'what an interrupted save left' '
	fresh && mkdir c/.tmp-step-00000200-77 &&
	expect_code 1 fsdp-verify c >out &&
	grep "^c/.tmp-step-00000200-77: left by writing that was interrupted" out &&
	fsdp-verify c/$step
'

test_expect_success 'a checkpoint beside it that is not complete' '
	fresh && cp -r c/$step c/step-00000200 &&
	rm c/step-00000200/manifest.json &&
	expect_code 1 fsdp-verify c >out &&
	grep "^c/step-00000200: no manifest.json" out &&
	! grep "^c/$step" out
'

test_expect_success 'latest names nothing' '
	fresh && echo step-00000300 >c/latest &&
	expect_code 1 fsdp-verify c >out &&
	grep "^c/latest: names .step-00000300., which is not there$" out
'

test_expect_success 'digests that are not those of the values' '
	rm -rf c && ckpt_make --bad-digest c &&
	finds "the digest of the parameters is .* instead of" &&
	line_count 2 out
'

test_expect_success 'shards exchanged, with checksums to match' '
	fresh && cd c/$step && mv shard-00001.h5 x && mv shard-00002.h5 shard-00001.h5 &&
	mv x shard-00002.h5 && cd ../.. && ckpt_reseal c/$step &&
	expect_code 1 fsdp-verify c/$step >out && grep "^not good: " out
'

test_expect_success 'resealing by itself is not found' '
	fresh && ckpt_reseal c/$step && fsdp-verify c/$step
'

test_expect_success PYTHON_H5PY 'a scalar in the index that is not the shard.s' '
	fresh && "$PYTHON" -c "import h5py
f = h5py.File(\"c/$step/index.h5\", \"r+\")
f[\"model/temperature\"][()] = 42" && ckpt_reseal c/$step &&
	finds "index.h5: its copy of the scalar model/temperature is not what shard-00000.h5 holds"
'

test_expect_success PYTHON_H5PY 'a shard whose own table says otherwise' '
	fresh && "$PYTHON" -c "import h5py
f = h5py.File(\"c/$step/shard-00001.h5\", \"r+\")
row = f[\"pieces\"][0]
row[\"start\"] += 64
f[\"pieces\"][0] = row" && ckpt_reseal c/$step &&
	finds "shard-00001.h5: its own tables .* are not what index.h5 says of it"
'

test_expect_success 'findings as JSON, and none with -q' '
	fresh && flip c/$step/shard-00003.h5 20 &&
	expect_code 1 fsdp-verify --json c/$step >out &&
	grep "\"good\": false" out && grep "shard-00003.h5: its CRC" out &&
	expect_code 1 fsdp-verify -q c/$step >out 2>&1 && test_must_be_empty out
'

test_expect_success 'safetensors: says what no checksum covers' '
	fsdp-convert --only-model good/$step m.safetensors &&
	size=$(stat -c %s m.safetensors) && fsdp-verify m.safetensors >out &&
	grep "^no checksum covers $size bytes" out &&
	truncate -s -1 m.safetensors && expect_code 1 fsdp-verify m.safetensors
'

test_expect_success 'one HDF5 file' '
	fsdp-convert --to hdf5-file good/$step m.h5 && fsdp-verify m.h5 >out &&
	grep "^good: 89 tensors, 1 file, " out &&
	ckpt_pieces m.h5 $wte >piece && read -r first count file offset <piece &&
	cp m.h5 bad.h5 && flip bad.h5 $((offset + 1048576 + 3)) &&
	expect_code 1 fsdp-verify bad.h5 >out &&
	grep "^bad.h5: tensor $wte: elements \[262144, 524288)" out &&
	truncate -s -5000 m.h5 && expect_code 1 fsdp-verify m.h5
'

test_expect_success 'nothing there; results that cannot be written' '
	expect_code 65 fsdp-verify nowhere 2>err && grep "^fsdp-verify: nowhere" err &&
	mkdir empty && expect_code 65 fsdp-verify empty 2>err &&
	echo global_step2 >empty/latest && mkdir empty/global_step2 &&
	expect_code 65 fsdp-verify empty 2>err && grep "^fsdp-verify: empty.*no checkpoint" err &&
	expect_code 74 fsdp-verify good >/dev/full
'

test_expect_success 'nothing was written into the checkpoint' '
	(cd good/$step && ls -A) >have && printf "%s\n" index.h5 manifest.json \
		shard-0000[0-3].h5 >/dev/null && (echo index.h5; echo manifest.json;
		for i in 0 1 2 3; do echo shard-0000$i.h5; done) >want &&
	test_cmp want have
'

# A file of two tensors, a (u8, 4) and b (i16, 2 x 1), and its manifest.
header='{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"I16","shape":[2,1],"data_offsets":[4,8]}}'
sum() {
	printf "$1" | sha256sum | sed 's/ .*//'
}

test_expect_success 'a manifest: the same' '
	size=$(printf %s "$header" | wc -c) &&
	{ printf "\\$(printf %o "$size")\0\0\0\0\0\0\0%s" "$header" &&
		printf "\1\2\3\4\5\6\7\10"; } >two.safetensors &&
	cat >two.json <<-END &&
	{"tensors": [
	 {"name": "a", "dtype": "uint8", "shape": [4],
	  "sha256": "$(sum "\1\2\3\4")"},
	 {"name": "b", "dtype": "torch.int16", "shape": [2, 1],
	  "sha256": "$(sum "\5\6\7\10")"}],
	 "aliases": {}, "values": {}}
	END
	fsdp-verify --manifest two.json two.safetensors >out 2>err &&
	test_must_be_empty err && line_count 1 out &&
	grep "^as the manifest says: 2 tensors, 0 aliases, 0 values, 8 B" out
'

# differs SCRIPT PATTERN: a manifest that sed changed is another.
differs() {
	sed "$1" two.json >other.json && ! cmp two.json other.json &&
	expect_code 1 fsdp-verify --manifest other.json two.safetensors >out &&
	cat out && grep "^not what the manifest says: " out && grep -e "$2" out
}

test_expect_success 'a manifest: everything that can differ is named' '
	differs "s/\"name\": \"b\"/\"name\": \"c\"/" "^c: missing$" &&
	differs "s/uint8/int8/" "^a: is u8, not int8$" &&
	differs "s/\[2, 1\]/[2]/" "^b: has shape \[2, 1\], not \[2\]$" &&
	differs "s/\[4\]/[4, 1]/" "^a: has shape \[4\], not \[4,1\]$" &&
	differs "s/\"sha256\": \"...../&0/" "^a: its values are others" &&
	grep "^b: its values are others" out &&
	differs "s/\"values\": {/&\"lr\": 0.5/" "^lr: the value 0.5 is missing$"
'

test_expect_success 'a manifest: tensors that it does not list' '
	sed "/\"name\": \"a\"/,/sha256/d" two.json >less.json &&
	expect_code 1 fsdp-verify --manifest less.json two.safetensors >out &&
	grep "^a: is not in the manifest$" out &&
	fsdp-convert --to hdf5-file --rename "a=other.a" two.safetensors k.h5 &&
	fsdp-verify --manifest less.json k.h5 >out &&
	grep "^note: 1 tensors are of a kind .*: other.a$" out
'

test_expect_success 'a manifest: aliases' '
	sed "s/\"aliases\": {/&\"b\": \"a\"/" two.json >other.json &&
	fsdp-verify --manifest other.json two.safetensors >out &&
	grep "^note: 1 of 1 aliases are tensors of their own here" out &&
	sed "s/\"aliases\": {/&\"b\": \"c\"/;
		s/\"name\": \"a\"/\"name\": \"c\"/" two.json >tied.json &&
	expect_code 1 fsdp-verify --manifest tied.json two.safetensors
'

test_expect_success 'a manifest: what is none, and usage' '
	echo "[1" >bad.json &&
	expect_code 65 fsdp-verify --manifest bad.json two.safetensors 2>err &&
	grep "bad.json: no JSON: line " err &&
	echo "{\"tensors\": [{\"name\": \"a\"}]}" >bad.json &&
	expect_code 65 fsdp-verify --manifest bad.json two.safetensors 2>err &&
	grep "bad.json: a tensor without name, shape, dtype or sha256 a" err &&
	expect_code 65 fsdp-verify --manifest none.json two.safetensors
'

test_expect_success 'a manifest: a damaged file' '
	truncate -s -1 two.safetensors &&
	expect_code 1 fsdp-verify --manifest two.json two.safetensors >out &&
	grep "two.safetensors" out &&
	expect_code 1 fsdp-verify --json --manifest two.json two.safetensors >out &&
	grep "\"same\": false" out
'

test_expect_success 'a file of another set of safetensors is found' '
	fsdp-consolidate --shard-size 1MB good set && fsdp-verify set &&
	touch set/other.safetensors set/notes.txt && fsdp-verify set &&
	cp set/model-00001-of-*.safetensors set/model-00009-of-00009.safetensors &&
	expect_code 1 fsdp-verify set >out && line_count 3 out &&
	grep "^set/model-00009-of-00009.safetensors: is no part of the checkpoint$" out
'

test_expect_success 'a recipe that is not needed is no finding, but told' '
	echo "{}" >recipe.json && set -- --recipe recipe.json &&
	fsdp-verify "$@" good/$step >out 2>err && grep "^good: " out &&
	grep "^fsdp-verify: warning: .* --recipe was not needed$" err &&
	fsdp-ls "$@" good "*.wte.weight[0:1]" >out 2>err &&
	grep "^fsdp-ls: warning: .* --recipe was not needed$" err &&
	fsdp-diff "$@" good good >out 2>err &&
	grep "^fsdp-diff: warning: .* --recipe was not needed$" err &&
	fsdp-convert "$@" --dry-run good other >out 2>&1 &&
	grep "^note: .* the recipe was not needed$" out
'

test_done
