#!/bin/sh

test_description="PyTorch's distributed checkpoints: written, read, damaged"

. "$SHARNESS_SH"

want_torch 'from torch.distributed.checkpoint import load'

# flip FILE OFFSET: another byte there.
flip() {
	b=$(od -An -tu1 -j "$2" -N 1 "$1") &&
	printf "\\$(printf %o $((b ^ 1)))" |
		dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}

# place TENSOR: "FILE OFFSET" of its first piece.
place() {
	fsdp-ls --long "$1" | awk -v t="$2" '$1 == t { print $(NF - 1), $NF; exit }'
}

test_expect_success 'make a checkpoint' '
	ckpt_make four
'

for world in 1 3 7; do
	test_expect_success "to a distributed checkpoint of $world ranks and back" '
		fsdp-convert --to dcp --world '$world' four dcp-'$world' >out &&
		test $(ls dcp-'$world' | wc -l) = '$world' &&
		test -s dcp-'$world'/.metadata &&
		fsdp-diff four dcp-'$world' &&
		fsdp-verify dcp-'$world' &&
		fsdp-convert --to hdf5 --world 4 dcp-'$world' back-'$world' &&
		fsdp-diff four back-'$world'
	'
done

test_expect_success 'the metadata itself and the directory are the same' '
	fsdp-ls dcp-3/.metadata >a && fsdp-ls dcp-3 >b &&
	sed 1d a >a1 && sed 1d b >b1 && test_cmp a1 b1
'

test_expect_success FAULT 'many small archives are read by few calls' '
	num=$(fsdp-ls --long dcp-1 | grep -c __0_0.distcp) && test $num -gt 50 &&
	rm -f "$HOME/fault-calls" && fault count:0 fsdp-ls dcp-1 >out &&
	test $(grep -c "^look pread.*__0_0" "$HOME/fault-calls") -lt $num
'

test_expect_success TORCH 'PyTorch loads it' '
	"$FSDP_TORCH_PYTHON" - dcp-3 <<-\EOF
	import sys
	import torch
	import torch.distributed.checkpoint as dcp
	reader = dcp.FileSystemReader(sys.argv[1])
	tensors = {}
	for name, entry in reader.read_metadata().state_dict_metadata.items():
	    if type(entry).__name__ == "TensorStorageMetadata":
	        tensors[name] = torch.full(entry.size, 77).to(entry.properties.dtype)
	dcp.load(tensors, storage_reader=reader)
	assert len(tensors) > 50
	assert not any((t == 77).all() for t in tensors.values() if t.numel())
	EOF
'

test_expect_success 'an altered byte is found by verify and by convert' '
	cp -r dcp-3 bad && set -- $(place bad model/transformer.wte.weight) &&
	flip "bad/$1" $(($2 + 5)) &&
	test_must_fail fsdp-verify bad >out 2>&1 &&
	grep transformer.wte.weight out &&
	test_must_fail fsdp-convert --to hdf5-file bad bad.h5 2>err &&
	grep transformer.wte.weight err &&
	test ! -e bad.h5
'

test_expect_success 'a file that is cut, missing or not there at all is named' '
	cp -r dcp-3 cut && truncate -s -1000 cut/__1_0.distcp &&
	test_must_fail fsdp-ls cut 2>err && grep __1_0.distcp err &&
	cp -r dcp-3 gone && rm gone/__2_0.distcp &&
	test_must_fail fsdp-ls gone 2>err && grep "__2_0.distcp.*missing" err &&
	cp -r dcp-3 bare && rm bare/.metadata &&
	test_must_fail fsdp-ls bare
'

test_expect_success 'metadata cut or altered anywhere: an error or the same' '
	size=$(stat -c %s dcp-1/.metadata) &&
	fsdp-convert --to hdf5-file dcp-1 truth.h5 &&
	mkdir hurt && ln -s ../dcp-1/__0_0.distcp hurt/ &&
	for i in $(seq 1 40); do
		cp dcp-1/.metadata hurt/.metadata &&
		if test $((i % 2)) = 0
		then truncate -s $((size * i / 41)) hurt/.metadata
		else flip hurt/.metadata $((size * i / 41))
		fi &&
		{
			fsdp-diff truth.h5 hurt >out 2>err
			rc=$?
			test $rc -le 125 || return 1
		}
	done
'

test_done
