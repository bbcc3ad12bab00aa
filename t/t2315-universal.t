#!/bin/sh

test_description="DeepSpeed's universal checkpoints: written and read back"

. "$SHARNESS_SH"

want_torch 'import torch'

test_expect_success 'a checkpoint of master weights, states and weights' '
	python3 - <<-\EOF
	import json, struct
	tensors = {}
	for kind in "fp32", "exp_avg", "exp_avg_sq":
	    tensors[kind + ".up.weight"] = [2, 3]
	    tensors[kind + ".block/1.gain"] = []
	    tensors[kind + ".none"] = [0, 4]
	for name in "up.weight", "block/1.gain", "none":
	    tensors["step." + name] = []
	    tensors["module." + name] = tensors["fp32." + name]
	tensors["module.buffer"] = [5]
	at, header = 0, {"__metadata__": {
	    "module.tied": "module.up.weight", "format": "pt"}}
	for name, shape in tensors.items():
	    size = 4
	    for n in shape:
	        size *= n
	    header[name] = {"dtype": "F32", "shape": shape,
	                    "data_offsets": [at, at + size]}
	    at += size
	text = json.dumps(header).encode()
	with open("flat.safetensors", "wb") as f:
	    f.write(struct.pack("<Q", len(text)) + text)
	    f.write(struct.pack("<%df" % (at // 4), *range(at // 4)))
	EOF
	fsdp-ls flat.safetensors
'

test_expect_success 'is written with a file for each state, and is the same' '
	fsdp-convert --to universal flat.safetensors out && fsdp-verify out &&
	fsdp-diff flat.safetensors out &&
	tag=out/$(cat out/latest_universal) &&
	test -s $tag/mp_rank_00_model_states.pt &&
	test -s $tag/zero/optimizer_state.pt &&
	for name in up.weight block/1.gain none; do
		for state in fp32 exp_avg exp_avg_sq step; do
			python3 -m zipfile -t "$tag/zero/$name/$state.pt" || return 1
		done
	done
'

test_expect_success 'tied weights stay tied' '
	fsdp-ls out >list && grep "module.tied is tied to module.up.weight" list
'

test_expect_success TORCH 'PyTorch loads it as DeepSpeed does' '
	"$FSDP_TORCH_PYTHON" - "out/$(cat out/latest_universal)" <<-\EOF
	import sys, torch
	def load(name):
	    return torch.load(sys.argv[1] + "/" + name, weights_only=True)
	up = load("zero/up.weight/fp32.pt")
	assert up["param"].shape == (2, 3) and up["cat_dim"] == 0
	assert load("zero/block/1.gain/exp_avg.pt")["param"].shape == ()
	assert load("zero/none/exp_avg.pt")["param"].shape == (0, 4)
	assert load("zero/up.weight/step.pt").shape == ()
	model = load("mp_rank_00_model_states.pt")
	module = model["module"]
	assert torch.equal(module["tied"], module["up.weight"])
	assert module["tied"].data_ptr() == module["up.weight"].data_ptr()
	assert model["shared_params"] == {"tied": "up.weight"}
	assert model["param_shapes"][0]["up.weight"] == (2, 3)
	EOF
'

test_expect_success TORCH 'engines of all stages find what they ask for' '
	"$FSDP_TORCH_PYTHON" - <<-\EOF &&
	import torch
	groups = [{"lr": 0.5, "params": [0]}, {"lr": 0.25, "params": [1]}]
	torch.save({"fp32.a": torch.ones(2), "exp_avg.a": torch.ones(2),
	            "step.a": torch.tensor(7.0), "module.a": torch.ones(2),
	            "optimizer.param_groups": groups, "ds_version": "0.19.8",
	            "client_state.rng": torch.arange(5.0),
	            "dp_world_size": 2}, "settings.pt")
	EOF
	rm -rf two && fsdp-convert --to universal settings.pt two >told &&
	! grep "^note: DeepSpeed" told &&
	fsdp-verify two && fsdp-diff settings.pt two &&
	"$FSDP_TORCH_PYTHON" - "two/$(cat two/latest_universal)" <<-\EOF
	import sys, torch
	def load(name):
	    return torch.load(sys.argv[1] + "/" + name, weights_only=False)
	groups = [{"lr": 0.5, "params": [0]}, {"lr": 0.25, "params": [1]}]
	for name in "mp_rank_00", "zero_pp_rank_0_mp_rank_00":
	    model = load(name + "_model_states.pt")
	    assert torch.equal(model["module"]["a"], torch.ones(2))
	    assert torch.equal(model["rng"], torch.arange(5.0))
	    assert model["dp_world_size"] == 2
	optimizer = load("zero/optimizer_state.pt")
	assert optimizer["param_groups"] == groups
	assert optimizer["ds_version"] == "0.19.8"
	nested = optimizer["optimizer_state_dict"]
	assert nested["param_groups"] == groups
	assert torch.equal(nested["state"][0]["step"], torch.tensor(7.0))
	EOF
'

test_expect_success 'what engines ask for and the source lacks is told' '
	rm -rf out && fsdp-convert --to universal flat.safetensors out >told &&
	grep "^note: DeepSpeed.s engines do not load this without" told
'

test_expect_success 'what has no place is refused by name' '
	expect_code 2 fsdp-convert --to universal --rename exp_avg.none=other \
		flat.safetensors no 2>err &&
	grep "other cannot be written to a universal checkpoint" err &&
	expect_code 2 fsdp-convert --to universal -x "fp32.*" \
		flat.safetensors no 2>err &&
	grep "no tensor is named fp32.NAME" err && test ! -e no
'

test_expect_success 'a checkpoint of libfsdp, and back' '
	ckpt_make --strategy hybrid:2 four &&
	expect_code 2 fsdp-convert --to universal four no 2>err &&
	grep "no tensor is named fp32.NAME.*--rules universal" err &&
	expect_code 2 fsdp-convert --to universal --rules universal \
		-x "buffer/*" four no 2>err &&
	grep "fp32.lm_head.weight is another name of fp32.transformer.wte" err &&
	set -- -x "buffer/*" -x fp32.lm_head.weight &&
	expect_code 2 fsdp-convert --to universal --rules universal "$@" \
		four no 2>err &&
	grep "^fsdp-convert: fp32.[a-z]* has 0 of the 2 states .*--exclude" err &&
	set -- "$@" -x fp32.temperature -x fp32.adapters && test ! -e no &&
	fsdp-convert --to universal --rules universal "$@" four uni &&
	fsdp-ls uni >list && grep "^uni: universal, step 100$" list &&
	fsdp-verify uni && fsdp-convert -w 4 --rules reverse:universal uni again &&
	fsdp-diff -x "buffer/*" -x model/temperature -x model/adapters four again
'

test_expect_success TORCH 'engines of all stages load one of libfsdp' '
	ckpt_make --meta "{\"optimizer\": {\"name\": \"adamw\", \"lr\": 0.5,
		\"beta1\": 0.75, \"beta2\": 0.875, \"eps\": 0.125, \"step\": 100},
		\"param_groups\": [{\"weight_decay\": 0.25, \"params\": [\"a\"]},
		{\"weight_decay\": 0, \"params\": [\"b\"]}]}" ours &&
	rm -rf uni && fsdp-convert --to universal --rules universal \
		-x "buffer/*" -x fp32.lm_head.weight -x fp32.temperature \
		-x fp32.adapters ours uni >told && ! grep "^note: DeepSpeed" told &&
	fsdp-verify uni && "$FSDP_TORCH_PYTHON" - "uni/$(cat uni/latest_universal)" <<-\EOF
	import sys, torch
	def load(name):
	    return torch.load(sys.argv[1] + "/" + name, weights_only=False)
	model = load("zero_pp_rank_0_mp_rank_00_model_states.pt")
	assert model["global_steps"] == 100 and model["skipped_steps"] == 0
	assert model["dp_world_size"] == model["mp_world_size"] == 1
	optimizer = load("zero/optimizer_state.pt")
	assert optimizer["ds_version"]
	groups = optimizer["param_groups"]
	assert [g["weight_decay"] for g in groups] == [0.25, 0]
	assert groups[0]["lr"] == 0.5 and groups[0]["betas"] == (0.75, 0.875)
	nested = optimizer["optimizer_state_dict"]
	assert nested["param_groups"] == groups
	assert nested["state"][0]["step"] == 100
	step = load("zero/transformer.wte.weight/step.pt")
	assert torch.is_tensor(step) and step == 100
	EOF
'

test_expect_success 'a name never leaves the directory' '
	for name in ../up /up a/../../up . ..; do
		expect_code 2 fsdp-convert --to universal \
			--rename "fp32.none=fp32.$name" flat.safetensors no 2>err &&
		grep "cannot name a directory" err && test ! -e no || return 1
	done
'

test_expect_success 'a file that is missing is named' '
	rm "out/$(cat out/latest_universal)/zero/up.weight/exp_avg.pt" &&
	expect_code 65 fsdp-ls out 2>err && grep "up.weight" err
'

if test_have_prereq SAMPLES; then
	for name in $(samples ds); do
		test_expect_success "$name" '
			chain $name universal "hdf5 --world 2" universal torch \
				universal
		'
	done

	test_expect_success 'none of it is refused' '
		test ! -e refused
	'
fi

test_done
