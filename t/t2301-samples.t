#!/bin/sh

test_description='checkpoints of other tools are what their manifests say, converted too'

. "$SHARNESS_SH"

# Each is NAME/ckpt with NAME/manifest.json; INDEX.txt lists them.
test_have_prereq SAMPLES || skip_all 'no checkpoints of other tools'
samples=$FSDP_SAMPLES/checkpoints
names=$(sed -n '2,$s/ |.*//p' "$samples/INDEX.txt")

# check NAME CKPT: as its manifest says; or refused in words, for what is not
# read here: refused is then the message.
check() {
	fsdp-verify --manifest "$samples/$1/manifest.json" "$2" >out 2>err
	rc=$?
	cat out err
	case $rc in
	0) test_must_be_empty err ;;
	2 | 65) grep "^fsdp-verify: " err && echo "$1" >>refused ;;
	*) return 1 ;;
	esac
}

test_expect_success 'samples are listed and lie there' '
	test -n "$names" &&
	for n in $names; do test -r "$samples/$n/manifest.json" || return 1; done
'

for name in $names; do
	test_expect_success "$name" '
		check $name "$samples/$name/ckpt"
	'
done

touch refused
say "not read here: $(tr '\n' ' ' <refused)"

test_expect_success 'nothing is refused but what this build lacks a library for' '
	if have ZSTD; then test_must_be_empty refused; else ! grep -v zstd refused; fi
'

# LOCAL checkpoints need to be told what their flat parameters are made of.
recipe() {
	if grep -q "\"flat_recipe\"" "$samples/$1/manifest.json"; then
		echo "--recipe=$samples/$1/manifest.json"
	fi
}

for name in $names; do
	grep -qx "$name" refused && continue
	test_expect_success "$name, sharded and as one HDF5 file" '
		rm -rf sharded one.h5 &&
		fsdp-convert -q --world 3 $(recipe $name) "$samples/$name/ckpt" sharded &&
		check $name sharded && fsdp-convert -q sharded one.h5 &&
		check $name one.h5
	'
done

test_done
