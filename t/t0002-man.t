#!/bin/sh

test_description='man pages: form, sections, and the same options as --help'

. "$SHARNESS_SH"

# Programs that are built; pages of them and of anything else.
programs=$(make -s -C "$FSDP_BUILDDIR" print-programs)
pages=$(cd "$FSDP_SRCDIR/man" && ls -- *.[1-9] 2>/dev/null)
command -v mandoc >/dev/null && test_set_prereq MANDOC
command -v man >/dev/null && test_set_prereq MAN

# Text of a page without bold and underline.
render() {
	mandoc -T utf8 "$FSDP_SRCDIR/man/$1" | sed 's/.\x08//g'
}

# The text of one section, whose heading starts in the first column.
section() {
	awk -v want="$1" '/^[^ ]/ { on = $0 == want } on && /^ /'
}

# Long options at the head of a line, before the text of what they do.
options() {
	sed -n 's/^ *\(-.*\)/\1/p' | sed 's/   *[^- ].*//' |
		grep -oE -- '--[a-z][a-z0-9-]*' | sort -u
}

test_expect_success 'there is a program, and a page for each' '
	test -n "$programs" &&
	for p in $programs; do
		test -e "$FSDP_SRCDIR/man/$(basename $p).1" || {
			echo "no page for $p" && return 1; }
	done
'

for page in $pages; do
	test_expect_success MAN "$page: man finds nothing to warn of" '
		MANROFFSEQ= MANWIDTH=80 man --warnings -E UTF-8 -l -Tutf8 -Z \
			"$FSDP_SRCDIR/man/$page" >/dev/null 2>warnings &&
		test_must_be_empty warnings
	'
	test_expect_success MANDOC "$page: mandoc finds nothing to warn of" '
		mandoc -T lint -W warning "$FSDP_SRCDIR/man/$page"
	'
done

for program in $programs; do
	name=$(basename "$program")
	page=$name.1
	test -e "$FSDP_SRCDIR/man/$page" || continue
	test_expect_success MANDOC "$page has all sections" '
		render "$page" >text &&
		for s in NAME SYNOPSIS DESCRIPTION OPTIONS "EXIT STATUS" EXAMPLES \
			"SEE ALSO"; do
			section "$s" <text >body && test -s body ||
			{ echo "no section $s" && return 1; }
		done &&
		section "EXIT STATUS" <text | grep -qw 0 &&
		section "EXIT STATUS" <text | grep -qw 64 &&
		section EXAMPLES <text | grep -q "$name"
	'
	test_expect_success MANDOC "$name: the same options in page and --help" '
		run_timeout 20 "$FSDP_BUILDDIR/$program" --help >help &&
		options <help | grep -v -e "--usage" >in-help &&
		render "$page" | section OPTIONS | options |
			grep -v -e "--usage" >in-page &&
		test -s in-help &&
		test_cmp in-help in-page
	'
	test_expect_success "$name: --help and --version on stdout, wrong use 64" '
		run_timeout 20 "$FSDP_BUILDDIR/$program" --version >out 2>err &&
		test_must_be_empty err && grep -q "$name.* [0-9]" out &&
		run_timeout 20 "$FSDP_BUILDDIR/$program" --help >out 2>err &&
		test_must_be_empty err && grep -q "$name" out &&
		test -z "$(tail -c 1 out)" &&
		expect_code 64 run_timeout 20 "$FSDP_BUILDDIR/$program" \
			--no-such-option >out 2>err &&
		test_must_be_empty out && grep -q "$name: .*no-such-option" err
	'
done

test_done
