#!/bin/sh

test_description="llm.c's checkpoints, written: from others, and back to them"

. "$SHARNESS_SH"

hf="$FSDP_SAMPLES/checkpoints/hf-gpt2-sharded-a/ckpt"
llmc="$FSDP_SAMPLES/checkpoints"

# What a state says beside its arrays.
position="--set rng_state=1337 --set current_shard_idx=3"
position="$position --set current_sample_idx=18446744073709551615"

# words FILE FIRST COUNT: of the header, from word FIRST on.
words() {
	od -An -v -td4 -w4 -j $(($2 * 4)) -N $(($3 * 4)) "$1" | tr -d ' ' |
		tr '\n' ' '
}

# refused CODE TEXT OPTION... SOURCE: with a message that holds TEXT.
refused() {
	code=$1 text=$2 && shift 2 &&
		expect_code "$code" fsdp-convert --to llmc "$@" no 2>err &&
		grep -F -e "$text" err && test ! -e no
}

test_expect_success 'make checkpoints' '
	ckpt_make --vocab 300 made && fsdp-convert --to hdf5-file -i "model/tr*" \
		-i "optim/*" -x model/lm_head.weight made gpt2.h5 >out
'

test_expect_success 'ours to llm.c, of 4 ranks, and back' '
	fsdp-convert --to llmc -w 4 --rules gpt2-llmc --set num_heads=4 \
		--set vocab_size=300 $position gpt2.h5 four >out &&
	ls four >list && line_count 6 list && test ! -s four/DONE_00000100 &&
	test "$(words four/model_00000100.bin 0 8)" = \
		"20240326 3 32 300 2 4 64 384 " &&
	test "$(words four/state_00000100_00003.bin 0 11)" = \
		"20240527 1 4 3 0 0 0 0 0 0 100 " &&
	test "$(words four/state_00000100_00003.bin 20 14)" = \
		"1340 0 1340 0 0 0 0 0 0 0 3 0 -1 -1 " &&
	fsdp-verify four &&
	fsdp-convert --to hdf5-file --rules reverse:gpt2-llmc four back.h5 >out &&
	fsdp-diff gpt2.h5 back.h5
'

test_expect_success PYTHON_H5PY 'each rank has its part of each layer' '
	"$PYTHON" - gpt2.h5 four <<-\EOF
	import sys
	import h5py
	import numpy as np
	source, target = h5py.File(sys.argv[1], "r"), sys.argv[2]
	blocks = [("ln_1.weight", 0), ("ln_1.bias", 0), ("attn.c_attn.weight", 1),
	          ("attn.c_attn.bias", 0), ("attn.c_proj.weight", 1),
	          ("attn.c_proj.bias", 0), ("ln_2.weight", 0), ("ln_2.bias", 0),
	          ("mlp.c_fc.weight", 1), ("mlp.c_fc.bias", 0),
	          ("mlp.c_proj.weight", 1), ("mlp.c_proj.bias", 0)]
	def arrays(kind):
	    get = lambda name: source[f"{kind}/transformer.{name}"][:]
	    yield [np.pad(get("wte.weight"), ((0, 84), (0, 0)))]
	    yield [get("wpe.weight")]
	    for name, turned in blocks:
	        layers = [get(f"h.{i}.{name}") for i in range(2)]
	        yield [x.T if turned else x for x in layers]
	    yield [get("ln_f.weight")]
	    yield [get("ln_f.bias")]
	def of_rank(kind, rank):
	    parts = []
	    for layers in arrays(kind):
	        for x in layers:
	            n = x.size // 4
	            parts.append(x.reshape(-1)[rank * n:(rank + 1) * n].tobytes())
	    return b"".join(parts)
	model = b"".join(x.tobytes() for layers in arrays("model") for x in layers)
	with open(target + "/model_00000100.bin", "rb") as f:
	    assert f.read()[1024:] == model
	for rank in range(4):
	    with open(f"{target}/state_00000100_{rank:05d}.bin", "rb") as f:
	        state = f.read()[1024:]
	    assert state == (of_rank("optim/exp_avg", rank) +
	                     of_rank("optim/exp_avg_sq", rank)), rank
	EOF
'

test_expect_success 'for another number of ranks the state says where it stands' '
	refused 2 "give it with --set rng_state=N --set current_shard_idx=N --set current_sample_idx=N" \
		-w 2 four &&
	fsdp-convert --to llmc -w 2 $position four two >out &&
	fsdp-convert --to llmc -w 4 $position two again >out &&
	diff -r four again &&
	fsdp-convert --to llmc -w 1 $position two one >out &&
	fsdp-diff -i "[mpv].*" two one &&
	refused 78 "cannot divide" -w 7 $position four
'

test_expect_success 'parameters alone, in bf16, are a model of version 5' '
	fsdp-convert --to llmc --only model --cast bf16 --rules gpt2-llmc \
		--set num_heads=4 --set vocab_size=300 gpt2.h5 half >out &&
	ls half >list && line_count 2 list &&
	test "$(words half/model_00000100.bin 0 2)" = "20240326 5 " &&
	fsdp-convert --to hdf5-file --cast bf16 -i "model/*" gpt2.h5 want.h5 &&
	fsdp-convert --to hdf5-file --rules reverse:gpt2-llmc half have.h5 &&
	fsdp-diff want.h5 have.h5
'

test_expect_success 'a cast is of parameters: state stays what it is' '
	fsdp-convert --to llmc -w 4 --cast bf16 four cast >out &&
	fsdp-ls cast "[pmv]*.wte" >list && grep "params.wte *bf16" list &&
	grep "m.wte *f32" list && fsdp-diff -i "[mv].*" four cast
'

test_expect_success 'what llm.c has no place for is named' '
	set -- --rules gpt2-llmc --set vocab_size=300 --set num_heads=4 $position &&
	refused 2 "tensor model/temperature is none of llm.c" "$@" made &&
	refused 2 "rules gpt2-llmc gives" gpt2.h5 &&
	refused 2 "set num_heads=N --set vocab_size=N --set rng_state=N" --rules gpt2-llmc gpt2.h5 &&
	refused 2 "set vocab_size=N" --rules gpt2-llmc --set n_head=4 gpt2.h5 &&
	refused 2 "are no model" "$@" --set num_heads=5 gpt2.h5 &&
	refused 2 "are no model" "$@" --set vocab_size=385 gpt2.h5 &&
	refused 2 "no place for lr" "$@" --set lr=1 gpt2.h5 &&
	refused 2 "keeps m and v together" "$@" -x "v.*" gpt2.h5 &&
	refused 2 "tensor m.lnfb is missing" "$@" -x m.lnfb gpt2.h5 &&
	refused 2 "params.fcb is missing" "$@" -x "params.fcb" gpt2.h5 &&
	refused 2 "is there for 0 ranks, not for 1" "$@" \
		--set should_shuffle=true gpt2.h5 &&
	refused 2 "is no NAME=VALUE" --set num_heads gpt2.h5 &&
	refused 2 "is no JSON" --set num_heads=four gpt2.h5
'

for sample in llmc-fp32-z2-a llmc-fp32-z4-a; do
	test_expect_success SAMPLES "$sample: the same files again" '
		cp -r "$llmc/$sample/ckpt" "$sample" &&
		fsdp-convert --to llmc -w $(ls "$sample"/state_* | wc -l) "$sample" \
			same-"$sample" &&
		diff -r "$sample" same-"$sample" &&
		fsdp-convert -w 3 "$sample" "$sample".ours >out &&
		fsdp-convert --to llmc -w $(ls "$sample"/state_* | wc -l) \
			"$sample".ours back-"$sample" &&
		diff -r "$sample" back-"$sample"
	'
done

test_expect_success SAMPLES 'the order of shuffled data is of so many ranks' '
	fsdp-ls llmc-fp32-z4-a "shuffle.3" &&
	refused 2 "is there for 4 ranks, not for 2" -w 2 $position \
		llmc-fp32-z4-a &&
	fsdp-convert --to llmc -w 2 -x "shuffle.*" $position \
		--set should_shuffle=false llmc-fp32-z4-a calm >out &&
	test "$(words calm/state_00000123_00001.bin 2 4)" = "2 1 0 0 "
'

test_expect_success SAMPLES 'Hugging Face to llm.c and back' '
	fsdp-convert --to llmc --rules gpt2-llmc "$hf" from-hf >out &&
	test "$(words from-hf/model_00000000.bin 0 8)" = \
		"20240326 3 32 257 2 2 48 384 " &&
	fsdp-convert --only model --rules reverse:gpt2-llmc from-hf \
		back.safetensors >out &&
	fsdp-diff "$hf" back.safetensors
'

# text CHECKPOINT: what the model writes.
text() {
	run_timeout 60 fsdp-train --init-from "$1" --sample "1 2 3" --tokens 30 \
		2>/dev/null
}

test_expect_success SAMPLES 'the same model: it writes the same text' '
	fsdp-convert --to safetensors --rules reverse:gpt2-llmc from-hf model >out &&
	test -s model/config.json && text model >ours && text "$hf" >theirs &&
	test -s ours && test_cmp theirs ours
'

test_done
