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

# Flip a bit of the last of the bytes that a storage of the file has.
flip() {
	python3 - "$1" <<-\EOF
	import sys, zipfile
	name = sys.argv[1]
	with zipfile.ZipFile(name) as z:
	    e = max((i for i in z.infolist() if "/data/" in i.filename),
	            key=lambda i: i.file_size)
	with open(name, "r+b") as f:
	    f.seek(e.header_offset + 26)
	    n = int.from_bytes(f.read(2), "little")
	    n += int.from_bytes(f.read(2), "little")
	    f.seek(e.header_offset + 30 + n + e.file_size // 2)
	    b = f.read(1)[0]
	    f.seek(-1, 1)
	    f.write(bytes([b ^ 64]))
	EOF
}

test_expect_success 'a flipped bit in a partition is found by its CRC-32' '
	for name in $(cd "$samples" && ls -d ds-z*-a); do
		rm -rf copy out && cp -r "$samples/$name/ckpt" copy &&
		file=$(find copy -name "*zero_pp_rank_1_*_optim_states.pt") &&
		flip "$file" &&
		test_expect_code 1 fsdp-verify copy >found &&
		grep "CRC-32" found &&
		test_must_fail fsdp-convert --to hdf5 copy out 2>err &&
		grep "CRC-32" err && ! test -e out || return 1
	done
'

test_expect_success 'of several, one thread finds them all and so do many' '
	for name in $(cd "$samples" && ls -d ds-z*-a); do
		rm -rf copy && cp -r "$samples/$name/ckpt" copy &&
		for file in $(find copy -name "*_optim_states.pt"); do
			flip "$file" || return 1
		done &&
		for jobs in 1 8; do
			fsdp-verify -j $jobs copy >out
			test $? = 1 && grep CRC-32 out | sort >found.$jobs || return 1
		done &&
		test "$(wc -l <found.1)" -ge 2 && test_cmp found.1 found.8 || return 1
	done
'

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
