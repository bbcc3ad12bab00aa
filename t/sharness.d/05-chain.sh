# shellcheck shell=sh
# Sourced by sharness.sh: checkpoints of other tools, through one format after
# the other.

# samples WORD...: names of the checkpoints of other tools that begin so.
samples() {
	for s_word in "$@"; do
		sed -n '2,$s/ |.*//p' "$FSDP_SAMPLES/checkpoints/INDEX.txt" |
			grep "^$s_word"
	done
}

# recipe NAME: --recipe=FILE, where a sample needs one.
recipe() {
	if grep -q '"flat_recipe"' "$FSDP_SAMPLES/checkpoints/$1/manifest.json"
	then echo "--recipe=$FSDP_SAMPLES/checkpoints/$1/manifest.json"
	fi
}

# chain NAME "OPTION..."...: convert a sample to the first target, that to the
# second one, and so on; after each step all is as the manifest says, and at the
# end the same as the source.  A format that cannot hold something says so: then
# the step is left out, and `refused` has "FORMAT: what it said".
chain() {
	c_name=$1 c_sample=$FSDP_SAMPLES/checkpoints/$1 c_step=0
	c_from=$c_sample/ckpt c_recipe=$(recipe "$1") && shift &&
	rm -rf "$c_name" && mkdir "$c_name" &&
	for c_options in "$@"; do
		c_step=$((c_step + 1))
		c_to=$c_name/$c_step
		echo "$c_name: $c_options"
		# shellcheck disable=SC2086 # words
		set -- $c_options
		fsdp-convert -q ${c_recipe:+"$c_recipe"} --to "$@" "$c_from" \
			"$c_to" 2>c_err
		c_rc=$?
		cat c_err
		if test $c_rc = 2 && grep -e "cannot be written to" \
			-e "PyTorch has no tensors of type" c_err; then
			test ! -e "$c_to" || return 1
			sed "s/^fsdp-convert/$1/" c_err >>refused
			continue
		fi
		test $c_rc = 0 &&
		fsdp-verify -q --manifest "$c_sample/manifest.json" "$c_to" &&
		c_from=$c_to && c_recipe= || return 1
	done &&
	c_recipe=$(recipe "$c_name") &&
	fsdp-diff ${c_recipe:+"$c_recipe"} "$c_sample/ckpt" "$c_from" &&
	rm -rf "$c_name"
}

# chain_all WORD...: a test for each checkpoint whose name begins so.
chain_all() {
	for c_each in $(samples "$@"); do
		test_expect_success "$c_each" "
			chain $c_each 'hdf5 --world 3' safetensors 'dcp --world 2' \
				torch hdf5-file 'dcp --world 5' \
				'safetensors --shard-size 2K' \
				'hdf5 --world 4 --strategy hybrid:2 --files 2' \
				torch 'hdf5 --world 7 --strategy grad-op'
		"
	done
}
