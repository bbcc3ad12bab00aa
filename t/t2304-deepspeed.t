#!/bin/sh

test_description='DeepSpeed checkpoints: levels, missing files, flipped bits'

. "$SHARNESS_SH"

test_have_prereq SAMPLES || skip_all 'no checkpoints of other tools'
samples=$FSDP_SAMPLES/checkpoints

matches() {
	fsdp-verify --manifest "$samples/$1/manifest.json" "$2"
}

for name in $(cd "$samples" && ls -d ds-*-a); do
	test_expect_success "$name is found at each level" '
		matches $name "$samples/$name/ckpt" &&
		for dir in "$samples/$name"/ckpt/*/; do
			matches $name "$dir" || return 1
		done
	'

	test_expect_success "$name: a file that is missing is named" '
		rm -rf copy && cp -r "$samples/$name/ckpt" copy &&
		find copy -path "*_states.pt" >files && test -s files &&
		while read -r file; do
			mv "$file" aside &&
			test_must_fail fsdp-ls copy 2>err &&
			grep -F "$(basename "$file")" err || return 1
			mv aside "$file"
		done <files
	'

	test_expect_success "$name: through HDF5 it stays what it is" '
		rm -rf out && fsdp-convert --to hdf5 --world 3 \
			"$samples/$name/ckpt" out &&
		matches $name out
	'
done

test_expect_success 'a rank of a larger run is not taken along' '
	for name in $(cd "$samples" && ls -d ds-z*-a); do
		rm -rf copy && cp -r "$samples/$name/ckpt" copy &&
		file=$(find copy -name "*zero_pp_rank_0_*_optim_states.pt") &&
		cp "$file" "$(echo "$file" | sed s/rank_0_/rank_9_/)" &&
		test_must_fail fsdp-ls copy 2>err &&
		grep "another run" err || return 1
	done
'

test_done
