#!/bin/sh

test_description='state dicts with odd things in them, by PyTorch'

. "$SHARNESS_SH"

want_torch 'import torch'

test_expect_success TORCH 'made by PyTorch' '
	mkdir zero plain beside ranks models && "$FSDP_TORCH_PYTHON" -W ignore - <<-\EOF
	import torch
	def save(name, **state):
	    torch.save(state, name + ".pt")
	w = torch.ones(2)
	quant = torch.quantize_per_tensor(w, 0.5, 0, torch.qint8)
	save("quant", w=w, bad=quant)
	save("sparse", w=w, bad=torch.eye(2).to_sparse())
	save("inner", w=w, bad=(1, torch.eye(2).to_sparse()))
	save("storage", w=w, bad=torch.ones(2).storage())
	save("nul", w=w, s="a\0b")
	save("none")
	save("keys", w=w, d={(0, 1): w + 1, b"x": 2}, n={"a\0b": w + 2})
	save("twice-1", w=w, d={1: w, "1": w + 1})
	save("twice-2", w=w, d={1: w + 1, "1": w})
	torch.save({"a.b": w, "c": w, "a": {"b": w + 1}}, "twice-3.pt")
	torch.save({"c": w, "a.b": w, "a": {"b": 5}}, "twice-4.pt")
	for number, name in enumerate(("", "_1", "_fsdp_2", "_12")):
	    save("models/pytorch_model" + name, w=w + number)
	for rank in 0, 1:
	    save(f"ranks/model_world_size_2_rank_{rank}", x=w, y=w if rank == 0
	         else w + 1, z=w)
	save("list", l=[{"a": w}, {}, {"a": w + 1}])
	save("beside/model", w=w)
	torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), "beside/bad.pt")
	save("values", a=1, b={"c": "x"})
	save("zero/mp_rank_00_model_states", module={"w": w}, buffer_names=[],
	     param_shapes=[{"w": w.shape}], t=torch.arange(3), step=(w, 4))
	adam = {"step": 1, "exp_avg": w, "exp_avg_sq": w}
	save("plain/mp_rank_00_model_states", module={"w": w}, optimizer={
	     "state": {0: {"exp_avg": w + 1}}, "param_groups": [{"lr": 0.5}]})
	save("zero/zero_pp_rank_0_mp_rank_00_optim_states", optimizer_state_dict={
	     "zero_stage": 2, "partition_count": 1, "group_paddings": [0],
	     "single_partition_of_fp32_groups": [w],
	     "base_optimizer_state": {"state": {0: adam},
	                              "param_groups": [{"params": [0]}]}})
	if not torch.__version__.startswith("1."):
	    import torch.distributed.checkpoint as dcp
	    half = torch.ones(3, dtype=torch.complex32)
	    save("half", bad=half, w=w)
	    dcp.save({"bad": half, "w": w}, checkpoint_id="half", no_dist=True)
	EOF
'

# not_read WORD CKPT: the rest of it is, and "bad" goes nowhere unseen.
not_read() {
	fsdp-ls "$2" >out && grep "^w  *f32" out && grep "^bad .*unread.*$1" out &&
	fsdp-verify "$2" >out && grep "^1 value cannot be read" out &&
	expect_code 2 fsdp-convert "$2" "$2.h5" 2>err && test ! -e "$2.h5" &&
	grep "$1.*--exclude 'bad'" err &&
	expect_code 1 fsdp-diff "$2" "$2" >out && grep "$1" out &&
	fsdp-convert --exclude bad "$2" "$2.h5" &&
	fsdp-diff --exclude bad "$2" "$2.h5"
}

test_expect_success TORCH 'what is not read stays alone' '
	not_read quantized quant.pt && not_read sparse sparse.pt &&
	not_read sparse inner.pt && not_read storage storage.pt &&
	if test -e half.pt # PyTorch 1 cannot save it
	then not_read complex32 half.pt && not_read complex32 half
	fi
'

test_expect_success TORCH 'a file of another kind beside the weights' '
	fsdp-ls beside >out && grep "^model.w  *f32" out &&
	grep "^bad .*unread" out &&
	expect_code 2 fsdp-convert beside beside.h5 2>err &&
	grep "exclude .bad" err && fsdp-convert -x bad beside beside.h5 &&
	expect_code 2 fsdp-ls beside/bad.pt
'

test_expect_success TORCH 'keys that no name can have' '
	fsdp-ls keys.pt >out && grep "^d .*tuple.*0, 1" out &&
	fsdp-convert --to hdf5 keys.pt keys && fsdp-diff keys.pt keys &&
	fsdp-convert keys keys-2.pt && fsdp-diff keys.pt keys-2.pt &&
	"$FSDP_TORCH_PYTHON" - <<-\EOF
	import torch
	have = torch.load("keys-2.pt")
	assert torch.equal(have["d"][(0, 1)], torch.full((2,), 2.0))
	assert have["d"][b"x"] == 2
	assert torch.equal(have["n"]["a\0b"], torch.full((2,), 3.0))
	EOF
'

test_expect_success TORCH 'a name that two keys give is told, not one of them lost' '
	for i in 1 2 3 4; do
		expect_code 65 fsdp-ls twice-$i.pt 2>err &&
		grep "the name is there twice" err || return 1
	done
'

test_expect_success TORCH 'what is tied in one rank alone is not tied' '
	fsdp-ls ranks >out && grep "^model.z is tied to model.x" out && ! grep "y is" out &&
	fsdp-ls --values rank_1.model.y ranks >out && grep "2  *2" out &&
	fsdp-ls --values rank_0.model.y ranks >out && grep "1  *1" out
'

test_expect_success TORCH 'the second model of accelerate is none of the first' '
	fsdp-ls models >out && for name in model model_1 model_2 model_12; do
		grep "^$name\.w  *f32" out || return 1
	done &&
	fsdp-ls --values model_1.w models >out && grep "2  *2" out
'

test_expect_success TORCH 'what lies beside safetensors is told' '
	mkdir state && cp list.pt state/optimizer.pt &&
	fsdp-convert models/pytorch_model.pt state/model.safetensors &&
	fsdp-ls state >out 2>err && grep "^w  *f32" out &&
	grep "warning: state: optimizer.pt is not read" err &&
	fsdp-verify state &&
	fsdp-convert state state.h5 >out && grep "^note: state: optimizer.pt" out &&
	cp list.pt state/rng.pth && fsdp-ls state 2>err &&
	grep "warning: state: optimizer.pt and 1 more are not read" err &&
	fsdp-ls state/model.safetensors 2>err && test_must_be_empty err
'

test_expect_success TORCH 'models of accelerate in safetensors come with the rest' '
	mkdir bin && "$FSDP_TORCH_PYTHON" - <<-\EOF &&
	import torch
	w = torch.arange(6.0).view(2, 3)
	group = {"lr": 0.5, "params": [0]}
	def save(name, **state):
	    torch.save(state, "bin/" + name)
	save("pytorch_model.bin", **{"a.w": w, "b.w": w, "t": (1, w + 3)})
	save("pytorch_model_1.bin", **{"a.w": w + 1})
	for number, name in enumerate(("optimizer.bin", "optimizer_1.bin")):
	    save(name, state={0: {"exp_avg": w + 4 + number}}, param_groups=[group])
	save("scheduler.bin", last_epoch=3)
	save("random_states_0.pkl", step=0, torch_manual_seed=torch.get_rng_state())
	EOF
	mkdir mixed && cp bin/[!p]* mixed && for number in "" _1; do
		fsdp-convert bin/pytorch_model$number.bin mixed/model$number.safetensors ||
		return 1
	done &&
	fsdp-ls mixed >out 2>err && test_must_be_empty err && grep "^mixed: torch" out &&
	grep "^model.b.w is tied to model.a.w" out && grep "^scheduler.last_epoch  *3" out &&
	fsdp-diff bin mixed && fsdp-verify mixed &&
	fsdp-convert --only model mixed only.h5 && fsdp-ls only.h5 >out &&
	grep "^model_1.a.w" out && ! grep "^optim" out &&
	for to in h5 pt safetensors; do
		fsdp-convert mixed mixed.$to && fsdp-diff bin mixed.$to || return 1
	done &&
	"$FSDP_TORCH_PYTHON" - <<-\EOF
	import torch
	have = torch.load("mixed.pt")
	assert set(have["model"]) == {"a.w", "b.w", "t"}, have["model"]
	assert torch.equal(have["model_1"]["a.w"], torch.arange(1.0, 7).view(2, 3))
	moment = have["optimizer_1"]["state"][0]["exp_avg"]
	assert torch.equal(moment, torch.arange(5.0, 11).view(2, 3))
	EOF
'

test_expect_success TORCH 'which may be sharded, or there in both forms' '
	cp -r mixed both && cp bin/pytorch_model.bin both && fsdp-diff both mixed &&
	fsdp-ls both 2>err && grep "warning: both: pytorch_model.bin is not read" err &&
	fsdp-convert --to safetensors --shard-size 24B bin/pytorch_model.bin shards &&
	cp -r mixed cut && rm cut/model.safetensors && cp shards/* cut &&
	fsdp-ls cut >out 2>err && test_must_be_empty err &&
	fsdp-diff bin cut && fsdp-verify cut &&
	rm cut/model-00001-of-*.safetensors && expect_code 65 fsdp-ls cut 2>err &&
	grep "model-00001.*missing" err &&
	truncate -s -1 both/model_1.safetensors && expect_code 65 fsdp-ls both 2>err &&
	grep "both/model_1.safetensors.*cut short" err
'

test_expect_success TORCH 'a part that is one tensor or value has the name of its file' '
	mkdir parts && cp bin/scheduler.bin parts && "$FSDP_TORCH_PYTHON" - <<-\EOF &&
	import torch
	w = torch.arange(3.0)
	torch.save(w, "parts/mean.pt")
	torch.save((1, w + 1), "parts/pair.pt")
	torch.save([{"a": w + 2}], "parts/list.pt")
	EOF
	fsdp-ls parts >out && grep "^mean  *f32" out && grep "^pair.1  *f32" out &&
	grep "^list.0.a  *f32" out && grep "^pair  *..\$tuple" out &&
	fsdp-convert parts parts.pt && fsdp-diff parts parts.pt &&
	"$FSDP_TORCH_PYTHON" - <<-\EOF
	import torch
	have = torch.load("parts.pt")
	assert set(have) == {"mean", "pair", "list", "scheduler"}, have
	assert torch.equal(have["pair"][1], torch.arange(1.0, 4))
	assert torch.equal(have["list"][0]["a"], torch.arange(2.0, 5))
	EOF
'

test_expect_success TORCH 'what accelerate has written is read or told, whatever became of it' '
	for dir in bin mixed; do
		for file in optimizer.bin optimizer_1.bin scheduler.bin random_states_0.pkl; do
			rm -rf bad && cp -r $dir bad && : >bad/$file &&
			expect_code 65 fsdp-ls bad 2>err && grep "bad/$file" err &&
			printf "not torch.save" >bad/$file &&
			expect_code 65 fsdp-ls bad 2>err && grep "bad/$file" err || return 1
		done
	done &&
	cp -r bin foreign && echo "a b c" >foreign/vocab.bin && fsdp-diff bin foreign
'

test_expect_success 'the other byte order is refused with its cure' '
	python3 - <<-\EOF &&
	import zipfile
	with zipfile.ZipFile("big.pt", "w") as z:
	    z.writestr("big/data.pkl", b"\x80\x02}.")
	    z.writestr("big/byteorder", "big")
	    z.writestr("big/version", "3\n")
	EOF
	expect_code 2 fsdp-ls big.pt 2>err &&
	grep "big-endian machine: .*torch.save() it again" err
'

test_expect_success TORCH 'a list of which a distributed checkpoint has parts' '
	fsdp-convert --to dcp -x l.1 list.pt list && fsdp-diff -x l.1 list.pt list &&
	fsdp-convert --to dcp list list-2 && fsdp-diff list list-2 &&
	fsdp-convert --to hdf5 list-2 list-3 && fsdp-diff list list-3 &&
	expect_code 2 fsdp-convert list list-4.pt 2>err && test ! -e list-4.pt &&
	grep "the list .l. would lack element 1, .*--exclude .l\.\*." err
'

test_expect_success TORCH 'a NUL in a text' '
	for to in hdf5 hdf5-file safetensors dcp dcp-hf; do
		fsdp-convert --to $to nul.pt nul-$to && fsdp-verify nul-$to &&
		fsdp-convert --to hdf5 nul-$to nul-$to-back &&
		fsdp-diff nul.pt nul-$to-back || return 1
	done
'

test_expect_success 'a NUL in the metadata of safetensors' '
	safetensors nul.safetensors "{\"__metadata__\":{\"a\":\"x\\u0000y\"},\"w\":{
		\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}" abcd &&
	fsdp-convert nul.safetensors again.safetensors &&
	grep -a "\"a\":\"x.u0000y\"" again.safetensors &&
	fsdp-convert --to hdf5 nul.safetensors nul-st && fsdp-verify nul-st
'

test_expect_success TORCH 'no tensor at all' '
	for from in none values; do
		for to in hdf5 hdf5-file safetensors dcp dcp-hf torch; do
			at=$from-$to
			fsdp-convert --to $to $from.pt $at &&
			fsdp-verify $at && fsdp-diff $from.pt $at || return 1
		done
	done
'

test_expect_success TORCH 'tensors that a training program left with DeepSpeed' '
	fsdp-ls zero >out && grep "^client_state.t  *i64" out &&
	for to in hdf5 torch universal safetensors; do
		fsdp-convert --to $to zero zero-$to && fsdp-verify zero-$to &&
		fsdp-diff zero zero-$to || return 1
	done
'

test_expect_success TORCH 'DeepSpeed without ZeRO: the optimizer is there whole' '
	fsdp-ls plain >out && grep "^module.w  *f32" out &&
	grep "^optimizer.state.0.exp_avg  *f32" out &&
	grep "^optimizer.param_groups.0.lr  *0.5" out &&
	fsdp-convert --to hdf5 plain plain.h5 && fsdp-diff plain plain.h5
'

test_done
