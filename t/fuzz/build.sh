#!/bin/sh
# Build the fuzz targets with libFuzzer, ASan and UBSan: needs clang.
#
#     t/fuzz/build.sh [DIRECTORY]     (of a configured build; default .)
#     ./fuzz-pickle -max_total_time=600 CORPUS t/data/fuzz/pickle
set -e

src=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-.}
flags="-g -O1 -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined"
flags="$flags -fno-sanitize-recover=undefined -I$build -I$src -I$src/lib/util"
libs=$(pkg-config --cflags --libs jansson libcrypto libisal hdf5)

for target in pickle zip; do
	# shellcheck disable=SC2086
	${CC:-clang} $flags -o "fuzz-$target" "$src/t/fuzz/fuzz-$target.c" \
		"$src"/ckpt/*.c "$src"/ckpt/format/*.c "$src"/lib/util/*.c \
		$libs -lpthread -lm
done
