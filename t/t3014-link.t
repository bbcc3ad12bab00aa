#!/bin/sh
#
# --link shares what can be and copies the rest: the target is the same as
# without it.  A preloaded library has reflinks on any file system; where btrfs
# can be mounted, the real ones are tried too.
#
test_description='--link: blocks that source and target share'

. "$SHARNESS_SH"

preload=$FSDP_BUILDDIR/t/.libs/libclone.so
test_have_prereq SANITIZED || { test -e "$preload" && test_set_prereq CLONE; }

if test_have_prereq ROOT && command -v mkfs.btrfs >/dev/null &&
	truncate -s 256M image && mkfs.btrfs -q image && mkdir mnt &&
	mount -o loop image mnt; then
	at_exit "mountpoint -q '$PWD/mnt' && umount '$PWD/mnt'"
	test_set_prereq BTRFS
fi >&3 2>&4

# clone COMMAND...: with reflinks, written to a log.
clone() {
	: >log && env LD_PRELOAD="$preload" FSDP_CLONE_LOG="$PWD/log" "$@"
}

# shared JSON: the bytes it reports are those of the log, whole blocks.
shared() {
	awk '$1 % 4096 || $2 % 4096 || $3 % 4096 || $3 < 65536 { exit 1 }' log &&
	want=$(awk '{ sum += $3 } END { print sum + 0 }' log) &&
	grep "\"bytes_shared\": $want,$" "$1"
}

# same SOURCE TARGET OPTION...: with and without --link; leaves $want.
same() {
	rm -rf "x.$2" "y.$2" &&
	source=$1 target=$2 && shift 2 &&
	fsdp-convert -q "$@" "$source" "x.$target" &&
	clone fsdp-convert --link --json "$@" "$source" "y.$target" >json &&
	diff -r "x.$target" "y.$target" && shared json
}

test_expect_success 'make a checkpoint' '
	ckpt_make four && fsdp-reshard -q --strategy none -w 1 four one &&
	fsdp-consolidate -q four four.safetensors
'

test_expect_success CLONE 'what is laid out alike is shared, but for its edges' '
	same four dir && cp -r x.dir plain &&
	total=$(sed -n "s/.*bytes_written\": \([0-9]*\),/\1/p" json) &&
	test $want -gt $((total * 9 / 10)) && fsdp-verify -q y.dir &&
	! grep "0 bytes shared" json &&
	same four.safetensors safetensors && test $want -gt 1000000 &&
	same one h5 && test $want -gt 1000000 &&
	clone fsdp-reshard --link --strategy none four none >out &&
	grep "MiB ([1-9][0-9]* bytes) shared with the source$" out &&
	fsdp-verify -q none && fsdp-diff -q four none
'

test_expect_success CLONE 'and where stretches are short, or cut elsewhere' '
	same four dir -w 3 && same four dir --strategy hybrid:2 && same four dir -w 7 --files 2 &&
	same four dir --max-mem 1M -j 1 && same one dir -w 4 && same four dir --to dcp
'

test_expect_success CLONE 'what changes is not' '
	same four dir --cast bf16 && test $want = 0 &&
	grep "note: 0 bytes shared: nothing that goes unchanged lies alike" json
'

test_expect_success CLONE 'reflinks that fail half-way are copied over' '
	for code in 5 18 22 25 28 95; do
		rm -rf y && clone env FSDP_CLONE_FAILS=$code fsdp-convert --link four y >out &&
		test -s log && diff -r plain y && grep "^note: 0 bytes shared: " out || return 1
		case $code in
		18) grep "different file systems" out ;;
		25 | 95) grep "the file system has no reflinks" out ;;
		28) grep "No space left on device" out ;;
		esac || return 1
	done
'

test_expect_success CLONE 'a damaged source is found' '
	cp -r four bad && shard=bad/step-00000100/shard-00001.h5 &&
	flip $shard $(($(wc -c <$shard) / 2)) &&
	expect_code 65 clone fsdp-convert --link bad no 2>err && test ! -e no &&
	grep "the file is damaged" err
'

test_expect_success CLONE 'several ranks add up what they share' '
	rm -rf y && : >log && pids= &&
	for rank in 0 1 2; do
		run_timeout 60 env SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=$rank \
			SLURM_STEP_NUM_TASKS=3 LD_PRELOAD="$preload" \
			FSDP_CLONE_LOG="$PWD/log" fsdp-convert --link --json four y \
			>json.$rank 2>err.$rank &
		pids="$pids $!"
	done &&
	for pid in $pids; do
		wait $pid || return 1
	done &&
	diff -r plain y && shared json.0 && test $want -gt 1000000
'

test_expect_success 'usage: nothing to share with --virtual' '
	expect_code 64 fsdp-convert --link --virtual four no.h5 2>err && grep -e "--link" err
'

test_expect_success BTRFS 'btrfs: shared, verified, and independent of the source' '
	cp -r four mnt/ && fsdp-convert --json --link mnt/four mnt/y >json &&
	bytes=$(sed -n "s/.*bytes_shared\": \([0-9]*\),/\1/p" json) &&
	test "$bytes" -gt 1000000 && fsdp-convert -q four x && diff -r x mnt/y &&
	btrfs filesystem du --raw -s mnt/y >du && test "$(awk "END { print \$3 }" du)" -ge "$bytes" &&
	rm -r mnt/four && sync && fsdp-verify -q mnt/y
'

test_expect_success BTRFS 'from one file system to another: copied' '
	fsdp-convert --link four mnt/z >out &&
	grep "^note: 0 bytes shared: source and target are on different file systems$" out &&
	diff -r x mnt/z
'

test_expect_success BTRFS 'clean up' 'umount mnt'

test_done
