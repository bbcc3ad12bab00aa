#!/bin/sh

test_description='fsdp-train under Slurm: srun, sbatch, a rank that dies'

. "$SHARNESS_SH"

test_have_prereq SLURM || skip_all 'no private cluster here'

tiny="$(tiny --micro-batches 4 --valid 0)"
text_make text
FSDP_TRAIN=$FSDP_BUILDDIR/bin/fsdp-train

test_expect_success 'two nodes' '
	cluster_up -n 2 -c 2
'

test_expect_success 'srun on 2 x 2: ranks, nodes and launcher are right' '
	run_timeout 60 "$FSDP_TRAIN" $tiny --steps 4 --log one text >out &&
	in_cluster srun --mpi=pmix -K1 -N2 -n4 "$FSDP_TRAIN" $tiny --steps 4 \
		--log four --save ckpt text >out 2>&1 &&
	cat out &&
	grep "^ranks  *4 on 2 nodes, started by srun, data by mpi" out &&
	grep "saved step 4" out &&
	losses one >expected && losses four >actual && test_cmp expected actual
'

test_expect_success 'without PMIx it refuses, with the cure' '
	expect_code 69 in_cluster srun --mpi=none -N2 -n2 "$FSDP_TRAIN" \
		$tiny --steps 1 text >out 2>&1 &&
	cat out &&
	grep "^fsdp-train: .*--mpi=pmix" out
'

test_expect_success 'sbatch, resumed on one node with three ranks' '
	cat >job.sbatch <<-END &&
	#!/bin/sh
	#SBATCH -N 1 -n 3 --overcommit -o job.out
	srun --mpi=pmix -K1 --overcommit "$FSDP_TRAIN" $tiny --steps 6 \
		--strategy grad-op --resume ckpt --log resumed text
	END
	in_cluster sbatch --wait job.sbatch >out && cat job.out &&
	losses resumed >actual && test $(wc -l <actual) = 6 &&
	head -n 1 actual >first && echo "step 5" >expected &&
	test_cmp expected first
'

# Ranks on this machine whose environment says number N of the job.
rank_pid() {
	for p in $(pgrep -f "fsdp-train.*long-run"); do
		grep -qaz "^PMIX_RANK=$1\$" "/proc/$p/environ" 2>/dev/null &&
			test "$(cat /proc/$p/comm)" != srun && echo "$p" && return
	done
	return 1
}

test_expect_success 'kill -9 of a rank: the others name it, and all end' '
	{ in_cluster srun --mpi=pmix -K1 -N2 -n4 "$FSDP_TRAIN" $tiny \
		--steps 1000000 --deadline 10 --save long-run --save-every 5 \
		--log dying text >dying.out 2>&1 & } &&
	srun=$! &&
	wait_for 60 test -e long-run/latest &&
	victim=$(rank_pid 2) && kill -9 "$victim" &&
	start=$(date +%s) &&
	! wait $srun &&
	test $(($(date +%s) - start)) -lt 40 &&
	tail -n 20 dying.out &&
	grep "fsdp-train: rank [013] on .*rank 2" dying.out &&
	wait_for 30 no_process "fsdp-train.*long-run" &&
	run_timeout 60 "$FSDP_TRAIN" --steps 1 --valid 0 --resume long-run \
		text >out &&
	grep "nothing to do" out
'

test_done
