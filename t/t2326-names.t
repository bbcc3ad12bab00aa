#!/bin/sh

test_description='names of any length and kind: written and read back, or refused'

. "$SHARNESS_SH"

# make EXPRESSION...: tensors of these names, in Python, in odd.safetensors and
# as master weights in fp32.safetensors.
make() {
	python3 - "$@" <<-\EOF
	import json, struct, sys
	for prefix in "", "fp32.":
	    header = {}
	    for i, name in enumerate(sys.argv[1:]):
	        header[prefix + eval(name)] = {
	            "dtype": "F32", "shape": [3],
	            "data_offsets": [12 * i, 12 * i + 12]}
	    text = json.dumps(header, ensure_ascii=False).encode()
	    num = 3 * len(header)
	    with open((prefix or "odd.") + "safetensors", "wb") as f:
	        f.write(struct.pack("<Q", len(text)) + text)
	        f.write(struct.pack("<%df" % num, *range(num)))
	EOF
}

# returns FORMAT SOURCE: it comes back as it is, or the cure is told and nothing
# is written.
returns() {
	rm -rf t.*
	fsdp-convert --to "$1" "$2" "t.$1" >out 2>err
	case $? in
	0)
		fsdp-verify "t.$1" && fsdp-diff "$2" "t.$1"
		;;
	2)
		echo "$1" >>refused && ! test -e "t.$1" &&
		grep -E "rename it|--exclude" err
		;;
	*)
		return 1
		;;
	esac
}

# try REFUSED EXPRESSION...: which formats refuse these names, all others
# return them.
try() {
	: >refused && echo "$1" | tr " " "\n" | sed "/^$/d" >want && shift &&
	make "$@" &&
	for format in hdf5 hdf5-file safetensors dcp dcp-hf torch; do
		returns $format odd.safetensors || return 1
	done &&
	returns universal fp32.safetensors && test_cmp want refused
}

test_expect_success 'long names' '
	try "" "\"x\" * 250" "\"a/\" * 63 + \"b\"" "\"a.\" * 100 + \"b\"" &&
	try universal "\"x\" * 251" "\"x\" * 5000" "\"x\" * 65530" "\"b\""
'

test_expect_success 'longer than HDF5 has them' '
	try "hdf5 hdf5-file universal" "\"x\" * 65536" "\"x\" * 1048577" "\"b\""
'

test_expect_success 'longer than they are read from files of torch.save' '
	try "hdf5 hdf5-file torch universal" "\"x\" * (16 << 20)" "\"b\""
'

test_expect_success 'what means something to a file system' '
	try universal "\".\"" "\"..\"" "\"../x\"" "\"a/../b\"" "\"/a\"" \
		"\"a/\"" "\"a//b\"" "\".a\"" "\"a/.b\"" "\"a.pt\"" "\"a.pt/b\"" \
		"\"a/\" * 64 + \"b\"" "\"a/\" * 500 + \"b\"" &&
	try "" "\"a\"" "\"a/b\"" "\"A\"" "\"a%2Fb\""
'

test_expect_success 'each of them names no directory' '
	for name in . .. ../x a/../b /a a/ a//b .a a/.b a.pt a.pt/b; do
		make "\"$name\"" "\"x\"" && : >refused &&
		returns universal fp32.safetensors &&
		grep "cannot name a directory" err || return 1
	done
'

test_expect_success 'what means something to a format' '
	try "" "\"a\"" "\"a.b\"" "\"a.0\"" "\"a.2\"" "\"0\"" "\"a\\nb\"" \
		"\"\\x1b[31m\"" "\" \"" "\"a\\\"b\"" "\"\\\\\"" "\"\\u00e9\"" \
		"\"e\\u0301\"" "\"\\u65e5\"" "\"\\U0001f600\"" "\"__metadata\"" \
		"\"nesting\"" "\"tensors\"" "\"module.x\""
'

test_done
