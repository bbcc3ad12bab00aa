# shellcheck shell=sh
# Sourced by sharness.sh: faults at the calls of a program (t/fault.c says
# which there are).

FAULT_PRELOAD=$FSDP_BUILDDIR/t/.libs/libfault.so
test -e "$FAULT_PRELOAD" && ! test_have_prereq SANITIZED &&
	test_set_prereq FAULT

# fault WHAT COMMAND...: a fault at what it does to files below this directory;
# calls go on to the library $FAULT_NEXT, if that is set.
fault() {
	fault_what=$1 fault_program=$2
	shift 2
	# What libtool puts in front of a program takes longer than that itself.
	fault_built=$FSDP_BUILDDIR/bin/.libs/$fault_program
	test ! -x "$fault_built" || fault_program=$fault_built
	env --default-signal=HUP,INT,TERM LD_PRELOAD="$FAULT_PRELOAD ${FAULT_NEXT-}" \
		LD_LIBRARY_PATH="$FSDP_BUILDDIR/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
		FSDP_FAULT="$fault_what" FSDP_FAULT_DIR="$PWD" \
		FSDP_FAULT_LOG="$HOME/fault-calls" "$fault_program" "$@"
}

# fault_points MODE COMMAND...: a line for each call to try: its number, "look",
# "change" or "remove", the call's name and the path.  Without --long about
# $FAULT_SAMPLE (3), others for each mode and each length of the command.
fault_points() {
	fault_mode=$1
	shift
	rm -f "$HOME/fault-calls"
	fault count:0 "$@" >&2 || return
	case $fault_mode in
	read*) grep "^look" "$HOME/fault-calls" ;;
	rmeio) grep "^remove" "$HOME/fault-calls" ;;
	eintr) grep -v "^remove" "$HOME/fault-calls" ;;
	kill) grep -v "^look" "$HOME/fault-calls" ;;
	*) grep "^change" "$HOME/fault-calls" ;;
	esac | awk -v all="$(test_have_prereq EXPENSIVE && echo 1)" \
		-v seed="$fault_mode $*" -v sample="${FAULT_SAMPLE:-3}" '
		{ line[NR] = $0 }
		END {
			every = all ? 1 : int(NR / sample) + 1
			for (i = length(seed) % every + 1; i <= NR; i += every)
				print i, line[i]
		}'
}

# fault_text MODE: what a message says of it.
fault_text() {
	case $1 in
	enospc) echo 'No space left on device' ;;
	edquot) echo 'Disk quota exceeded' ;;
	estale) echo 'Stale file handle' ;;
	*) echo 'Input/output error' ;;
	esac
}
