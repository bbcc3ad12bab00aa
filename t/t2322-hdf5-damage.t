#!/bin/sh

test_description='HDF5 files that libhdf5 does not survive

A child of the program reads them first: whatever libhdf5 makes of a damaged
file, the program ends with an error that names it.'

. "$SHARNESS_SH"

# heaps FILE: where its heaps of texts begin.
heaps() {
	grep -abo GCOL "$1" | sed 's/:.*//'
}

# The length of the first entry of a heap: libhdf5 1.10.8 crashes over some of
# these, takes 4 GiB over another, and goes in circles over a third.
entry() {
	seq $(($1 + 25)) $(($1 + 31))
}

test_expect_success PYTHON_H5PY 'a bit changed anywhere in a file of others' '
	cat >make.py <<-\END &&
	import h5py
	import numpy as np
	for name in "earliest", "latest":
	    with h5py.File(name + ".h5", "w", libver=name) as f:
	        f["w/a"] = np.arange(6, dtype="f4").reshape(2, 3)
	        f["soft"] = h5py.SoftLink("/w/a")
	        f["text"] = ["one", "three"]
	        f["w/a"].attrs["names"] = np.array(["x", "yz"], h5py.string_dtype())
	        f.create_dataset("c", data=np.eye(8), chunks=(4, 4), compression=1)
	        for i in range(12):
	            f["g/%d" % i] = np.int8(i)
	            f["w"].attrs["a%d" % i] = i
	END
	"$PYTHON" make.py && most=300 &&
	if test_have_prereq EXPENSIVE; then most=1000000; fi &&
	for name in earliest latest; do
		cp $name.h5 copy.h5 &&
		"$FSDP_BUILDDIR/t/ckpt-damage" -s 1 -m $most $name.h5 copy.h5 ||
			return 1
	done
'

test_expect_success PYTHON_H5PY 'the lengths of texts' '
	for heap in $(heaps earliest.h5); do
		for at in $(entry "$heap"); do
			cp earliest.h5 copy.h5 && flip copy.h5 "$at" &&
			expect_code 65 fsdp-ls copy.h5 2>err &&
			grep "^fsdp-ls: copy.h5: " err || return 1
		done
	done &&
	expect_code 1 fsdp-verify copy.h5 >out && grep "^copy.h5: " out
'

# A trailer as our single files have it, whose checksums are right
# (doc/checkpoint-format.md).
test_expect_success PYTHON_H5PY 'a file of ours is not trusted for its checksums' '
	cat >seal.py <<-\END &&
	import struct
	import sys
	def crc(data):
	    value = 0xffffffff
	    for byte in data:
	        value ^= byte
	        for _ in range(8):
	            value = value >> 1 ^ 0x82f63b78 * (value & 1)
	    return value ^ 0xffffffff
	data = open(sys.argv[1], "rb").read()
	size = (len(data) + 7) // 8 * 8
	foot = struct.pack("<5Q3I", len(data), size, 0, size, 0, crc(data), 0, 1)
	with open(sys.argv[1], "ab") as f:
	    f.write(bytes(size - len(data)) + foot)
	    f.write(struct.pack("<I", crc(foot)) + b"fsdp-h5\n")
	END
	cp earliest.h5 good.h5 && "$PYTHON" seal.py good.h5 && fsdp-ls good.h5 &&
	cp earliest.h5 copy.h5 &&
	flip copy.h5 "$(entry "$(heaps earliest.h5 | head -n 1)" | tail -n 1)" &&
	"$PYTHON" seal.py copy.h5 && expect_code 65 fsdp-ls copy.h5 2>err &&
	grep "^fsdp-ls: copy.h5: damaged: HDF5 crashed over it" err &&
	flip good.h5 2000 && expect_code 65 fsdp-ls good.h5 2>err &&
	grep "HDF5.s own bytes do not have their checksum" err
'

test_expect_success FAULT,PYTHON_H5PY 'HDF5 reads nothing where there can be no child' '
	cp "$FSDP_SRCDIR/t/data/ckpt-v1/plain.h5" . &&
	for name in earliest.h5 plain.h5; do
		expect_code 2 fault fork:1 fsdp-ls $name 2>err &&
		grep "^fsdp-ls: $name: cannot start the process .*: Resource temp.*ulimit" \
			err || return 1
	done
'

# An index as if it had been written so.
test_expect_success 'the names of files in an index whose checksum is right' '
	cp -r "$FSDP_SRCDIR/t/data/ckpt-v1/full-w2" good && chmod -R u+w good &&
	for at in $(entry "$(heaps good/index.h5 | head -n 1)"); do
		rm -rf copy && cp -r good copy && flip copy/index.h5 "$at" &&
		ckpt_reseal copy && expect_code 1 fsdp-verify copy >out &&
		grep "^\(copy/\)\?index.h5: " out || return 1
	done
'

test_expect_success FAULT 'a disk that fails is not taken for damage' '
	cp "$FSDP_SRCDIR/t/data/ckpt-v1/plain.h5" . &&
	for what in good plain.h5; do
		FAULT_SAMPLE=20 fault_points readeio fsdp-verify -j 1 $what >points &&
		test $(wc -l <points) -gt 15 &&
		while read -r n kind call path; do
			test "$call" = close ||
				expect_code 74 fault "readeio:$n" fsdp-verify -j 1 $what 2>err ||
				return 1
		done <points || return 1
	done
'

test_expect_success FAULT '… nor while an index is made anew' '
	rm -rf copy && cp -r good copy && rm copy/manifest.json &&
	cp -r copy before &&
	FAULT_SAMPLE=20 fault_points readeio fsdp-verify --repair -j 1 copy \
		>points && test $(wc -l <points) -gt 15 &&
	while read -r n kind call path; do
		rm -rf copy && cp -r before copy &&
		fault "readeio:$n" fsdp-verify --repair -j 1 copy >out 2>err
		rc=$?
		test $rc = 74 || { test $rc = 0 && test "$call" != pread; } ||
			return 1
	done <points
'

test_done
