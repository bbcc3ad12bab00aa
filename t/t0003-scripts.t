#!/bin/sh

test_description='shell scripts, and the form of source files'

. "$SHARNESS_SH"

# All scripts of the tree, tests included, by their first line.
scripts() {
	find "$FSDP_SRCDIR"/dev "$FSDP_SRCDIR"/.ci "$FSDP_SRCDIR"/scripts \
		"$FSDP_SRCDIR"/slurm "$FSDP_SRCDIR"/t -name "trash *" -prune -o \
		-type f -size -100k -print | while read -r file; do
		case $(head -c 40 "$file" | head -n 1) in
		'#!/bin/sh'* | '#!/bin/bash'* | '# shellcheck shell='*) echo "$file" ;;
		esac
	done
}

command -v shellcheck >/dev/null && test_set_prereq SHELLCHECK
command -v clang-format >/dev/null && test_set_prereq CLANG_FORMAT

test_expect_success SHELLCHECK 'shellcheck finds nothing' '
	scripts >files &&
	grep -q "/dev$" files && grep -q "/cluster$" files &&
	grep -q "/t0003-scripts.t$" files &&
	grep -v "\.t$" files | xargs shellcheck -S warning &&
	# sharness is elsewhere, and reads variables that the test sets.
	grep "\.t$" files | xargs shellcheck -S warning -e SC1090,SC1091,SC2034
'

test_expect_success 'test files are executable and read sharness' '
	for t in "$FSDP_SRCDIR"/t/t[0-9]*.t; do
		test -x "$t" && grep -q "^\. \"\$SHARNESS_SH\"" "$t" ||
		{ echo "$t" && return 1; }
	done
'

test_expect_success 'each test file is in the list' '
	make -s -C "$FSDP_BUILDDIR" print-tests | grep "^t/t[0-9]" |
		sort >listed &&
	(cd "$FSDP_SRCDIR" && ls t/t[0-9]*.t | sort) >there &&
	test_cmp there listed
'

test_expect_success 'wrong use of the scripts ends with 64' '
	expect_code 64 "$FSDP_SRCDIR/dev" nonsense &&
	expect_code 64 "$FSDP_SRCDIR/slurm/cluster" nonsense &&
	expect_code 64 "$FSDP_SRCDIR/scripts/install-deps-deb.sh" nonsense
'

test_expect_success 'without root the list of packages says what is missing' '
	mkdir fake &&
	cat >fake/dpkg-query <<-\END &&
	#!/bin/sh
	for p; do :; done
	case $p in libjansson-dev | make) exit 1 ;; esac
	echo installed
	END
	chmod +x fake/dpkg-query &&
	PATH=$PWD/fake:$PATH expect_code 1 \
		"$FSDP_SRCDIR/scripts/install-deps-deb.sh" --check 2>err &&
	grep "missing packages: make libjansson-dev$" err
'

test_expect_success 'no tab and no trailing blank in C files' '
	(cd "$FSDP_SRCDIR" && find lib ckpt bin t/unit t/tap -name "*.[ch]") >files &&
	test -s files &&
	tab=$(printf "\t") &&
	(cd "$FSDP_SRCDIR" && ! xargs grep -nE "$tab| \$" /dev/null) <files
'

test_expect_success ROOT 'an ordinary user is told what to install' '
	dir=$(mktemp -d /tmp/fsdp-t.XXXXXX) &&
	at_exit "rm -rf $dir" &&
	cp fake/dpkg-query "$FSDP_SRCDIR/scripts/install-deps-deb.sh" "$dir" &&
	chmod 755 "$dir" "$dir"/* &&
	PATH=$dir:$PATH expect_code 69 setpriv --reuid 65534 --clear-groups \
		"$dir/install-deps-deb.sh" 2>err &&
	grep "missing packages: make libjansson-dev$" err &&
	grep "sudo apt-get install make libjansson-dev$" err
'

# Advice only: other versions of clang-format may not agree.
if test_have_prereq CLANG_FORMAT; then
	(cd "$FSDP_SRCDIR" && find lib ckpt bin t/unit t/tap -name '*.[ch]' -exec \
		clang-format --dry-run {} + 2>&1) | sed -n 's/:[0-9].*//p' |
		sort -u | sed 's/^/# clang-format would change /'
fi

test_done
