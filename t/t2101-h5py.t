#!/bin/sh

test_description='other programs read our HDF5 files, by the document alone'

. "$SHARNESS_SH"

golden=$FSDP_BUILDDIR/t/ckpt-golden

command -v h5dump >/dev/null && test_set_prereq H5DUMP
command -v h5repack >/dev/null && test_set_prereq H5REPACK

for case in "full 2" "hybrid:2 4" "none 3" "full 7"
do
	test_expect_success PYTHON_H5PY "h5py sees what we see: $case" '
		rm -rf here && "$golden" make here $case &&
		mv here/step-00000007 moved &&
		"$golden" sums moved >want &&
		test $(wc -l <want) -gt 40 &&
		"$PYTHON" "$FSDP_SRCDIR/t/read-checkpoint.py" moved >got &&
		test_cmp want got && rm -rf moved
	'
done

# converted ARG...: what fsdp-convert makes of it looks the same to both.
converted() {
	rm -rf made && fsdp-convert -q "$@" made && "$golden" sums made >want &&
	test "$(wc -l <want)" -gt 40 &&
	"$PYTHON" "$FSDP_SRCDIR/t/read-checkpoint.py" made >got &&
	test_cmp want got
}

test_expect_success PYTHON_H5PY 'h5py sees what we see: chunks of rows' '
	converted --exclude "types/f[46]*" --strategy chunk --world 5 \
		"$FSDP_SRCDIR/t/data/ckpt-v1/full-w2"
'

test_expect_success PYTHON_H5PY,SAMPLES 'h5py sees what we see: views, values' '
	converted --world 3 "$FSDP_SAMPLES/checkpoints/plain-t215-zip-a/ckpt"
'

test_expect_success PYTHON_H5PY 'the script is as short as it should be' '
	test $(wc -l <"$FSDP_SRCDIR/t/read-checkpoint.py") -le 30
'

test_expect_success PYTHON_H5PY 'a missing shard is no zeros to the script' '
	"$golden" make gone full 2 && rm gone/step-00000007/shard-00001.h5 &&
	test_must_fail "$PYTHON" "$FSDP_SRCDIR/t/read-checkpoint.py" \
		gone/step-00000007 &&
	expect_code 65 "$golden" sums gone/step-00000007 2>err &&
	grep "shard-00001.h5: missing" err
'

test_expect_success H5DUMP 'h5dump shows a sharded tensor whole' '
	"$golden" make dump full 3 &&
	h5dump -d /model/h.0.attn.weight -m %.9g -w 1 \
		dump/step-00000007/index.h5 >whole &&
	h5dump -p -H -d /model/h.0.attn.weight dump/step-00000007/index.h5 \
		>layout &&
	grep VIRTUAL layout
'

test_expect_success H5DUMP 'h5dump sees a consolidated file as plain datasets' '
	fsdp-convert --to hdf5-file dump plain.h5 &&
	h5dump -d /model/h.0.attn.weight -m %.9g -w 1 plain.h5 >plain &&
	grep "^ *([0-9]*,[0-9]*,[0-9]*):" whole >a && grep "^ *([0-9]*,[0-9]*,[0-9]*):" plain >b &&
	test $(wc -l <a) = 465 && test_cmp a b &&
	h5dump -p -H -d /model/h.0.attn.weight plain.h5 >layout &&
	grep CONTIGUOUS layout
'

test_expect_success H5REPACK 'compressed by another program: the same' '
	"$golden" sums dump >want &&
	for how in "-l CHUNK=6 -f GZIP=1" "-l COMPA" \
		"-l CHUNK=3 -f SHUF -f GZIP=9 -f FLET"; do
		h5repack $how plain.h5 packed.h5 &&
		"$golden" sums packed.h5 >got && test_cmp want got || return 1
	done
'

test_expect_success H5REPACK 'a filter that is not read: refused with the cure' '
	h5repack -l CHUNK=4 -f NBIT plain.h5 packed.h5 &&
	expect_code 2 "$golden" sums packed.h5 2>err &&
	grep "filter 5 .nbit.*h5repack -f NONE" err &&
	h5repack -f NONE -l CONTI packed.h5 again.h5 &&
	"$golden" sums again.h5 >got && test_cmp want got
'

test_done
