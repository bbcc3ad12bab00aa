#!/bin/sh

test_description='fsdp-diff: same, different, trouble'

. "$SHARNESS_SH"

wte=model/transformer.wte.weight
step='step-00000100'

test_expect_success 'make checkpoints' '
	ckpt_make four &&
	ckpt_make --world 2 --strategy hybrid:1 two &&
	ckpt_make --world 3 --strategy grad-op --change "$wte:70000" three &&
	ckpt_make --world 1 --vocab 100 small &&
	fsdp-convert --only-model four/$step model.safetensors
'

test_expect_success 'the same values, sharded otherwise' '
	fsdp-diff four/$step two/$step >out 2>err && test_must_be_empty err &&
	grep "^the same: 89 tensors, " out &&
	fsdp-diff -q four two >out 2>&1 && test_must_be_empty out
'

test_expect_success 'with little memory and one thread' '
	fsdp-diff --max-mem 1M -j 1 four two
'

test_expect_success 'one element: which, and both its values' '
	expect_code 1 fsdp-diff four three >out 2>err && test_must_be_empty err &&
	grep "^they differ in 1 place; 89 tensors compared" out &&
	fsdp-ls --values "$wte[1093, 48]" four | sed 1d | tr -d " " >a &&
	fsdp-ls --values "$wte[1093, 48]" three | sed 1d | tr -d " " >b &&
	set -- $(grep "^$wte " out) && echo "$*" &&
	test "$2 $3 $4" = "1 524288 70000" &&
	awk -v a=$5 -v b=$6 -v wa=$(cat a) -v wb=$(cat b) -v abs=$7 -v rel=$8 "
	function near(x, y) { return (x - y)^2 <= (1e-2 * y)^2 }
	BEGIN { d = wb > wa ? wb - wa : wa - wb
		pa = wa < 0 ? -wa : wa; pb = wb < 0 ? -wb : wb
		exit !(near(a, wa) && near(b, wb) && near(abs, d) &&
			near(rel, d / (pa > pb ? pa : pb))) }"
'

test_expect_success 'a tied name has its owner.s difference, once' '
	grep -c lm_head out >n; echo 0 >want; test_cmp want n
'

test_expect_success 'tolerances' '
	fsdp-diff --atol 3 four three &&
	expect_code 1 fsdp-diff --atol 1e-3 four three &&
	fsdp-diff --rtol 1 --atol 1 four three &&
	expect_code 1 fsdp-diff --rtol 1e-6 three four
'

test_expect_success 'patterns' '
	fsdp-diff -x "*wte*" four three >out && grep "^the same: 86 tensors" out &&
	fsdp-diff -i "optim/*" four three >out && grep "^the same: 56 tensors" out &&
	expect_code 1 fsdp-diff -i transformer.wte.weight four three &&
	fsdp-diff -i "*wte*" -x "model/*" four three >out &&
	grep "^the same: 2 tensors" out
'

test_expect_success 'a pattern that fits nothing is trouble, not the same' '
	for o in -i -x; do
		expect_code 2 fsdp-diff $o "nothing*" four two >out 2>err &&
		test_must_be_empty out && grep "fits the pattern .nothing\*.$" err || return 1
	done &&
	expect_code 2 fsdp-diff -i "*.wtte.weight" four two 2>err &&
	grep "fits the pattern .*: did you mean .*transformer.wte.weight.?$" err
'

test_expect_success 'shapes' '
	expect_code 1 fsdp-diff four small >out &&
	grep "^$wte: shape \[8192, 64\] against \[100, 64\]$" out &&
	grep "differ in 3 places" out
'

test_expect_success 'kinds against none: only what one of them has differs' '
	fsdp-diff --only-model -x "buffer/*" four model.safetensors >out &&
	grep "^the same: 30 tensors" out &&
	fsdp-diff --model-only -x "buffer/*" model.safetensors two &&
	expect_code 1 fsdp-diff four model.safetensors >out &&
	grep "^optim/exp_avg/transformer.h.0.attn.c_attn.bias: only in four$" out
'

test_expect_success 'element types: a difference, unless there is a tolerance' '
	fsdp-convert --only-model --cast bf16 four/$step half.safetensors &&
	expect_code 1 fsdp-diff model.safetensors half.safetensors >out &&
	grep "^transformer.wte.weight: dtype f32 against bf16$" out &&
	fsdp-diff --rtol 0.004 model.safetensors half.safetensors &&
	expect_code 1 fsdp-diff --rtol 0.001 model.safetensors half.safetensors
'

header() {
	echo "{\"x\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}"
}

test_expect_success 'NaN, Inf and zeros' '
	one="\000\000\200\077" nan="\000\000\300\177" nan2="\001\000\300\177" &&
	inf="\000\000\200\177" zero="\000\000\000\000" minus="\000\000\000\200" &&
	safetensors a.safetensors "$(header)" "$one$nan$zero" &&
	safetensors b.safetensors "$(header)" "$one$nan2$minus" &&
	safetensors c.safetensors "$(header)" "$one$one$zero" &&
	safetensors d.safetensors "$(header)" "$inf$nan$zero" &&
	fsdp-diff a.safetensors a.safetensors &&
	expect_code 1 fsdp-diff a.safetensors b.safetensors >out &&
	set -- $(grep "^x " out) && test "$2 $4 $7" = "2 1 0" &&
	fsdp-diff --atol 1e-30 a.safetensors b.safetensors &&
	expect_code 1 fsdp-diff --rtol 1 --atol 1e30 a.safetensors c.safetensors >out &&
	set -- $(grep "^x " out) && test "$2 $4 $7 $8" = "1 1 inf inf" &&
	expect_code 1 fsdp-diff --rtol 1 a.safetensors d.safetensors &&
	fsdp-diff --rtol 1e-9 d.safetensors d.safetensors
'

test_expect_success 'integers beyond what a double tells apart' '
	h="{\"x\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]}}" &&
	safetensors a.safetensors "$h" "\000\000\000\000\000\000\000\100" &&
	safetensors b.safetensors "$h" "\001\000\000\000\000\000\000\100" &&
	expect_code 1 fsdp-diff a.safetensors b.safetensors
'

test_expect_success 'metadata, if asked' '
	ckpt_make --step 101 --meta "{\"user\": {\"config\": {\"model_type\": \"other\"}}}" five &&
	fsdp-diff four five &&
	expect_code 1 fsdp-diff --metadata four five >out &&
	grep "^metadata step: 100 against 101$" out &&
	grep "^metadata user.config.model_type: \"gpt2\" against \"other\"$" out &&
	fsdp-diff --metadata four four
'

test_expect_success PYTHON_H5PY 'JSON' '
	expect_code 1 fsdp-diff --json four three >out.json &&
	"$PYTHON" -c "import json; d = json.load(open(\"out.json\"))
assert d[\"same\"] is False and d[\"tensors\"] == 89
(x,) = d[\"differences\"]
assert x[\"how\"] == \"values\" and x[\"name\"] == \"$wte\"
assert x[\"differing\"] == 1 and x[\"first\"] == 70000
assert abs(x[\"value_b\"] - (1.5 * x[\"value_a\"] + 1)) < 1e-6" &&
	fsdp-diff --json four two >out.json &&
	"$PYTHON" -c "import json; d = json.load(open(\"out.json\"))
assert d[\"same\"] is True and d[\"differences\"] == []"
'

test_expect_success 'trouble is 2, whatever it is' '
	expect_code 2 fsdp-diff four nowhere 2>err && grep "^fsdp-diff: nowhere" err &&
	cp -r two broken && ckpt_pieces broken $wte >piece &&
	read -r first count file offset <piece &&
	flip broken/$step/$file $((offset + 5)) &&
	expect_code 2 fsdp-diff four broken >out 2>err &&
	test_must_be_empty out && grep "$file" err && grep "$wte" err &&
	rm broken/$step/$file && expect_code 2 fsdp-diff broken four 2>err &&
	expect_code 2 fsdp-diff four two >/dev/full
'

test_expect_success 'quiet stops at the first difference' '
	expect_code 1 fsdp-diff -q four three >out 2>&1 && test_must_be_empty out &&
	expect_code 1 fsdp-diff -q four small
'

test_expect_success SAMPLES 'a recipe for flat parameters, for verify too' '
	set -- "$FSDP_SAMPLES"/checkpoints/*local*/manifest.json &&
	for manifest; do
		ckpt=${manifest%/*}/ckpt &&
		expect_code 2 fsdp-verify "$ckpt" 2>err && grep "recipe" err &&
		fsdp-verify --recipe "$manifest" "$ckpt" >out &&
		grep "^good: .* of torch read" out || return 1
	done
'

test_expect_success SAMPLES 'a recipe for flat parameters, of either side' '
	for manifest in $(grep -l "\"flat_recipe\"" \
			"$FSDP_SAMPLES"/checkpoints/*/manifest.json); do
		sample=$(dirname "$manifest")/ckpt
		fsdp-ls "$sample" >out 2>&1 || break
	done &&
	fsdp-convert --recipe "$manifest" "$sample" flat.h5 &&
	expect_code 2 fsdp-diff "$sample" flat.h5 2>err && grep "recipe" err &&
	fsdp-diff --recipe "$manifest" "$sample" flat.h5 &&
	fsdp-diff --recipe "$manifest" flat.h5 "$sample"
'

test_expect_success SAMPLES 'a recipe that leaves out the padding' '
	set -- "$FSDP_SAMPLES"/checkpoints/*local-orig*/manifest.json &&
	sed "s/_padding/_x/" "$1" >recipe.json &&
	expect_code 65 fsdp-ls --recipe recipe.json "${1%/*}/ckpt" 2>err &&
	grep "elements, the files have .*use_orig_params PyTorch pads" err
'

test_expect_success 'many tensors that one has alone, and the steps' '
	fsdp-convert -i "*/transformer.wte.weight" four few &&
	expect_code 1 fsdp-diff four few >out &&
	test "$(grep -c ": only in four$" out)" = 20 &&
	grep "^66 more tensors only in A (--json lists all)$" out &&
	grep "^they differ in 86 places; 3 tensors .*; A is step 100; B is step 100$" out &&
	expect_code 1 fsdp-diff --json four few >out &&
	test "$(grep -c "\"only in A\"" out)" = 86 && grep "\"step_b\": 100," out &&
	fsdp-convert --only model four w.safetensors &&
	fsdp-diff --only model w.safetensors four >out &&
	grep "^the same: .*(.*); B is step 100$" out
'

test_done
