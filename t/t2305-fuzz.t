#!/bin/sh

test_description='hostile checkpoints: a corpus, and changes of it

These are the targets that t/fuzz/build.sh builds with libFuzzer.  Nothing else
is looked at than that each input comes to its end.'

. "$SHARNESS_SH"

corpus="$FSDP_SRCDIR/t/data/fuzz"
golden="$FSDP_SRCDIR/t/data/ckpt-v1"
FUZZ_DIR=$PWD
export FUZZ_DIR

# replay TARGET CHANGES NUMBER FILE...: so many files.
replay() {
	target=$1 changes=$2 number=$3
	shift 3
	run_timeout 100 "$FSDP_BUILDDIR/t/fuzz/replay-$target" "$changes" "$@" \
		>out && grep "^$number files" out
}

# pack NAME CKPT...: an input of it.
pack() {
	name=$1
	shift
	"$FSDP_BUILDDIR/t/fuzz/pack" "$@" >"$name" && test -s "$name"
}

test_expect_success 'pickles' '
	replay pickle 1500 7 "$corpus"/pickle/*
'

test_expect_success 'whole files' '
	for file in "$corpus"/file/*; do
		pack "file-$(basename "$file")" "$file" || return 1
	done &&
	safetensors two.st "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"__metadata__\":{\"b\":\"a\"}}" "abcd" &&
	pack file-two.st two.st &&
	replay file 1000 6 file-*
'

test_expect_success 'directories: what we write' '
	pack dir-sharded "$golden/hybrid-w4" &&
	fsdp-convert -q --exclude "types/f[46]*" --to dcp --world 2 \
		"$golden/full-w2" dcp && pack dir-dcp dcp &&
	replay dcp 300 1 dcp/.metadata &&
	fsdp-convert -q --exclude "types/c128" --exclude names* --to safetensors \
		--shard-size 4000 "$golden/full-w2" st && pack dir-st st &&
	replay dir 200 3 dir-*
'

# Recipes are in the manifests.
samples=$FSDP_SAMPLES/checkpoints
test_expect_success SAMPLES 'directories: what others write' '
	for name in dcp215-emptyranks-a dcp215-hf-dist-a ds-z1-fp32-w2-a \
		ds-z3-bf16-w2-a fsdp1-t231-local-flat-a mcore-w2-a; do
		pack "other-$name" "$samples/$name/ckpt" \
			"$samples/$name/manifest.json" \
			"$samples/$name/manifest.json" || return 1
	done &&
	replay dir 200 6 other-*
'

test_done
