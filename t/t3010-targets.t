#!/bin/sh

test_description='targets of fsdp-convert: grids of ranks'

. "$SHARNESS_SH"

step='step-00000100'
h0=model/transformer.h.0

want_torch 'from torch.distributed.checkpoint import load'

# pieces CKPT TENSOR: "FIRST COUNT FILE" of each.
pieces() {
	ckpt_pieces "$1" "$2" | cut -d' ' -f1-3
}

test_expect_success 'make a checkpoint' '
	ckpt_make four && cp -r four before
'

test_expect_success 'a grid of 2 times 2 ranks, weights split in both ways' '
	fsdp-convert --to dcp --layout dp=2,tp=2 --split "*.c_attn.weight=1" \
		--split "*.c_proj.weight=-2" four grid >out &&
	grep "^grid: dcp, 4 ranks, chunk, from " out &&
	fsdp-diff four grid && fsdp-verify grid
'

# [64, 192], 96 columns a rank, of 32 rows each.
test_expect_success 'columns: of each row the first half is in rank 0 or 2' '
	pieces grid $h0.attn.c_attn.weight >have &&
	printf "%s %s %s\n" 0 3072 __0_0.distcp 96 3072 __1_0.distcp \
		6144 3072 __2_0.distcp 6240 3072 __3_0.distcp >want &&
	test_cmp want have
'

# [64, 64]: rows 0-31 are for the first of each pair, 0-15 of them in rank 0.
test_expect_success 'rows: those of a pair lie beside each other' '
	pieces grid $h0.attn.c_proj.weight >have &&
	printf "%s %s %s\n" 0 1024 __0_0.distcp 1024 1024 __2_0.distcp \
		2048 1024 __1_0.distcp 3072 1024 __3_0.distcp >want &&
	test_cmp want have
'

test_expect_success 'what is not split is in the first of each pair' '
	pieces grid $h0.ln_1.weight >have &&
	printf "%s %s %s\n" 0 32 __0_0.distcp 32 32 __2_0.distcp >want &&
	test_cmp want have
'

test_expect_success 'more ranks than rows or columns, and none across' '
	fsdp-convert --to dcp --world 77 --layout tp=7 \
		--split "model/*.c_*.weight=1" --split "*.c_*.weight=0" \
		--split "*.ln_?.*=-1" grid odd &&
	fsdp-diff four odd && fsdp-verify odd &&
	fsdp-convert --to dcp --layout dp=3,tp=1 odd rows &&
	fsdp-diff four rows &&
	fsdp-convert --to dcp -w 3 four rows3 &&
	pieces rows3 $h0.mlp.c_fc.weight >want &&
	pieces rows $h0.mlp.c_fc.weight >have && test_cmp want have
'

test_expect_success 'with a cast, little memory, one thread' '
	fsdp-convert --to dcp --cast bf16 -j 1 --max-mem 1MiB \
		--layout dp=2,tp=3 --split "*.weight=-1" four half &&
	fsdp-convert --to hdf5 --cast bf16 four half-flat &&
	fsdp-diff half half-flat
'

test_expect_success 'back to flat units' '
	fsdp-convert --to hdf5 -w 4 --strategy full odd back &&
	fsdp-verify back && fsdp-diff four back
'

test_expect_success TORCH 'PyTorch reads the same from grid and rows' '
	"$FSDP_TORCH_PYTHON" - grid rows <<-\EOF
	import sys
	import torch
	import torch.distributed.checkpoint as dcp
	def load(path):
	    reader = dcp.FileSystemReader(path)
	    tensors = {}
	    for name, entry in reader.read_metadata().state_dict_metadata.items():
	        if type(entry).__name__ == "TensorStorageMetadata":
	            tensors[name] = torch.full(entry.size, 77).to(entry.properties.dtype)
	    dcp.load(tensors, storage_reader=reader)
	    return tensors
	a, b = (load(path) for path in sys.argv[1:])
	assert len(a) > 50 and a.keys() == b.keys()
	assert all(torch.equal(a[name], b[name]) for name in a)
	EOF
'

test_expect_success 'a damaged source is found, whatever the layout' '
	cp -r four bad && set -- $(ckpt_pieces bad $h0.attn.c_attn.weight) &&
	flip bad/$step/$3 $(($4 + 100)) &&
	expect_code 65 fsdp-convert --to dcp --layout dp=2,tp=2 \
		--split "*.c_attn.weight=1" bad no 2>err &&
	grep "$h0.attn.c_attn.weight elements" err && test ! -e no
'

# refused CODE TEXT ARGUMENT...
refused() {
	code=$1 text=$2
	shift 2
	expect_code "$code" fsdp-convert "$@" four no 2>err &&
	grep -e "^fsdp-convert: .*$text" err && test ! -e no
}

test_expect_success 'layouts that make no sense are refused, with the cure' '
	refused 78 "choose dcp" --layout dp=2,tp=2 &&
	refused 78 "3 ranks are not in rows of 2" --to dcp -w 3 --layout tp=2 &&
	refused 65 "no tensor.s name fits .nothing=0." --to dcp \
		--layout tp=2 --split nothing=0 &&
	refused 2 "ln_1.bias has 1 dimensions: .*ln_1.bias=1" --to dcp \
		--layout tp=2 --split "*.ln_1.bias=1" &&
	refused 64 "such as dp=2,tp=4" --layout 2x2 &&
	refused 64 "such as dp=2,tp=4" --layout tp=2,tp=2 &&
	refused 64 "needs tp=T" --layout dp=2 &&
	refused 64 "more than 1000000 ranks" --layout dp=5000,tp=5000 &&
	refused 64 "2 times 2 ranks, --world for 3" -w 3 --layout dp=2,tp=2 &&
	refused 64 "needs --layout" --split "x=0" &&
	refused 64 "give PATTERN=DIMENSION" --layout tp=2 --split "x"
'

test_expect_success 'the source is as it was' '
	diff -r before four
'

test_done
