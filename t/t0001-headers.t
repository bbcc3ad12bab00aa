#!/bin/sh

test_description='installed headers, exported symbols, what links what'

. "$SHARNESS_SH"

CC=${CC:-cc}
headers='fsdp.h fsdp_status.h fsdp_ckpt.h fsdp_layout.h'
mkdir include
for h in $headers; do
	cp "$(find "$FSDP_SRCDIR/lib" "$FSDP_SRCDIR/ckpt" -name "$h")" include/
done

lib() {
	echo "$FSDP_BUILDDIR/.libs/lib$1.so"
}

# What a library or program asks the loader for, by itself.
needs() {
	objdump -p "$1" | awk '$1 == "NEEDED" { print $2 }'
}

# A program of the tree is a libtool script; the real file is in .libs.
program() {
	if test -e "$FSDP_BUILDDIR/bin/.libs/$1"; then
		echo "$FSDP_BUILDDIR/bin/.libs/$1"
	else
		echo "$FSDP_BUILDDIR/bin/$1"
	fi
}

test_expect_success 'the list is what "make install" installs' '
	make -s -C "$FSDP_BUILDDIR" print-headers >installed &&
	for h in $headers; do echo "$h"; done | sort >expected &&
	sed "s|.*/||" installed | sort >actual &&
	test_cmp expected actual
'

for h in $headers; do
	test_expect_success "$h compiles alone as C11" '
		echo "#include <$h>" >one.c &&
		$CC -std=c11 -pedantic-errors -Wall -Wextra -Werror \
			-fsyntax-only -Iinclude one.c
	'
	test_expect_success "$h compiles alone as C++11" '
		echo "#include <$h>" >one.cc &&
		g++ -std=c++11 -Wall -Wextra -Werror -Wno-pedantic \
			-fsyntax-only -Iinclude one.cc
	'
	test_expect_success "$h may be included twice" '
		printf "#include <%s>\n#include <%s>\n" "$h" "$h" >two.c &&
		$CC -std=c11 -Werror -fsyntax-only -Iinclude two.c
	'
done

for l in fsdp fsdpckpt; do
	test_expect_success "lib$l.so exports nothing but fsdp_*" '
		nm -D --defined-only "$(lib $l)" | awk "{ print \$3 }" >symbols &&
		grep -q "^fsdp_" symbols &&
		! grep -v "^fsdp_" symbols
	'
	test_expect_success "lib$l.so has all that its headers declare" '
		test $l = fsdp && set -- fsdp.h ||
		set -- fsdp_ckpt.h fsdp_layout.h fsdp_status.h &&
		for h in "$@"; do
			# One declaration a line, then the name before the first "(".
			sed "s|/\*.*\*/||" "include/$h" | tr "\n" " " |
			grep -o "FSDP_API[^;{]*" |
			sed -n "s/^FSDP_API \(const \)\?[^(]*[ *]\(fsdp_[a-z0-9_]*\)(.*/\2/p"
		done | sort -u >declared &&
		test -s declared &&
		nm -D --defined-only "$(lib $l)" | awk "{ print \$3 }" |
			sort -u >symbols &&
		comm -23 declared symbols >lacking &&
		test_must_be_empty lacking
	'
done

test_expect_success 'libfsdp and libfsdpckpt link neither MPI nor CUDA' '
	for l in fsdp fsdpckpt; do
		needs "$(lib $l)" >needed &&
		grep -q libc.so needed &&
		! grep -E "libmpi|libopen-|libcuda|libnccl|libcublas" needed ||
		return 1
	done
'

test_expect_success 'libfsdpckpt and its programs link no PMIx either' '
	needs "$(lib fsdpckpt)" >needed &&
	for p in ls verify diff convert reshard consolidate; do
		f=$(program fsdp-$p) &&
		test -e "$f" || continue
		needs "$f" >>needed || return 1
	done &&
	! grep -E "libmpi|libopen-|libpmix|libcuda|libnccl" needed
'

test_done
