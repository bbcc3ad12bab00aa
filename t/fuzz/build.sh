#!/bin/sh
# Build the fuzz targets with libFuzzer, ASan and UBSan: needs clang.
#
#     t/fuzz/build.sh [DIRECTORY]     (of a configured build; default .)
#     ./fuzz-pickle -max_total_time=600 CORPUS t/data/fuzz/pickle
#
# For fuzz-file and fuzz-dir t/fuzz/pack makes inputs of checkpoints; FUZZ_DIR
# is where fuzz-dir works, best in memory (/dev/shm).
set -e

src=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-.}
flags="-g -O1 -D_GNU_SOURCE -fsanitize=address,undefined"
flags="$flags -fno-sanitize-recover=undefined -I$build -I$src -I$src/lib/util"
# As configured: more libraries may be there.
libs="$(sed -n 's/^\(JANSSON\|CRYPTO\|HDF5\|ISAL\|ZSTD\)_LIBS = //p' \
	"$build/Makefile" | paste -sd ' ') -lpthread -lm"
cflags=$(sed -n 's/^\(JANSSON\|CRYPTO\|HDF5\|ISAL\|ZSTD\)_CFLAGS = //p' \
	"$build/Makefile" | paste -sd ' ')

mkdir -p fuzz-objects
for file in "$src"/ckpt/*.c "$src"/ckpt/format/*.c "$src"/lib/util/*.c \
	"$src"/t/fuzz/use.c "$src"/t/fuzz/crc.c; do
	object=fuzz-objects/$(basename "$file" .c).o
	case $file in
	*/lib/util/crc.c) continue ;; # in its place: t/fuzz/crc.c
	esac
	# shellcheck disable=SC2086
	${CC:-clang} $flags $cflags -fsanitize=fuzzer-no-link -c "$file" \
		-o "$object"
done
for target in pickle dcp file dir; do
	# shellcheck disable=SC2086
	${CC:-clang} $flags $cflags -fsanitize=fuzzer -o "fuzz-$target" \
		"$src/t/fuzz/fuzz-$target.c" fuzz-objects/*.o $libs
done
