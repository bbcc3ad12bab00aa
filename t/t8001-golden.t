#!/bin/sh

test_description='checkpoints of format version 1 stay readable

t/data/ckpt-v1 holds what the first release wrote.  These files are never
changed: a later version that cannot read them breaks its promise
(doc/checkpoint-format.md, "Versions").'

. "$SHARNESS_SH"

golden=$FSDP_BUILDDIR/t/ckpt-golden
data=$FSDP_SRCDIR/t/data/ckpt-v1

for name in full-w2 hybrid-w4 plain.h5
do
	test_expect_success "$name: every tensor has the bytes of then" '
		"$golden" sums "$data/$name" >sums &&
		test_cmp "$data/sums.txt" sums
	'

	test_expect_success "$name: fsdp-verify finds nothing" '
		fsdp-verify "$data/$name"
	'
done

# values.json is by the program that made them with torch.save.
for name in chunk-w3 values.h5
do
	test_expect_success "$name: every tensor, alias and value is that of then" '
		fsdp-verify --manifest "$data/values.json" "$data/$name" &&
		fsdp-verify "$data/$name"
	'
done

test_expect_success 'chunk-w3 and values.h5 are the same' '
	fsdp-diff "$data/chunk-w3" "$data/values.h5" &&
	fsdp-ls --json "$data/chunk-w3" >json &&
	grep "\"strategy\": *\"chunk" json
'

for name in full-w2 hybrid-w4 chunk-w3
do
	test_expect_success PYTHON_H5PY "$name: h5py alone sees the same" '
		"$golden" sums "$data/$name" >want &&
		"$PYTHON" "$FSDP_SRCDIR/t/read-checkpoint.py" "$data/$name" >got &&
		test_cmp want got
	'
done

test_expect_success 'a step, a mesh and metadata came along' '
	fsdp-ls --json "$data/hybrid-w4" >json &&
	grep "\"step\": *7" json &&
	grep "\"world\": *4" json &&
	grep "\"strategy\": *\"hybrid" json &&
	grep "0\.0003" "$data/hybrid-w4/manifest.json"
'

test_expect_success 'one bit changed anywhere in the manifest is an error' '
	cp -r "$data/full-w2" changed && chmod -R u+w changed &&
	for at in 20 500 1500 3000
	do
		cp "$data/full-w2/manifest.json" changed/ &&
		chmod u+w changed/manifest.json &&
		printf X | dd of=changed/manifest.json bs=1 seek=$at conv=notrunc &&
		expect_code 65 "$golden" sums changed 2>err &&
		grep "manifest.json" err || return 1
	done
'

test_expect_success 'the same checkpoint twice is the same bytes' '
	"$golden" make one hybrid:2 4 && "$golden" make two hybrid:2 4 &&
	diff -r one two
'

test_done
