#!/bin/sh

test_description='fsdp-train --replay: as PyTorch computes it'

. "$SHARNESS_SH"

test_have_prereq SAMPLES || skip_all 'no samples of a recorded run'
ref=$FSDP_SAMPLES/training-reference/gpt2-tiny

test_expect_success 'alone: every quantity is within its tolerance' '
	run_timeout 60 fsdp-train --replay "$ref" >out &&
	tail -n 12 out &&
	grep "^191 of 191 quantities are within" out ||
	{ grep OUTSIDE out; tail -n 3 out; false; }
'

for case in '2 full' '4 full' '4 hybrid:2' '2 grad-op' '2 none' '3 full' \
	'8 full'; do
	set -- $case
	test_expect_success MPI "$1 ranks, $2" "
		mpirun_np $1 fsdp-train --replay \"\$ref\" --strategy $2 >actual &&
		sed -n '/^quantity/,\$p' out >want &&
		sed -n '/^quantity/,\$p' actual >got &&
		test_cmp want got
	"
done

test_expect_success 'bf16 is near' '
	run_timeout 60 fsdp-train --replay "$ref" --dtype bf16 >out &&
	tail -n 12 out
'

test_expect_success PYTHON_H5PY 'a record that is not ours is outside' '
	cp -r "$ref" other && chmod -R u+w other &&
	"$PYTHON" -c "
import json
meta = json.load(open(\"other/meta.json\"))
meta[\"loss\"][1] *= 1 + 1e-5
json.dump(meta, open(\"other/meta.json\", \"w\"))" &&
	expect_code 1 run_timeout 60 fsdp-train --replay other >out &&
	grep "^loss  *step 1 .*OUTSIDE" out &&
	grep "^190 of 191 quantities" out
'

test_expect_success PYTHON_H5PY 'another learning rate is outside' '
	cp "$ref"/meta.json other/ && chmod u+w other/meta.json &&
	sed -i "s/\"lr\": 0.001/\"lr\": 0.0011/" other/meta.json &&
	expect_code 1 run_timeout 60 fsdp-train --replay other >out &&
	grep "weight after .*OUTSIDE" out
'

test_expect_success 'what cannot be replayed is said' '
	expect_code 78 run_timeout 60 fsdp-train \
		--replay "$FSDP_SAMPLES/training-reference/llama-tiny" 2>err &&
	grep "models of type llama cannot be built" err &&
	expect_code 65 run_timeout 60 fsdp-train --replay nowhere 2>err &&
	grep nowhere err &&
	cp "$ref"/meta.json other/ && chmod u+w other/meta.json &&
	sed -i "s/\"seq\": 32/\"seq\": 31/" other/meta.json &&
	expect_code 65 run_timeout 60 fsdp-train --replay other 2>err &&
	grep "tokens are not int32 of shape 3 x 8 x 2 x 32" err &&
	head -c 3000 "$ref"/weights.safetensors >other/weights.safetensors &&
	cp "$ref"/meta.json other/ &&
	expect_code 65 run_timeout 60 fsdp-train --replay other 2>err &&
	grep "weights.safetensors" err
'

test_done
