#!/bin/sh

test_description='hostile files of torch.save: a corpus and changes of it'

. "$SHARNESS_SH"

corpus="$FSDP_SRCDIR/t/data/fuzz"

test_expect_success 'pickles' '
	"$FSDP_BUILDDIR/t/fuzz/replay-pickle" 1500 "$corpus"/pickle/* >out &&
	grep "^7 files" out
'

test_expect_success 'whole files' '
	"$FSDP_BUILDDIR/t/fuzz/replay-zip" 600 "$corpus"/zip/* >out &&
	grep "^5 files" out
'

test_done
