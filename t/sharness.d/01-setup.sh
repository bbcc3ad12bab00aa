# shellcheck shell=sh
# Sourced by sharness.sh: what all shell tests share.  README.md beside this
# directory lists what is here.

# By hand, from a tree that was built in place, nothing needs to be set.
: "${FSDP_SRCDIR:=$(cd "$SHARNESS_TEST_SRCDIR/.." && pwd)}"
: "${FSDP_BUILDDIR:=$FSDP_SRCDIR}"
export FSDP_SRCDIR FSDP_BUILDDIR
: "${FSDP_MODULE_PATH=$FSDP_BUILDDIR/.libs}"
export FSDP_MODULE_PATH
PATH=$FSDP_BUILDDIR/bin:$PATH:/usr/sbin:/sbin
LC_ALL=C.UTF-8 TZ=UTC
export PATH LC_ALL TZ

# What the commands of a test print goes to a log, unless -v shows it;
# "./dev check" shows the end of the log of each file that failed.
# shellcheck disable=SC2154 # sharness sets it
if test "$verbose" != t; then
	mkdir -p "$SHARNESS_TEST_DIRECTORY/test-results" &&
	exec 3>"$SHARNESS_TEST_DIRECTORY/test-results/$(basename "$0" .t).out" 4>&3
fi

# What a test starts and must not leave behind: at_exit COMMAND.  The last one
# runs first.  Commands see the exit status in $?, which is kept.
test_at_exit=
at_exit() {
	test_at_exit="$*
$test_at_exit"
}
test_run_at_exit() {
	code=$?
	eval "$test_at_exit" >&3 2>&4
	(exit "$code")
	die
}
trap test_run_at_exit EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# run_timeout SECONDS COMMAND...: nothing hangs; status 124 or 137 if it did.
run_timeout() {
	seconds=$1
	shift
	timeout -k 5 "$seconds" "$@"
}

# wait_for SECONDS COMMAND...: until it succeeds; it is tried every 0.1 s.
wait_for() {
	wait_left=$(($1 * 10))
	shift
	until "$@"; do
		wait_left=$((wait_left - 1))
		test $wait_left -gt 0 || return 1
		sleep 0.1
	done
}

# no_process PATTERN: none has such a command line.
no_process() {
	! pgrep -f "$1"
}

# catches SIGNAL PID...: there are some, and each has a handler for it.
catches() {
	catches_bit=$(($1 - 1))
	shift
	test $# -gt 0 && for catches_pid; do
		catches_mask=$(sed -n "s/^SigCgt:[[:space:]]*//p" \
			"/proc/$catches_pid/status") &&
			test $((0x$catches_mask >> catches_bit & 1)) = 1 ||
			return 1
	done
}

# expect_code CODE COMMAND...: it ends with exactly this status.
expect_code() {
	want=$1
	shift
	"$@"
	got=$?
	test "$got" = "$want" || {
		echo "status $got, not $want: $*"
		return 1
	}
}

# skip_all WHY: leave the whole file out.  (test_done reads the variable.)
skip_all() {
	# shellcheck disable=SC2034
	skip_all="$*"
	test_done
}

# have NAME: configure found it (MPI, PMIX, DNNL, ...).
have() {
	grep -q "^#define HAVE_$1 1" "$FSDP_BUILDDIR/config.h"
}

# --- Prerequisites

test "$(id -u)" = 0 && test_set_prereq ROOT
grep -q '^#define FSDP_SANITIZED 1' "$FSDP_BUILDDIR/config.h" &&
	test_set_prereq SANITIZED
have DNNL && test_set_prereq DNNL

# Checkpoints by other tools and a reference training run; not in the tarball.
: "${FSDP_SAMPLES:=$FSDP_SRCDIR/../shared/samples}"
test -d "$FSDP_SAMPLES" && test_set_prereq SAMPLES
export FSDP_SAMPLES

# A Python with h5py and numpy, in $PYTHON: Debian's, whatever else is in PATH.
for python in "${PYTHON-}" /usr/bin/python3 python3; do
	if test -n "$python" && "$python" -c 'import h5py, numpy' 2>/dev/null; then
		PYTHON=$python
		export PYTHON
		test_set_prereq PYTHON_H5PY
		break
	fi
done
