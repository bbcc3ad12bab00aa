#!/bin/sh

test_description='damage anywhere is an error, or changes nothing

Each file is removed, cut at each boundary and has bits changed in each region
(t/ckpt-damage.c); in some of these places here, in more with --long.'

. "$SHARNESS_SH"

most=60
test_have_prereq EXPENSIVE && most=5000

# damage NAME CKPT [OPTION]...: damage a copy of it.
damage() {
	rm -rf copy && cp -r "$2" copy && chmod -R u+w copy &&
	name=$1 && source=$2 && shift 2 &&
	"$FSDP_BUILDDIR/t/ckpt-damage" -m "$most" "$@" "$source" copy >out 2>&1
	rc=$?
	tail -n 50 out
	sed -n "\$s/.*: \([0-9]* of [0-9]* places\)/\1/p" out >>sums
	test "$rc" = 0 && grep ": $most of \|: \([0-9]*\) of \1 " out
}

for name in full-w2 hybrid-w4 plain.h5
do
	test_expect_success "ours: $name" '
		damage $name "$FSDP_SRCDIR/t/data/ckpt-v1/$name"
	'
done

test_expect_success 'ours, with optimizer state, units and tied names' '
	ckpt_make ours && damage ours ours/step-00000100
'

test_expect_success 'written by us for others' '
	for form in dcp safetensors hdf5-file torch; do
		fsdp-convert -q --to $form ours our-$form &&
		damage $form our-$form || return 1
	done
'

# Recipes are in the manifests.
samples=$FSDP_SAMPLES/checkpoints
recipe() {
	if grep -q "\"flat_recipe\"" "$samples/$1/manifest.json"; then
		echo "-r$samples/$1/manifest.json"
	fi
}

if test_have_prereq SAMPLES; then
	for name in $(sed -n '2,$s/ |.*//p' "$samples/INDEX.txt"); do
		fsdp-verify --manifest "$samples/$name/manifest.json" \
			"$samples/$name/ckpt" >&3 2>&4 || continue # not read
		test_expect_success "$name" '
			damage $name "$samples/$name/ckpt" $(recipe $name)
		'
	done
fi

say "$(awk '{ n += $1; all += $3; e += $5; s += $7; o += $10 } END {
	print n " of " all " places: " e " errors, " s " the same, " o " others" }' \
	sums)"

test_done
