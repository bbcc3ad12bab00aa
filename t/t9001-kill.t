#!/bin/sh
test_description='a rank dies at a random time: named, nothing left, nothing lost

Twenty runs under srun -K1 on a private cluster, ten with one rank a node and
ten with two.  KILL_RUNS=N changes the number, KILL_SEED the times.'

. "$SHARNESS_SH"

test -n "$TEST_LONG" || skip_all 'a long test: ./dev check --long'
test_have_prereq SLURM || skip_all 'needs root, namespaces, Slurm, PMIx, MPI'

runs=${KILL_RUNS:-20}
seed=${KILL_SEED:-$(date +%s)}
deadline=20

test_expect_success 'set up text and cluster' '
	seq 1 40000 | sed "s/\$/ bottles of ink stand upon the shelf/" >text &&
	cluster_up -n 4 -c 2 &&
	echo "times are drawn with KILL_SEED=$seed" >&3
'

# draw N: sets drawn to a number in [0, N), the next of the sequence.
draw() {
	seed=$(((seed * 1103515245 + 12345) % 2147483648))
	drawn=$((seed / 65536 % $1))
}

# pids of fsdp-train, as seen from outside, in the order of ranks.
ranks_running() {
	for environ in /proc/[0-9]*/environ; do
		pid=${environ#/proc/}
		pid=${pid%/environ}
		test "$(cat "/proc/$pid/comm" 2>/dev/null)" = fsdp-train || continue
		tr "\0" "\n" <"$environ" 2>/dev/null |
			grep -q "^SLURM_CONF=$CLUSTER_DIR/" || continue
		rank=$(tr "\0" "\n" <"$environ" 2>/dev/null |
			sed -n "s/^SLURM_PROCID=//p")
		test -z "$rank" || echo "$rank $pid"
	done | sort -n
}

train() {
	in_cluster srun --mpi=pmix -K1 "$@"
}

# kill_one NODES RANKS: start, wait for a random time, kill a random rank.
kill_one() {
	nodes=$1 ranks=$2 dir=run-$3
	draw 6000 && wait_ms=$drawn
	draw "$ranks" && victim=$drawn
	train -N "$nodes" -n "$ranks" "$FSDP_BUILDDIR/bin/fsdp-train" text \
		--layers 4 --width 192 --heads 4 --seq 64 --batch 4 \
		--micro-batches 8 --steps 100000 --valid 0 --save "$dir" \
		--save-every 3 --deadline $deadline >"$dir.out" 2>"$dir.err" &
	srun=$!
	i=0
	until test "$(ranks_running | wc -l)" = "$ranks"; do
		i=$((i + 1))
		test $i -lt 200 || return 1
		sleep 0.1
	done
	sleep "$((wait_ms / 1000)).$(printf %03d $((wait_ms % 1000)))"
	pid=$(ranks_running | sed -n "s/^$victim //p")
	kill -KILL "$pid" || return 1
	began=$(date +%s)
	wait $srun
	code=$?
	took=$(($(date +%s) - began))
	echo "killed rank $victim after $wait_ms ms: srun ended with $code" \
		"after $took s" >&3
	grep "^fsdp-train" "$dir.err" >&3
	test $code -ne 0 || return 1
	test $took -le $((deadline + 10)) || return 1
	node=n$((victim * nodes / ranks + 1))
	grep -q "^fsdp-train: .*rank[s]* .*$victim.*$node" "$dir.err" || return 1
	test -z "$(ranks_running)" || return 1
	# What was complete before is complete now, and can be loaded.
	if test -e "$dir/latest"; then
		fsdp-verify "$dir/$(cat "$dir/latest")" >&3 || return 1
		step=$(sed "s/step-0*//" "$dir/latest") &&
		fsdp-train text --layers 4 --width 192 --heads 4 --seq 64 \
			--batch 4 --micro-batches 8 --valid 0 \
			--resume "$dir" --steps $((step + 1)) >&3 || return 1
	fi
	rm -rf "$dir"
}

n=0
while test $n -lt "$runs"; do
	n=$((n + 1))
	if test $((n % 2)) = 0; then nodes=2 ranks=4; else nodes=4 ranks=4; fi
	test_expect_success "run $n: $ranks ranks on $nodes nodes" "
		kill_one $nodes $ranks $n
	"
done

test_done
