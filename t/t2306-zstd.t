#!/bin/sh

test_description='distributed checkpoints whose records are compressed by zstd'

. "$SHARNESS_SH"

: "${PYTHON:=python3}"
command -v zstd >/dev/null && command -v "$PYTHON" >/dev/null &&
	test_set_prereq ZSTD_PROGRAM
have ZSTD && test_set_prereq ZSTD

# compress TARGET DESCRIPTORS [OPTION...]: `plain`, compressed.
compress() {
	"$PYTHON" "$FSDP_SRCDIR/t/dcp-zstd.py" plain "$@"
}

# big FILE: a tensor of 24 MiB that zstd makes small, and two others.
big() {
	safetensors "$1" '{"w":{"dtype":"F32","shape":[6144,1024],"data_offsets":[0,25165824]},"b":{"dtype":"I64","shape":[],"data_offsets":[25165824,25165832]},"e":{"dtype":"F16","shape":[0,3],"data_offsets":[25165832,25165832]}}' '' &&
	seq 1 10000000 | head -c 25165824 >>"$1" && printf 'ABCDEFGH' >>"$1"
}

if ! test_have_prereq ZSTD_PROGRAM; then
	skip_all 'no program zstd, or no Python'
fi

test_expect_success 'make checkpoints' '
	ckpt_make four && fsdp-convert -q --to dcp --world 3 four plain &&
	compress packed stream.zstd/1
'

test_expect_success !ZSTD 'a build without libzstd says what it lacks' '
	test_expect_code 2 fsdp-ls packed 2>err && grep libzstd-dev err
'

if ! test_have_prereq ZSTD; then
	test_done
fi

test_expect_success 'they are read, verified and converted like others' '
	fsdp-diff four packed && fsdp-verify packed >out && grep good: out &&
	fsdp-convert -q --to hdf5 --world 4 packed back && fsdp-diff four back &&
	fsdp-verify back && fsdp-convert -q --to dcp packed again &&
	fsdp-diff four again && fsdp-verify again
'

test_expect_success 'a cast converts what was decoded' '
	set -- -q --cast bf16 --to safetensors --exclude "*lm_head*" &&
	fsdp-convert "$@" packed a.safetensors &&
	fsdp-convert "$@" plain b.safetensors &&
	cmp a.safetensors b.safetensors
'

test_expect_success 'into boxes, and from boxes' '
	set -- -q --to dcp --layout dp=2,tp=2 --split "*.c_attn.weight=1" &&
	fsdp-convert "$@" packed grid && fsdp-diff four grid &&
	mv plain flat && mv grid plain && compress boxes stream.zstd/1 &&
	rm -rf plain && mv flat plain &&
	fsdp-diff four boxes && fsdp-convert -q --world 3 boxes thirds &&
	fsdp-diff four thirds && rm -rf thirds
'

test_expect_success 'frames behind each other, checksums, twice compressed' '
	compress twice stream.zstd/1,stream.zstd/1.2 --check &&
	fsdp-diff four twice && compress fast stream.zstd/1 --fast=5 &&
	fsdp-diff four fast
'

test_expect_success 'a transform that is not known is refused by its name' '
	compress other stream.zstd/1,stream.crypt/3 &&
	test_must_fail fsdp-ls other 2>err && grep stream.crypt/3 err &&
	compress newer stream.zstd/2 &&
	test_must_fail fsdp-ls newer 2>err && grep stream.zstd/2 err
'

test_expect_success 'one tensor larger than the buffers' '
	big big.safetensors && rm -rf plain &&
	fsdp-convert -q --to dcp big.safetensors plain &&
	compress large stream.zstd/1 && fsdp-verify large &&
	fsdp-convert -q --max-mem 4M --to hdf5 --world 3 large thirds &&
	fsdp-verify thirds && fsdp-diff big.safetensors thirds &&
	fsdp-convert -q --to safetensors large back.safetensors &&
	fsdp-diff big.safetensors back.safetensors
'

test_expect_success 'memory is bounded, and the message says how' '
	test_must_fail fsdp-convert --max-mem 1M large small 2>err &&
	grep -e "--max-mem" err && test ! -e small &&
	compress wide stream.zstd/1 --long=24 &&
	test_must_fail fsdp-convert --max-mem 8M wide small 2>err &&
	grep -e "--max-mem" err &&
	fsdp-convert -q --max-mem 64M wide wide.h5 &&
	fsdp-diff big.safetensors wide.h5
'

test_expect_success 'a window larger than any memory is refused' '
	compress huge stream.zstd/1 --long=29 --no-check &&
	test_must_fail fsdp-ls huge 2>err && grep "smaller window" err
'

test_expect_success 'a flipped bit anywhere is found' '
	rm -rf plain && fsdp-convert -q --to dcp --world 3 four plain &&
	rm -rf packed && compress packed stream.zstd/1 --no-check &&
	size=$(stat -c %s packed/__1_0.distcp) &&
	for i in $(seq 1 20); do
		rm -rf bad && cp -r packed bad &&
		flip bad/__1_0.distcp $((size * i / 21)) &&
		test_must_fail fsdp-verify bad >out 2>&1 &&
		grep __1_0.distcp out &&
		test_must_fail fsdp-convert --to hdf5-file bad bad.h5 2>err &&
		test ! -e bad.h5 || return 1
	done
'

test_expect_success 'a record that is cut is named' '
	cp -r packed cut && truncate -s -100 cut/__2_0.distcp &&
	test_must_fail fsdp-ls cut 2>err && grep __2_0.distcp err
'

test_done
