#!/bin/sh

test_description='Checkpoints without room or permission to write'

. "$SHARNESS_SH"

# inside COMMAND: with ./small, a file system of 1 MiB and 40 inodes.
inside() {
	unshare -m sh -c "mount -t tmpfs -o size=1m,nr_inodes=40 none small && $1"
}

mkdir small
inside true 2>/dev/null && test_set_prereq TMPFS
setpriv --reuid 65534 --clear-groups true 2>/dev/null &&
	test_set_prereq SETPRIV

make="$FSDP_BUILDDIR/t/ckpt-make"
tiny="--vocab 100 --width 16 --layers 1"

test_expect_success 'sources' '
	"$make" $tiny -w 1 tiny && "$make" -w 2 big
'

test_expect_success TMPFS 'a save that does not fit is refused before it begins' '
	inside "\"$make\" $tiny -w 1 -n 1 small/run >out 2>err &&
		expect() { test \"\$1\" = 74; } &&
		{ \"$make\" -w 2 -n 2 small/run >out 2>err; expect \$?; } &&
		ls -A small/run >names && fsdp-verify -q small/run" &&
	cat err >&2 && grep "only .* are free; nothing was written" err &&
	printf "latest\nstep-00000001\n" >want && test_cmp want names
'

test_expect_success TMPFS 'so is a conversion, after a dry run that says so' '
	inside "fsdp-convert --json -n big small/x >dry &&
		fsdp-convert -q big small/x 2>err; echo \$? >code;
		ls -A small >names" &&
	echo 74 >want && test_cmp want code && test_must_be_empty names &&
	grep "bytes_free" dry && grep "nothing was written" err
'

test_expect_success TMPFS 'a file system without inodes' '
	inside "mount -o remount,size=64m small &&
		fsdp-reshard -q -w 40 --files 40 tiny small/x 2>err;
		echo \$? >code; ls -A small >names" &&
	echo 74 >want && test_cmp want code && test_must_be_empty names &&
	grep "inodes are free" err
'

test_expect_success TMPFS 'a read-only file system' '
	inside "\"$make\" $tiny -w 1 -n 1 small/run &&
		mount -o remount,ro small &&
		{ \"$make\" $tiny -w 2 -n 2 small/run 2>err; echo \$? >code;
		fsdp-convert -q big small/x 2>err2; echo \$? >code2;
		fsdp-verify -q small/run; }" &&
	echo 74 >want && test_cmp want code && test_cmp want code2 &&
	grep "Read-only file system" err && grep "Read-only file system" err2
'

test_expect_success SETPRIV 'a directory of somebody else' '
	mkdir theirs && chmod 755 . theirs &&
	cp -r tiny theirs/run && chmod -R a+rX theirs &&
	cat >try <<-EOT &&
	"$FSDP_BUILDDIR/bin/fsdp-convert" -q big theirs/x
	EOT
	expect_code 74 setpriv --reuid 65534 --clear-groups sh try 2>err &&
	grep "Permission denied" err && ls -A theirs >names &&
	echo run >want && test_cmp want names
'

test_done
