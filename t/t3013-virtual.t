#!/bin/sh

test_description='fsdp-convert --virtual: files that only show what lies in others'

. "$SHARNESS_SH"

step='step-00000100'

test_expect_success 'make a checkpoint' '
	ckpt_make four && cp -r four before
'

test_expect_success 'a sharded checkpoint as one file, without its data' '
	fsdp-convert --virtual four v.h5 >out &&
	grep "^v.h5: hdf5-file (virtual), step 100, from hdf5, step 100, 4 ranks" out &&
	test $(stat -c %s v.h5) -lt 200000 && fsdp-ls v.h5 >list &&
	grep "^v.h5: hdf5-file (virtual), step 100$" list && grep "in 5 files, 1 tied name" list &&
	fsdp-diff --metadata four v.h5 && fsdp-verify v.h5
'

test_expect_success 'fsdp-reshard makes the same, for any number of ranks' '
	fsdp-reshard --virtual four r.h5 && cmp v.h5 r.h5 && rm r.h5 &&
	expect_code 64 fsdp-reshard four r.h5
'

test_expect_success 'what is made of it is what is made of the source' '
	fsdp-consolidate four a.safetensors && fsdp-consolidate v.h5 b.safetensors &&
	cmp a.safetensors b.safetensors &&
	fsdp-convert four a.h5 && fsdp-convert v.h5 b.h5 && cmp a.h5 b.h5 &&
	fsdp-convert --virtual v.h5 again.h5 && cmp v.h5 again.h5
'

for to in safetensors "dcp -w 3" hdf5-file; do
	test_expect_success "of $to, chosen and renamed" '
		rm -rf src && fsdp-convert --to '"$to"' four src &&
		fsdp-convert --virtual --rename "transformer.*=t.*" --only model \
			src s.h5 &&
		fsdp-convert --to hdf5-file --rename "transformer.*=t.*" --only model \
			src c.h5 &&
		fsdp-diff --metadata s.h5 c.h5 && rm s.h5 c.h5
	'
done

test_expect_success PYTHON_H5PY 'h5py reads it, from wherever it is told how' '
	cat >check.py <<-\END &&
	import h5py, os, sys
	shown = os.path.abspath("v.h5")
	whole = h5py.File("a.h5", "r")
	os.chdir("/")
	n = 0
	with h5py.File(shown, "r") as file:
	    def check(name, item):
	        global n
	        if isinstance(item, h5py.Dataset) and item.dtype.kind != "V":
	            assert (item[()] == file[name][()]).all(), name
	            n += 1
	    whole.visititems(check)
	assert n >= 80, n
	END
	HDF5_EXTFILE_PREFIX="\${ORIGIN}" "$PYTHON" check.py
'

test_expect_success 'moved together it still shows them' '
	mkdir -p a/deep/er && cp -rp four a/four && fsdp-convert --virtual a/four a/deep/er/v.h5 &&
	mkdir b && mv a b/c && (cd b/c/deep && fsdp-verify er/v.h5) &&
	fsdp-diff b/c/deep/er/v.h5 four
'

test_expect_success 'a source that is gone, cut or written anew is noticed' '
	shard=b/c/four/$step/shard-00001.h5 && v=b/c/deep/er/v.h5 &&
	cp -p $shard saved && mv $shard away && expect_code 1 fsdp-verify $v >out &&
	grep "shard-00001.h5: .* missing" out && expect_code 65 fsdp-ls $v 2>err &&
	grep "shard-00001.h5" err &&
	truncate -s -1 away && mv away $shard && expect_code 1 fsdp-verify $v >out &&
	grep "shard-00001.h5" out && expect_code 65 fsdp-ls $v &&
	cp saved $shard && expect_code 1 fsdp-verify $v >out &&
	grep "shard-00001.h5: was written at another time .*: altered, or copied" out &&
	fsdp-diff $v four && cp -p saved $shard && fsdp-verify $v
'

test_expect_success 'what cannot be shown is refused, with the cure' '
	fsdp-convert --to dcp --layout dp=1,tp=2 --split "*.c_attn.weight=1" four grid &&
	expect_code 2 fsdp-convert --virtual grid no.h5 2>err &&
	grep "c_attn.weight: its elements do not lie in grid as they are" err &&
	grep "leave --virtual out" err && test ! -e no.h5 &&
	expect_code 78 fsdp-convert --virtual --cast bf16 four no.h5 2>err &&
	grep "choose hdf5-file, without a cast" err &&
	expect_code 78 fsdp-convert --virtual --to dcp four no.h5 &&
	fsdp-convert --virtual -n four no.h5 >out && grep "to read in 0 copies" out &&
	test ! -e no.h5 && test -z "$(find . -name ".tmp*")"
'

test_expect_success 'a file that lies about its sources' '
	cp v.h5 bad.h5 && size=$(stat -c %s bad.h5) && n=0 &&
	for at in $(grep -abo "shard-0000" bad.h5 | cut -d: -f1); do
		cp v.h5 bad.h5 && flip bad.h5 $((at + 1)) &&
		! fsdp-ls bad.h5 >out 2>&1 && test -s out || return 1
		n=$((n + 1))
	done && test $n -gt 3
'

test_expect_success 'the sources are as they were' '
	diff -r before four
'

test_done
