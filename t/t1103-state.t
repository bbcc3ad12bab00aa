#!/bin/sh

test_description='save and load: other numbers of ranks, strategies and formats'

. "$SHARNESS_SH"

toy=$FSDP_BUILDDIR/t/shard-toy

# first W ARG..., rest W ARG...: two steps that save, two that begin there
first() {
	rm -rf ckpt && first_world=$1 && shift &&
	mpirun_np "$first_world" "$toy" -g 12 -n 2 -S ckpt "$@" >first.out &&
	head -n 3 whole >head.want && head -n 3 first.out >head.got &&
	test_cmp head.want head.got
}
rest() {
	rest_world=$1 && shift &&
	mpirun_np "$rest_world" "$toy" -g 12 -n 2 -L ckpt "$@" >rest.out &&
	grep "^loaded step 2 user {\"toy\":\[1,2,3\]}" rest.out &&
	tail -n 3 whole >tail.want && tail -n 3 rest.out >tail.got &&
	test_cmp tail.want tail.got
}

test_expect_success 'four steps without a stop' '
	"$toy" -g 12 -n 4 >whole && test $(wc -l <whole) = 6
'

test_expect_success 'one rank saves, one loads' '
	rm -rf ckpt && "$toy" -g 12 -n 2 -S ckpt >first.out &&
	test -d ckpt/step-00000001 && test "$(cat ckpt/latest)" = step-00000002 &&
	"$toy" -g 12 -n 2 -L ckpt >rest.out &&
	tail -n 3 whole >want && tail -n 3 rest.out >got && test_cmp want got
'

test_expect_success MPI '4 ranks full, then 3 grad-op, 6 hybrid:3, 1' '
	first 4 -s full && rest 3 -s grad-op && rest 6 -s hybrid:3 && rest 1
'

test_expect_success MPI '6 ranks hybrid:2, then 2 full, 4 none' '
	first 6 -s hybrid:2 && rest 2 -s full && rest 4 -s none
'

test_expect_success MPI '3 ranks none, then 8 full' '
	first 3 -s none && rest 8 -s full
'

test_expect_success MPI 'without a staged copy the same' '
	first 4 -s hybrid:2 --sync-save && rest 3 -s full
'

test_expect_success 'a NUL in what the program keeps' '
	rm -rf nul && "$toy" -n 1 -S nul --user "{\"a\": \"b\\u0000c\"}" &&
	"$toy" -n 0 -L nul >nul.out &&
	grep -F "loaded step 1 user {\"a\":\"b\\u0000c\"}" nul.out
'

test_expect_success 'a checkpoint of another step by its own name' '
	"$toy" -g 12 -n 3 -L ckpt/step-00000001 >one.out &&
	grep "^loaded step 1 " one.out &&
	tail -n 4 whole >want && tail -n 4 one.out >got && test_cmp want got
'

test_expect_success 'weights only: step and moments stay' '
	"$toy" -n 0 -L ckpt --weights-only >w.out &&
	"$toy" -n 0 -L ckpt >all.out &&
	w=$(tail -n 1 w.out) all=$(tail -n 1 all.out) &&
	set -- $w $all && test "$2" = "$5" && test "$3" != "$6"
'

test_expect_success 'nothing is there: named' '
	expect_code 65 "$toy" -L nowhere 2>err && grep nowhere err
'

test_expect_success MPI 'another shape: all ranks name the tensor' '
	MPIRUN_TIMEOUT=30 test_must_fail \
		mpirun_np 2 "$toy" -s full --odd -2 -L ckpt 2>err &&
	grep "rank 0: .*model/h\.0\.bias" err
'

test_expect_success 'a save that cannot be made ends with 74' '
	echo file >taken && expect_code 74 "$toy" -n 2 -S taken/x 2>err &&
	grep taken err
'

test_expect_success MPI 'on all ranks' '
	MPIRUN_TIMEOUT=60 test_must_fail mpirun_np 3 "$toy" -n 2 -S taken/x 2>err &&
	grep "^shard-toy: rank .*taken/x: cannot make" err
'

# tensors FILE TYPE: weights of the toy as a safetensors file, numbers that
# every type holds exactly, named as Hugging Face does
tensors() {
	"$PYTHON" - "$1" "$2" <<-\END
	import json, sys
	import numpy as np
	shapes = {"wte.weight": (37, 13), "ln_f.weight": (13,),
	          "h.0.weight": (7, 129), "h.0.rotary": (33,), "h.0.bias": (5,),
	          "h.0.scale": (), "h.1.tiny": (3,), "h.1.none": (0, 4),
	          "shared.weight": (11, 17, 2), "h.2.weight": (93, 211),
	          "still.table": (19,)}
	data, header = b"", {}
	for k, (name, shape) in enumerate(shapes.items()):
	    n = int(np.prod(shape))
	    x = ((np.arange(n) * 7 + k) % 255 - 127).astype(np.float32) / 2**14
	    raw = {"F32": lambda: x,
	           "F16": lambda: x.astype(np.float16),
	           "BF16": lambda: (x.view(np.uint32) >> 16).astype(np.uint16),
	           "F64": lambda: x.astype(np.float64)}[sys.argv[2]]().tobytes()
	    header[name] = {"dtype": sys.argv[2], "shape": list(shape),
	                    "data_offsets": [len(data), len(data) + len(raw)]}
	    data += raw
	text = json.dumps(header).encode()
	with open(sys.argv[1], "wb") as f:
	    f.write(len(text).to_bytes(8, "little") + text + data)
	END
}

test_expect_success PYTHON_H5PY 'bf16 and fp16 weights are widened' '
	for type in F32 F16 BF16; do
		tensors $type.safetensors $type &&
		"$toy" -n 0 -L $type.safetensors --weights-only >$type.out ||
		return 1
	done &&
	tail -n 1 F32.out >want &&
	tail -n 1 F16.out | test_cmp want - && tail -n 1 BF16.out | test_cmp want -
'

test_expect_success PYTHON_H5PY,MPI 'on many ranks too' '
	mpirun_np 5 "$toy" -s full -n 0 -L BF16.safetensors --weights-only >out &&
	tail -n 1 out | test_cmp want -
'

test_expect_success PYTHON_H5PY 'fp64 is not narrowed: the cure is named' '
	tensors F64.safetensors F64 &&
	expect_code 2 "$toy" -n 0 -L F64.safetensors --weights-only 2>err &&
	grep "fsdp-convert --cast f32" err
'

test_expect_success PYTHON_H5PY 'weights alone are no state to go on from' '
	expect_code 65 "$toy" -n 0 -L F32.safetensors 2>err &&
	grep "only the weights can be loaded" err
'

test_done
