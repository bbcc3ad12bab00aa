#!/bin/sh

test_description='fsdp-ls: what is in a checkpoint'

. "$SHARNESS_SH"

wte=model/transformer.wte.weight

test_expect_success 'make checkpoints' '
	ckpt_make --strategy hybrid:2 ckpt &&
	ckpt_make --step 200 --world 1 ckpt &&
	fsdp-convert --only-model ckpt/step-00000100 model.safetensors
'

test_expect_success 'the summary says what it is' '
	fsdp-ls ckpt/step-00000100 >out 2>err &&
	test_must_be_empty err &&
	grep "step-00000100: hdf5, step 100, 4 ranks, hybrid:2$" out &&
	grep "^89 tensors, .* in 4 files, 1 tied name$" out
'

test_expect_success 'in a directory of checkpoints it is the latest' '
	fsdp-ls ckpt >out && grep "step-00000200: hdf5, step 200, 1 rank, " out
'

test_expect_success 'the table has all tensors, with their types and shapes' '
	fsdp-ls ckpt/step-00000100 >out &&
	sed "1,/^TENSOR/d" out | grep -v " is tied to " >rows &&
	line_count 89 rows &&
	grep "^$wte  *f32  *\[8192, 64\]  *2097152  *4$" rows &&
	grep "^model/temperature  *f32  *\[\]  *4  *1$" rows &&
	grep "^model/adapters  *f32  *\[0, 7\]  *0  *0$" rows &&
	grep "^buffer/half  *bf16  *\[3, 5\]  *30  *1$" rows &&
	grep "^buffer/steps  *i64  *\[\]  *8  *1$" rows &&
	grep "^model/lm_head.weight is tied to $wte$" out
'

test_expect_success 'the bytes of all tensors add up' '
	sum=$(awk "{ sum += \$(NF - 1) } END { print sum }" rows) &&
	grep "^89 tensors, .*($sum bytes)" out
'

test_expect_success 'columns line up, and nothing trails' '
	! grep " $" out &&
	awk "/^TENSOR/ { at = index(\$0, \"DTYPE\") }
		/^model.* f32 / { if (substr(\$0, at, 4) != \"f32 \") exit 1; n++ }
		END { exit n < 30 }" out &&
	sed -n "/^TENSOR/,\$p" out | grep -v " is tied to " |
		awk "{ print length }" | sort -u >widths &&
	line_count 1 widths
'

test_expect_success 'patterns select, with and without the kind' '
	fsdp-ls ckpt/step-00000100 "*.wte.weight" >out &&
	grep -c "wte.weight  *f32" out >count && echo 3 >want &&
	test_cmp want count &&
	fsdp-ls ckpt/step-00000100 transformer.wte.weight "buffer/*" >out &&
	grep "^4 tensors chosen" out && grep "^$wte " out &&
	! grep "^optim" out
'

test_expect_success 'a pattern that fits nothing is an error' '
	expect_code 65 fsdp-ls ckpt "*.wte.weight" nothing >out 2>err &&
	test_must_be_empty out &&
	grep "^fsdp-ls: .*no tensor.s name fits .nothing.$" err &&
	expect_code 65 fsdp-ls ckpt "transfomer.wte.wieght" 2>err &&
	grep "fits .transfomer.wte.wieght.: did you mean .$wte.?$" err &&
	expect_code 65 fsdp-ls ckpt "*.wtee.*" 2>err &&
	grep "fits .\*.wtee.\*.: did you mean .model/.*wte.weight.?$" err &&
	expect_code 65 fsdp-ls --values model/temperatur ckpt 2>err &&
	grep "did you mean .model/temperature.?$" err
'

test_expect_success 'pieces of a tensor cover it, in files that are there' '
	ckpt_pieces ckpt/step-00000100 $wte >pieces &&
	line_count 4 pieces &&
	awk "BEGIN { at = 0 } { bad += \$1 != at; at = \$1 + \$2 }
		END { exit bad || at != 524288 }" pieces &&
	while read -r first count file offset; do
		size=$(stat -c %s ckpt/step-00000100/$file) &&
		test $((offset + 4 * count)) -le $size || return 1
	done <pieces
'

test_expect_success 'values are those that lie in the files' '
	ckpt_pieces ckpt/step-00000100 $wte >pieces &&
	read -r first count file offset <pieces &&
	od -An -tf4 -v -w16 -j $offset -N 64 ckpt/step-00000100/$file |
		tr -s " " "\n" | sed "/^$/d" >want &&
	fsdp-ls --values "$wte[0, :16]" ckpt/step-00000100 | sed 1d |
		tr -s " " "\n" | sed "/^$/d" >have &&
	line_count 16 have && line_count 16 want &&
	paste want have |
		awk "{ bad += (\$1 - \$2)^2 > 1e-15 } END { exit bad }"
'

test_expect_success 'positions: from the end, single, whole dimensions' '
	fsdp-ls --values "$wte[-1, -2:]" ckpt >out &&
	grep "f32 \[8192, 64\], elements \[8191:8192, 62:64\]$" out &&
	fsdp-ls --values "$wte[8191, 62:64]" ckpt | sed 1d >want &&
	sed 1d out >have && test_cmp want have && test -s have &&
	fsdp-ls --values "${wte#model/}[-1, -2:]" ckpt | sed 1d | cmp - want &&
	fsdp-ls --values "$wte[7]" ckpt >out && sed 1d out | wc -w >n &&
	echo 64 >want && test_cmp want n &&
	fsdp-ls --values "$wte" ckpt >out && grep "elements \[0:4, 0:8\]$" out &&
	line_count 5 out &&
	fsdp-ls --values model/temperature --values buffer/half ckpt >out &&
	grep "^model/temperature  f32 \[\], elements \[\]$" out
'

test_expect_success 'a tied name has the values of its owner' '
	fsdp-ls --values "$wte[3, :8]" ckpt | sed 1d >want &&
	fsdp-ls --values "model/lm_head.weight[3, :8]" ckpt | sed 1d >have &&
	test -s want && test_cmp want have
'

test_expect_success 'a part that is not there is an error' '
	for part in "$wte[8192]" "$wte[0, 0, 0]" "$wte[3:2]" "$wte[x]" \
		"$wte[0 1]" "$wte[-8193]"; do
		expect_code 2 fsdp-ls --values "$part" ckpt >out 2>err &&
		test_must_be_empty out &&
		grep "its shape is \[8192, 64\]$" err || return 1
	done &&
	expect_code 65 fsdp-ls --values nothing ckpt 2>err &&
	grep "no tensor.s name fits .nothing.$" err
'

test_expect_success 'statistics of values that are known' '
	safetensors known.safetensors \
		"{\"x\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[0,24]}}" \
		"\000\000\200\077\000\000\000\100\000\000\100\100" &&
	printf "\000\000\200\100\000\000\300\177\000\000\200\377" \
		>>known.safetensors &&
	fsdp-ls --stats known.safetensors >out &&
	grep "^x  *f32  *\[6\]  *24  *1  *4  *2.5  *1.11803  *1  *1$" out
'

test_expect_success PYTHON_H5PY 'statistics are those of numpy, through h5py' '
	fsdp-ls --stats --json --max-mem 1M ckpt/step-00000100 >stats.json &&
	cat >check.py <<-\END &&
	import h5py, json, numpy
	index = h5py.File("ckpt/step-00000100/index.h5", "r")
	listed = json.load(open("stats.json"))["tensors"]
	assert len(listed) == 89
	for t in listed:
	    x = index[t["name"]][()].astype(numpy.float64)
	    s = t["stats"]
	    assert list(x.shape) == t["shape"], t
	    assert s["finite"] == x.size and s["nan"] == s["inf"] == 0, t
	    if x.size:
	        assert s["min"] == x.min() and s["max"] == x.max(), t
	        assert abs(s["mean"] - x.mean()) <= 1e-12 * (1 + abs(x.mean())), t
	        assert abs(s["std"] - x.std()) <= 1e-9 * (1 + x.std()), t
	END
	(cd . && ulimit -n 256 && "$PYTHON" check.py)
'

test_expect_success PYTHON_H5PY 'JSON says the same as the table' '
	fsdp-ls --json -l ckpt/step-00000100 "buffer/*" >out.json &&
	cat >check.py <<-\END &&
	import json
	d = json.load(open("out.json"))
	assert d["format"] == "hdf5" and d["step"] == 100 and d["world"] == 4
	assert d["strategy"] == "hybrid" and d["shard"] == 2
	assert d["num_tensors"] == 89 and len(d["tensors"]) == 3
	assert d["aliases"] == {
	    "model/lm_head.weight": "model/transformer.wte.weight"}
	half = [t for t in d["tensors"] if t["name"] == "buffer/half"][0]
	assert half["dtype"] == "bf16" and half["shape"] == [3, 5]
	assert [(p["first"], p["count"]) for p in half["pieces"]] == [(0, 15)]
	assert d["meta"]["user"]["config"]["model_type"] == "gpt2"
	END
	"$PYTHON" check.py
'

test_expect_success 'metadata' '
	fsdp-ls --meta ckpt >out && grep "\"model_type\": \"gpt2\"" out
'

test_expect_success 'safetensors have no kinds, and no step' '
	fsdp-ls model.safetensors >out &&
	grep "model.safetensors: safetensors$" out &&
	grep "^transformer.wte.weight " out && ! grep "^model/" out
'

test_expect_success 'names cannot do anything to a terminal' '
	safetensors bad.safetensors \
		"{\"a\\u001b[2Jb\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}" \
		"x" &&
	fsdp-ls bad.safetensors >out && grep -F "a\\x1b[2Jb" out
'

test_expect_success 'more files than may be open: a warning' '
	ckpt_make --world 24 many &&
	(ulimit -n 30 && fsdp-ls many >out 2>err) &&
	grep "^89 tensors" out &&
	grep "^fsdp-ls: warning: 24 files, but only 30 may be open" err
'

test_expect_success 'quiet prints nothing' '
	fsdp-ls -q --stats ckpt >out 2>&1 && test_must_be_empty out
'

test_expect_success 'what is no checkpoint, and a full disk' '
	expect_code 65 fsdp-ls nowhere 2>err && grep "^fsdp-ls: nowhere: " err &&
	echo text >file && expect_code 65 fsdp-ls file 2>err &&
	expect_code 65 fsdp-ls --json file >out && grep "\"status\": \"corrupt\"" out &&
	expect_code 74 fsdp-ls ckpt >/dev/full 2>err &&
	grep "cannot write the results to standard output" err
'

test_expect_success 'histogram, patterns with slices' '
	fsdp-ls --histogram=4 ckpt "*wte.weight" >out &&
	grep -A1 "^model/.*wte.weight$" out | grep "FROM *TO *COUNT" &&
	fsdp-ls --json --histogram ckpt "*wte.weight" >out &&
	jq -e ".tensors[0] | .histogram | length == 20" out &&
	jq -e ".tensors[0] | (.histogram | add) == .stats.finite" out &&
	fsdp-ls --values "model/transformer.h.*.ln_1.weight[0:2]" ckpt >out &&
	test $(grep -c "ln_1.weight  f32 .*, elements \[0:2\]$" out) -gt 1 &&
	expect_code 65 fsdp-ls --values "nothing.*[0]" ckpt &&
	expect_code 64 fsdp-ls --histogram=0 ckpt
'

test_expect_success 'values of types of less than a byte' '
	safetensors f4.safetensors "{\"a\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[0,3]}}" \
		"\\041\\103\\145" && fsdp-ls --values "a[:, 1:]" --values "a[1]" \
		f4.safetensors | tr -s " " >out &&
	printf "%s\n" "a f4 [2, 3], elements [0:2, 1:3]" "1 1.5" "3 4" \
		"a f4 [2, 3], elements [1:2, 0:3]" "2 3 4" >want && test_cmp want out
'

test_done
