#!/bin/sh

test_description='small files that claim much: refused soon, in little memory'

. "$SHARNESS_SH"

# Of address space, in KiB, and seconds; sanitizers need more of the one than
# there is, and unwind the stack at each malloc().
most=1000000 soon=20
test_have_prereq SANITIZED && most=unlimited soon=300

# refused CODE PATTERN COMMAND...: soon, within bounds, and in words.
refused() {
	want=$1 pattern=$2
	shift 2
	# shellcheck disable=SC3045 # all shells that are used have it
	(ulimit -v "$most" && expect_code "$want" run_timeout "$soon" "$@") \
		2>err >out
	rc=$?
	cat out err
	test "$rc" = 0 && cat out err | grep -e "$pattern"
}

# number SIZE VALUE: little-endian, for printf.
number() {
	awk -v size="$1" -v value="$2" 'BEGIN {
		for (; size > 0; size--) {
			printf("\\%03o", value % 256)
			value = int(value / 256)
		}
	}'
}

test_expect_success 'safetensors: headers that are longer than the file' '
	for size in 1152921504606846976 18446744073709549568 100000001 3; do
		printf "$(number 8 $size){}" >a.safetensors &&
		refused 65 "^fsdp-ls: ./a.safetensors: .*header" \
			fsdp-ls a.safetensors || return 1
	done
'

test_expect_success 'safetensors: shapes that overflow, brackets without end' '
	safetensors a.safetensors "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}" "" &&
	refused 65 "tensor a: its shape" fsdp-ls a.safetensors &&
	{ printf "$(number 8 1000000)" && yes "[" | tr -d "\n" |
		head -c 1000000; } >a.safetensors &&
	refused 65 "a.safetensors: its header" fsdp-ls a.safetensors &&
	{ printf "$(number 8 1000001){" && yes "\"a\":{" | tr -d "\n" |
		head -c 1000000; } >a.safetensors &&
	refused 65 "depth" fsdp-ls a.safetensors
'

test_expect_success 'safetensors: as many tensors as groups of them' '
	awk "BEGIN { for (i = 0; i < 100000; i++)
		printf(\"%c\\\"%d.a\\\":{\\\"dtype\\\":\\\"U8\\\",\\\"shape\\\":[0],\" \
			\"\\\"data_offsets\\\":[0,0]}\", i ? \",\" : \"{\", i)
		print \"}\" }" >header &&
	{ printf "$(number 8 "$(wc -c <header)")" && cat header; } >a.safetensors &&
	refused 0 . fsdp-convert --dry-run --world 2 a.safetensors b
'

# manifest SED: that of a copy, sealed again.
golden=$FSDP_SRCDIR/t/data/ckpt-v1/full-w2
manifest() {
	rm -rf copy && cp -r "$golden" copy && chmod -R u+w copy &&
	sed "$1" "$golden/manifest.json" >copy/manifest.json &&
	! cmp copy/manifest.json "$golden/manifest.json" && ckpt_reseal copy
}

test_expect_success 'ours: tables and ranks without end' '
	for number in 1000000000 9223372036854775807; do
		for key in count offset world; do
			manifest "s/\"$key\": *[0-9]*/\"$key\": $number/" &&
			refused 65 "copy/manifest.json: " fsdp-ls copy || return 1
		done
	done &&
	manifest "s/\"\(world\|shard\)\": *[0-9]*/\"\1\": 4294967295/" &&
	refused 65 "copy/manifest.json: " fsdp-convert copy converted
'

test_expect_success 'more ranks than any machine has' '
	refused 64 "ranks" fsdp-reshard --world 4294967295 "$golden" b
'

# legacy: a legacy file of torch.save, without storages, that holds the pickle
# on standard input; or as for printf.
legacy() {
	{ printf "\\200\\2\\212\\12\\154\\374\\234\\106\\371\\40\\152" &&
	  printf "\\250\\120\\31.\\200\\2M\\351\\3.\\200\\2}" &&
	  printf "X\\15\\0\\0\\0little_endian\\210s." &&
	  if test $# -gt 0; then printf "\\200\\2$1."; else cat; fi &&
	  printf "\\200\\2]."; } >a.pt
}

# Forty containers, each with twenty references to the one before.
bomb() {
	awk -v kind="$1" 'BEGIN {
		printf((kind == "list") ? "]q\\0K\\1a" : "}q\\0X\\1\\0\\0\\0aK\\1s")
		for (depth = 1; depth < 40; depth++) {
			printf("%sq\\%03o(", (kind == "list") ? "]" : "}", depth)
			for (i = 0; i < 20; i++) {
				if (kind != "list")
					printf("X\\1\\0\\0\\0%c", 97 + i)
				printf("h\\%03o", depth - 1)
			}
			printf((kind == "list") ? "e" : "u")
		}
	}'
}

test_expect_success 'pickles that refer to one value again and again' '
	legacy "$(bomb list)" &&
	refused 2 "a.pt: .*too deep or too large" fsdp-ls a.pt &&
	legacy "$(bomb dict)" &&
	refused 2 "a.pt: .*too deep or too large" fsdp-ls a.pt
'

test_expect_success 'keys that no name can have are those of a value, or told' '
	legacy "}X\\1\\0\\0\\0a}(K\\1K\\2tK\\3ss" && fsdp-ls a.pt >out &&
	grep -F "{\"\$dict\": [[{\"\$tuple\": [1, 2]}, 3]]}" out &&
	legacy "}(K\\1K\\2tK\\3s" &&
	refused 2 "a.pt: all of it: a key that is neither" fsdp-ls a.pt
'

test_expect_success 'a large text that many values refer to' '
	awk "BEGIN { for (i = 0; i < 10000; i++)
		printf(\"X\\\\005\\\\000\\\\000\\\\000%05dh\\\\001\", i) }" >refs &&
	{ printf "\\200\\2}q\\0(X\\1\\0\\0\\0kX$(number 4 1000000)" &&
	  yes a | tr -d "\n" | head -c 1000000 && printf "q\\1" &&
	  printf "$(cat refs)" && printf "u."; } | legacy &&
	refused 2 "a.pt: .*too large" fsdp-ls a.pt
'

test_expect_success 'pickles that hold themselves, that are deep, that claim' '
	legacy "}q\\0X\\1\\0\\0\\0ah\\0s" &&
	refused 2 "a.pt: .*too deep" fsdp-ls a.pt &&
	legacy "]q\\0h\\0a" && refused 2 "a.pt: .*too deep" fsdp-ls a.pt &&
	deep=$(yes "]" | head -n 20000 | tr -d "\n")$(yes a | head -n 19999 |
		tr -d "\n") &&
	legacy "$deep" && refused 2 "a.pt: .*too deep" fsdp-ls a.pt &&
	for claim in "X\\377\\377\\377\\377" "\\215$(number 8 1152921504606846976)" \
		"\\216$(number 8 1152921504606846976)" "\\213\\377\\377\\377\\177" \
		"Nr\\377\\377\\377\\377"; do
		legacy "$claim" &&
		refused 65 "a.pt: .*damaged" fsdp-ls a.pt || return 1
	done
'

test_expect_success 'llm.c: headers of models without end' '
	for counts in "2147483647 2147483647 2147483647 2147483647 2147483647" \
		"1024 2147483647 1 1 2147483647" "-1 -1 -1 -1 -1"; do
		{ printf "$(number 4 20240326)$(number 4 3)" &&
		  for count in $counts $counts; do
			printf "$(number 4 $(((count + 4294967296) % 4294967296)))"
		  done && head -c 4000 /dev/zero; } >model.bin &&
		refused 65 "model.bin: " fsdp-ls model.bin || return 1
	done
'

test_expect_success PYTHON_H5PY 'HDF5: groups in groups, elements never written' '
	cat >make.py <<-\END &&
	import h5py
	with h5py.File("deep.h5", "w", libver="latest") as file:
	    group = file
	    for i in range(1000):
	        group = group.create_group("g")
	with h5py.File("cycle.h5", "w") as file:
	    file.create_group("a")["up"] = file["/"]
	    file["x"] = [1.0]
	with h5py.File("claims.h5", "w") as file:
	    file.create_dataset("a", shape=(1 << 30, 1 << 28), dtype="f4")
	END
	"$PYTHON" make.py && fsdp-ls cycle.h5 >out && grep "^x " out &&
	refused 2 "deep.h5: .*deep" fsdp-ls deep.h5 &&
	refused 65 "claims.h5: /a was made, but its data" fsdp-ls claims.h5
'

test_expect_success 'HDF5: a name of more slashes than groups are followed' '
	name=$(yes a/ | head -n 150 | tr -d "\n")b &&
	safetensors a.safetensors "{\"$name\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}" "abcd" &&
	fsdp-convert -q --to hdf5-file a.safetensors a.h5 &&
	fsdp-convert -q --world 2 a.h5 sharded && fsdp-verify sharded &&
	fsdp-diff a.safetensors a.h5 && fsdp-diff a.safetensors sharded
'

test_done
