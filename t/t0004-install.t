#!/bin/sh

test_description='make install, and a program of one'"'"'s own against it'

. "$SHARNESS_SH"

command -v pkg-config >/dev/null && test_set_prereq PKG_CONFIG
# libtool cannot install below a path with a space.
dest=$(mktemp -d /tmp/fsdp-t.XXXXXX)
at_exit 'rm -rf "$dest"'
prefix=$(sed -n 's/^prefix=//p' "$FSDP_BUILDDIR/lib/libfsdp.pc")
libdir=$dest$prefix/lib
PKG_CONFIG_PATH=$libdir/pkgconfig
PKG_CONFIG_SYSROOT_DIR=$dest
export PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR

installed() {
	LD_LIBRARY_PATH=$libdir "$@"
}

# A sanitizer build needs its flags at every link.
flags=
test_have_prereq SANITIZED &&
	flags=$(sed -n "s/^FSDP_LDFLAGS = //p" "$FSDP_BUILDDIR/Makefile")

test_expect_success 'make install DESTDIR' '
	run_timeout 120 make -s -C "$FSDP_BUILDDIR" install DESTDIR="$dest" &&
	test -e "$libdir/libfsdp.so" &&
	test -e "$libdir/libfsdpckpt.so" &&
	test -e "$dest$prefix/include/fsdp.h" &&
	test -e "$dest$prefix/share/doc/libfsdp/LICENSE"
'

test_expect_success 'no file names the scratch or build directory' '
	test -d "$libdir/pkgconfig" &&
	! grep -rlF -e "$dest" "$dest" &&
	! grep -rlF -e "$FSDP_BUILDDIR" "$dest$prefix/lib/pkgconfig" \
		"$dest$prefix/include"
'

test_expect_success 'each program is there and runs, with its man page' '
	make -s -C "$FSDP_BUILDDIR" print-programs >programs &&
	test -s programs &&
	while read -r p; do
		p=$(basename "$p") &&
		installed run_timeout 20 "$dest$prefix/bin/$p" --version &&
		test -s "$dest$prefix/share/man/man1/$p.1" || return 1
	done <programs
'

test_expect_success PKG_CONFIG 'a program builds against libfsdp' '
	cp "$FSDP_SRCDIR/doc/examples/fit.c" . &&
	eval "cc $flags -O2 -Wall -Werror fit.c -o fit \
		$(pkg-config --cflags --libs libfsdp) -lm" &&
	installed run_timeout 60 ./fit >alone &&
	grep "^step 0 loss" alone && grep "^step 299 loss" alone
'

test_expect_success PKG_CONFIG 'and learns' '
	awk "{ loss[\$2] = \$4 } END { exit !(loss[299] < loss[0] / 10) }" alone
'

test_expect_success PKG_CONFIG,MPI 'and has the same losses on 2 and 3 ranks' '
	for n in 2 3; do
		installed mpirun_np $n ./fit >ranks && test_cmp alone ranks || return 1
	done
'

test_expect_success PKG_CONFIG 'a program builds against libfsdpckpt alone' '
	cat >main.c <<-\END &&
	#include <fsdp_ckpt.h>
	#include <stdio.h>

	int main(void)
	{
	    puts(fsdp_status_name(FSDP_ERR_CORRUPT));
	    return 0;
	}
	END
	eval "cc $flags -Wall -Werror main.c -o main \
		$(pkg-config --cflags --libs libfsdpckpt)" &&
	echo corrupt >expected &&
	installed ./main >actual &&
	test_cmp expected actual
'

test_expect_success 'make uninstall leaves nothing' '
	make -s -C "$FSDP_BUILDDIR" uninstall DESTDIR="$dest" &&
	find "$dest" -type f -o -type l >left &&
	test_must_be_empty left
'

test_done
