#!/bin/sh

test_description='How the programs end: signals, closed pipes, a full disk'

. "$SHARNESS_SH"

tools='ls verify diff convert reshard consolidate latest prune train'

step=run/step-00000100

test_expect_success 'checkpoints' '
	ckpt_make -n 100 run && ckpt_make -n 200 run
'

for t in $tools; do
	test_expect_success "fsdp-$t: a help that cannot be printed is 74" '
		for option in --help --version --usage; do
			expect_code 74 fsdp-$t $option >/dev/full 2>err &&
			grep "^fsdp-$t: cannot write the results .*: No space left" \
				err && line_count 1 err || return 1
		done
	'
done

# full CODE COMMAND...: with nowhere to print to; says so once.
full() {
	code=$1
	shift
	expect_code "$code" "$@" >/dev/full 2>err &&
		test "$(grep -c "^$1: cannot write the results .*: No space left" err)" = 1
}

test_expect_success 'results that cannot be printed are 74, of fsdp-diff 2' '
	full 74 fsdp-ls $step && full 74 fsdp-ls --json $step &&
	full 74 fsdp-verify $step && full 74 fsdp-verify --json $step &&
	full 74 fsdp-latest run && full 74 fsdp-prune -n --keep-last 1 run &&
	full 2 fsdp-diff $step run/step-00000200 &&
	full 74 fsdp-convert -n $step no && full 74 fsdp-reshard -w 2 $step two &&
	full 74 fsdp-consolidate --json $step one.h5
'

test_expect_success 'what was to be written is there all the same' '
	fsdp-diff -q $step two && fsdp-verify -q one.h5
'

# piped COMMAND...: nobody reads what it prints; its status in $code.
piped() {
	rm -f code fifo && mkfifo fifo && exec 9<>fifo 8>fifo 9>&- &&
	{ env --default-signal=PIPE "$@" >&8 8>&- 2>err; code=$?; exec 8>&-; } &&
	test_must_be_empty err
}

test_expect_success 'a reader that has gone ends them by SIGPIPE, silently' '
	for run in "ls $step" "verify $step" "diff $step run/step-00000200" \
		"latest run" "convert -v $step gone"; do
		piped fsdp-$run; test $code = 141 || return 1
	done &&
	fsdp-verify -q gone && test -z "$(find . -name "*.tmp*")"
'

# A signal at calls that look at a file: each of these ends by it, and says so
# if it has begun to work.
signalled() {
	fault_points readterm "$@" >points && test -s points || return
	while read -r number kind call path; do
		rm -rf new
		expect_code 143 fault "readterm:$number" "$@" >out 2>err \
			</dev/null || {
			echo "$kind $number, $call $path"
			return 1
		}
		! grep -v "^note: \|^Terminated$\|: stopped by a signal: " err ||
			return 1
		test -z "$(find . -name "*.tmp*")" || return 1
	done <points
}

for run in "ls --stats $step" "verify $step" "diff $step run/step-00000200" \
	"latest --deep run" "prune --keep-last 5 run" "convert $step new"; do
	test_expect_success FAULT "SIGTERM ends fsdp-${run%% *}" "
		signalled fsdp-$run && fsdp-verify -q $step
	"
done

test_done
