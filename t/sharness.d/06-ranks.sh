# shellcheck shell=sh
# Sourced by sharness.sh: several ranks as srun would start them, here without
# Slurm; the environment alone says who they are.

# ranks N COMMAND...: each with out.R, err.R and its status in code.R.
ranks() {
	n=$1 pids=
	shift
	for r in $(seq 0 $((n - 1))); do
		rank "$r" "$n" "$@" &
		pids="$pids $!"
	done
	wait $pids
}

# rank R N COMMAND...: one of them, of the step $STEP.
rank() {
	r=$1 n=$2
	shift 2
	run_timeout 60 env SLURM_JOB_ID=7 SLURM_STEP_ID="${STEP:-0}" \
		SLURM_PROCID="$r" SLURM_STEP_NUM_TASKS="$n" "$@" \
		>"out.$r" 2>"err.$r"
	echo $? >"code.$r"
}

# codes CODE...: of ranks 0, 1, …
codes() {
	echo "$@" >expected
	for r in $(seq 0 $(($# - 1))); do
		cat "code.$r"
	done | xargs >actual
	test_cmp expected actual || {
		tail out.* err.*
		return 1
	}
}
