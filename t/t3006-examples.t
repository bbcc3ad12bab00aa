#!/bin/sh

test_description='the examples of the manual pages do what they say'

. "$SHARNESS_SH"

# The commands of a page, as a shell would read them.
examples() {
	awk '/^\.SH / { on = $2 == "EXAMPLES" } /^\.EE/ { text = 0 }
		on && text { print } /^\.EX/ { text = 1 }' "$1" |
		sed 's/\\-/-/g; s/\\(aq/'"'"'/g; s/\\(dq/"/g; s/\\e/\\/g'
}

command -v jq >/dev/null && test_set_prereq JQ
command -v h5ls >/dev/null && test_set_prereq H5LS

test_expect_success 'make a checkpoint' '
	ckpt_make made
'

for page in ls verify diff convert reshard consolidate latest prune rules; do
	examples "$FSDP_SRCDIR/man/fsdp-$page".[1-9] >"$page.examples"
	use=fsdp-$page
	test "$page" = rules && use="fsdp-convert --rules"
	test_expect_success "fsdp-$page has examples of it" '
		grep "^$use " $page.examples
	'
	mkdir "$page"
	cp -r made "$page/ckpt"
	if test "$page" = verify; then
		fsdp-convert --to hdf5-file made verify/imported.h5
		echo '{"tensors": []}' >verify/manifest.json
	fi
	n=0
	while read -r line; do
		n=$((n + 1))
		echo "$line" >"$page.$n"
		needs=
		case $line in
		*'| jq'*) needs=JQ ;;
		h5ls*) needs=H5LS ;;
		esac
		test_expect_success $needs "$line" "
			(cd $page && run_timeout 60 sh -e ../$page.$n) >out 2>err &&
			cat out && test_must_be_empty err
		"
	done <"$page.examples"
done

test_expect_success 'none of them changed the checkpoint' '
	for page in ls verify diff convert reshard consolidate rules; do
		diff -r made $page/ckpt || return 1
	done
'

test_done
