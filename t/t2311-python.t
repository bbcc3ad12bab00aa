#!/bin/sh

test_description='what we write, loaded by PyTorch, safetensors and h5py'

. "$SHARNESS_SH"

# Python with PyTorch, whatever else it has: "./dev check --torch" gives one.
: "${FSDP_TORCH_PYTHON:=python3}"
"$FSDP_TORCH_PYTHON" - >has.txt 2>&1 <<-\EOF
	import importlib, torch, numpy
	print("TORCH")
	for name in ("DCP torch.distributed.checkpoint.state_dict",
	             "DCP_HF torch.distributed.checkpoint.hf_storage",
	             "SAFETENSORS safetensors.torch", "H5PY h5py"):
	    name, module = name.split()
	    try:
	        importlib.import_module(module)
	        print(name)
	    except ImportError:
	        pass
	if hasattr(torch.serialization, "set_crc32_options"):
	    print("NO_CRC")
EOF
grep -q "^TORCH$" has.txt || skip_all "no PyTorch: run ./dev check --torch"
for lib in DCP DCP_HF SAFETENSORS H5PY NO_CRC; do
	grep -q "^$lib$" has.txt && test_set_prereq "$lib"
done

state() {
	run_timeout 300 "$FSDP_TORCH_PYTHON" "$FSDP_SRCDIR/t/torch-state.py" "$@"
}

test_expect_success 'PyTorch saves all that it can' '
	state make state.pt torch state.pt &&
	fsdp-convert --to dcp --world 3 state.pt dcp
'

test_expect_success 'each record of the checkpoint is what was saved' '
	state dcp dcp
'

test_expect_success DCP 'PyTorch loads it, whole and into shards of two ranks' '
	state load dcp ranks dcp
'

test_expect_success DCP 'boxes of a layout' '
	fsdp-convert --to dcp --layout dp=2,tp=2 --split "*.cube=2" \
		--split "*.odd=1" state.pt grid &&
	state dcp grid load grid ranks grid
'

test_expect_success 'through other formats, to the same checkpoint' '
	fsdp-convert --to hdf5 --world 4 dcp ours &&
	fsdp-convert --to hdf5-file ours one.h5 &&
	fsdp-convert --to dcp --world 2 one.h5 again &&
	state dcp again
'

test_expect_success DCP_HF,SAFETENSORS 'PyTorch loads safetensors shards' '
	fsdp-convert --to dcp-hf --world 3 --exclude "*complex128*" \
		--exclude "*e8m0*" dcp hf &&
	state hf hf
'

test_expect_success SAFETENSORS 'safetensors loads its file' '
	fsdp-convert --to safetensors --exclude "*complex128*" \
		--exclude "pair*" dcp one.safetensors &&
	state safetensors one.safetensors
'

test_expect_success H5PY 'h5py reads HDF5, whole and sharded' '
	state h5 one.h5 h5 ours/index.h5
'

test_expect_success NO_CRC 'a file without checksums, said to be unchecked' '
	"$FSDP_TORCH_PYTHON" - <<-\EOF &&
	import torch
	torch.serialization.set_crc32_options(False)
	torch.save({"a": torch.arange(5.), "b": torch.ones(2)}, "nocrc.pt")
	torch.serialization.set_crc32_options(True)
	torch.save(torch.load("nocrc.pt"), "crc.pt")
	EOF
	fsdp-diff nocrc.pt crc.pt && fsdp-verify nocrc.pt >out &&
	grep "no checksum covers" out && fsdp-convert nocrc.pt nocrc &&
	fsdp-diff nocrc crc.pt
'

test_expect_success 'tensors that are not plain are refused by their kind' '
	"$FSDP_TORCH_PYTHON" - <<-\EOF &&
	import torch
	ones = torch.ones(2, 2)
	for kind, t in (("quantized", torch.quantize_per_tensor(ones, 0.1, 0, torch.qint8)),
	                ("sparse", ones.to_sparse()), ("meta", ones.to("meta"))):
	    torch.save({"odd": t}, kind + ".pt")
	EOF
	for kind in quantized sparse meta; do
		fsdp-ls $kind.pt >list && grep "unread.*is a $kind tensor" list &&
		test_expect_code 2 fsdp-convert $kind.pt $kind 2>err &&
		grep "odd: is a $kind tensor" err && test ! -e $kind || return 1
	done
'

test_expect_success DCP,H5PY 'two ranks resume a model and its optimizer' '
	text_make text && run_timeout 60 fsdp-train $(tiny --steps 4) --save ckpt text &&
	fsdp-convert --to dcp --rules torch --world 3 ckpt own &&
	fsdp-convert --to hdf5-file ckpt own.h5 && state train own
'

test_done
