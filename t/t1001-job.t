#!/bin/sh
test_description='ranks find each other under mpirun, and say what goes wrong'
. "$SHARNESS_SH"

ring=$FSDP_BUILDDIR/t/job-ring

test_expect_success 'without a launcher a process is alone' '
	"$ring" >out &&
	grep "^rank 0 of 1 local 0 of 1 node 0 of 1 .* launcher none backend self" out
'

for n in 1 2 3 4; do
	test_expect_success MPI "$n ranks: exchanges, sums, maxima, bytes" '
		mpirun_np $n "$ring" --run-dir=run >out 2>err &&
		test_debug "cat out err" &&
		test $(grep -c "^rank [0-9] of $n local [0-9] of $n node 0 of 1" out) = $n &&
		grep -o "^rank [0-9]* of $n local [0-9]*" out | sort >ranks &&
		for r in $(seq 0 $((n - 1))); do
			echo "rank $r of $n local $r"
		done >want &&
		test_cmp want ranks &&
		test $(sed -n "s/.* id //p" out | sort -u | wc -l) = 1 &&
		test_must_fail test -s err
	'
	# 20 rounds of 8000 bytes to each other rank, and to the other of a pair.
	test_expect_success MPI "$n ranks: sent what the collectives are to send" '
		test $(grep -c "^sent gather $((20 * 8000 * (n - 1 + (n > 1)))) \|^sent gather $((20 * 8000 * (n - 1))) " out) = $n &&
		test $(grep -c " link 0 in 20 rounds" out) = $n
	'
	test_expect_success MPI "$n ranks: no heartbeat stays behind" '
		test -d run && test -z "$(ls -A run)"
	'
done

# Blocks of 400000 bytes: with 2 ranks a node each crosses once to each other
# node, and is passed on there; with 4 and 2 ranks a node, straight.
test_expect_success MPI 'large blocks cross between nodes once' '
	mpirun_np 6 "$ring" --per-node=2 --block=50000 >out &&
	test $(grep -c "^sent gather 48000000 reduce 8000000 .* link 24[0-9]* in 20" out) = 3 &&
	test $(grep -c "^sent gather 48000000 reduce 8000000 .* link 16[0-9]* in 20" out) = 3
'

test_expect_success MPI 'uneven nodes' '
	mpirun_np 6 "$ring" --per-node=4 --block=50000 >out &&
	test $(grep -c "^sent gather 48000000 reduce 8000000 " out) = 6
'

test_expect_success MPI 'an error of one rank is the error of all' '
	expect_code 74 mpirun_np 3 "$ring" -q --fail=1 >out 2>err &&
	grep -q "^job-ring: input/output: disk of rank 1 is full" err &&
	test_must_fail grep "disk of rank 2" err
'

test_expect_success MPI,ROOT 'a run directory that cannot be: all ranks say why' '
	expect_code 74 mpirun_np 2 "$ring" -q --run-dir=/proc/no 2>err &&
	grep "^job-ring: input/output: /proc/no: " err
'

test_expect_success MPI 'a rank that does not come is named at the deadline' '
	mkdir -p late &&
	expect_code 69 mpirun_np 3 sh -c "
		test \$OMPI_COMM_WORLD_RANK != 2 || exec sleep 20
		exec \"\$0\" -q --run-dir=late --deadline=3" "$ring" 2>err &&
	grep "^job-ring: peer lost: rank [01] on .*: start-up: .* rank 2 on .* has not arrived" err
'

test_expect_success MPI 'a rank that stands still is named at the deadline' '
	mkdir -p still &&
	expect_code 69 mpirun_np 3 "$ring" -q --run-dir=still --deadline=4 \
		--seconds=30 --stop=1 2>err &&
	grep "^job-ring: peer lost: rank [02] on .*: round of ring: .* rank 1 on .* is gone, last seen [0-9.]* s ago in round of step" err
'

test_expect_success MPI 'nobody is left' '
	test_must_fail pgrep -f "$ring -q --run-dir=still"
'

test_expect_success 'the variables of a launcher without PMIx: refused, with the cure' '
	expect_code 69 env SLURM_JOB_ID=1 SLURM_NTASKS=2 "$ring" 2>err &&
	grep "srun --mpi=pmix.*libpmix-dev" err &&
	SLURM_JOB_ID=1 SLURM_NTASKS=2 "$ring" --alone >out &&
	grep "^rank 0 of 1" out
'

test_done
