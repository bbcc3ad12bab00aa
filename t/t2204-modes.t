#!/bin/sh

test_description='What is written belongs to the group, and has the modes, that the user wants'

. "$SHARNESS_SH"

group=65534

test_expect_success 'sources' '
	"$FSDP_BUILDDIR/t/ckpt-make" -w 2 --vocab 40 --width 16 --layers 1 made &&
	mv made/step-00000100 source &&
	fsdp-convert --to hdf5-file -i "model/tr*" -i "optim/*" \
		-x model/lm_head.weight source gpt2.h5 &&
	fsdp-convert --to hdf5-file -i "model/tr*" -i "optim/*" \
		-x "*lm_head.weight" --rename "model/*=fp32.*" \
		--rename "optim/exp_avg/*=exp_avg.*" \
		--rename "optim/exp_avg_sq/*=exp_avg_sq.*" source universal.h5
'

# all_written MASK DIR: each form, there.
all_written() {
	(
		umask "$1" && cd "$2" &&
		"$FSDP_BUILDDIR/t/ckpt-make" -w 2 --vocab 40 --width 16 \
			--layers 1 run &&
		for form in hdf5 hdf5-file safetensors dcp dcp-hf torch; do
			fsdp-convert -q --to $form ../source $form || return 1
		done &&
		fsdp-convert -q --to safetensors --shard-size 20000 ../source \
			split &&
		fsdp-convert -q --to universal ../universal.h5 universal &&
		fsdp-convert -q --to llmc -w 2 --rules gpt2-llmc \
			--set num_heads=4 --set vocab_size=40 --set rng_state=1 \
			--set current_shard_idx=0 --set current_sample_idx=0 \
			../gpt2.h5 llmc &&
		cp -r run broken && chmod -R u=rwX,go= broken &&
		rm broken/step-00000100/index.h5 &&
		fsdp-verify -q --repair broken/step-00000100 &&
		mv broken/step-00000100/index.h5 repaired-index &&
		mv broken/step-00000100/manifest.json repaired-manifest &&
		rm -r broken
	)
}

# modes DIR FILES DIRECTORIES [GROUP]: below it nothing has others.
modes() {
	find "$1" -mindepth 1 \( -type f ! -perm "$2" -o -type d ! -perm "$3" \) \
		-ls >other &&
	test_must_be_empty other && test "$(find "$1" -type f | wc -l)" -gt 30 &&
	find "$1" ! -gid "${4:-$(id -g)}" -ls >other && test_must_be_empty other
}

for case in '022 644 755' '027 640 750' '077 600 700' '002 664 775'; do
	set -- $case
	test_expect_success "umask $1" "
		mkdir mask$1 && chmod 755 mask$1 && all_written $1 mask$1 &&
		modes mask$1 $2 $3
	"
done

test_expect_success ROOT 'in a directory of another group' '
	mkdir theirs && chgrp $group theirs && chmod 2775 theirs &&
	all_written 007 theirs && modes theirs 660 2770 $group
'

test_done
