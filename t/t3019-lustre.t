#!/bin/sh
#
# Layouts are inherited; where that makes large files slow, it is said.  A
# preloaded library has the layouts of Lustre.
#
test_description='a hint where Lustre keeps a large file on one target'

. "$SHARNESS_SH"

preload=$FSDP_BUILDDIR/t/.libs/liblustre.so
test_have_prereq SANITIZED && skip_all 'a library is to be preloaded'
test -e "$preload" || skip_all 'no library to preload'

# convert ARG...: on such a file system.
convert() {
	LD_PRELOAD=$preload fsdp-convert --to safetensors "$@" >out 2>err &&
	cat out && test_must_be_empty err
}

# sparse FILE ELEMENTS: with a tensor of U8.
sparse() {
	safetensors "$1" "{\"w\":{\"dtype\":\"U8\",\"shape\":[$2],\"data_offsets\":\
[0,$2]}}" "" &&
	truncate -s "+$2" "$1"
}

test_expect_success 'sparse sources of 64 GiB, 1 GiB and 1 byte' '
	sparse huge.safetensors 68719476736 &&
	sparse large.safetensors 1073741824 && sparse small.safetensors 1 &&
	mkdir to
'

test_expect_success 'said before anything is written, where it is known' '
	FSDP_LUSTRE_DIR=1 convert -n large.safetensors to/x.safetensors &&
	grep "^note: to: .*one storage target: .lfs setstripe -c 8 to. " out &&
	FSDP_LUSTRE_DIR=1 convert --json -n large.safetensors to/x.safetensors &&
	grep "lfs setstripe -c 8 to" out
'

test_expect_success 'not said where files are spread, small, or many' '
	convert -n large.safetensors to/x.safetensors && ! grep lfs out &&
	for stripes in 0 2 65535; do
		FSDP_LUSTRE_DIR=$stripes convert -n large.safetensors \
			to/x.safetensors && ! grep lfs out || return 1
	done &&
	FSDP_LUSTRE_DIR=1 convert -n small.safetensors to/x.safetensors &&
	! grep lfs out &&
	FSDP_LUSTRE_DIR=1 convert --to hdf5 -w 2 -n huge.safetensors to/x &&
	grep lfs out &&
	FSDP_LUSTRE_DIR=1 convert --to hdf5 -w 16 -n huge.safetensors to/x &&
	! grep lfs out
'

test_expect_success 'what was written tells it for certain' '
	FSDP_LUSTRE_FILE=1 convert large.safetensors to/x.safetensors &&
	grep "lfs setstripe -c 8 to" out && rm to/x.safetensors &&
	FSDP_LUSTRE_DIR=1 FSDP_LUSTRE_FILE=4 convert small.safetensors \
		to/x.safetensors && ! grep lfs out
'

test_done
