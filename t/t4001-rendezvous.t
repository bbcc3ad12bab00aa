#!/bin/sh
test_description='ranks find each other under srun, or say who is missing where'
. "$SHARNESS_SH"

test_have_prereq SLURM || skip_all 'no private Slurm cluster here'

ring=$FSDP_BUILDDIR/t/job-ring

test_expect_success 'start a cluster of two nodes' '
	cluster_up -n 2 -c 4 -o SlurmdTimeout=20
'

# ring_srun RC SRUN-OPTION... -- OPTION...: run it, files out and err; the time
# it took in $took.
ring_srun() {
	want=$1
	shift
	options=
	while test "$1" != --; do
		options="$options $1"
		shift
	done
	shift
	began=$(date +%s)
	# shellcheck disable=SC2086
	expect_code "$want" in_cluster srun $options "$ring" "$@" >out 2>err
	ring_rc=$?
	took=$(($(date +%s) - began))
	echo "after $took s:" && cat out err
	return $ring_rc
}

no_rank_left() {
	wait_for 30 no_process "^$ring .*--run-dir=$1"
}

test_expect_success '2 nodes of 2 ranks' '
	ring_srun 0 --mpi=pmix -N2 -n4 --ntasks-per-node=2 -- --run-dir=run &&
	sed -n "s/ launcher.*//p" out | sort >places &&
	cat >want <<-END &&
	rank 0 of 4 local 0 of 2 node 0 of 2 host n1
	rank 1 of 4 local 1 of 2 node 0 of 2 host n1
	rank 2 of 4 local 0 of 2 node 1 of 2 host n2
	rank 3 of 4 local 1 of 2 node 1 of 2 host n2
	END
	test_cmp want places &&
	test $(grep -c "launcher srun backend mpi" out) = 4 &&
	test $(sed -n "s/.* id //p" out | sort -u | wc -l) = 1 &&
	test -z "$(ls -A run)"
'

# To the two ranks of the other node: two blocks of the all-gather a round,
# and for ranks 1 and 3, whose next is there, one of the ring.
test_expect_success 'bytes to other nodes are counted' '
	test $(grep -c " reduce 160000 .* link 32[0-9]*" out) = 2 &&
	test $(grep -c " reduce 160000 .* link 48[0-9]*" out) = 2
'

test_expect_success '3 ranks on one node, 1 on the other, dealt in turn' '
	ring_srun 0 --mpi=pmix -N2 -n4 -m cyclic -- &&
	sed -n "s/ launcher.*//p" out | sort >places &&
	cat >want <<-END &&
	rank 0 of 4 local 0 of 3 node 0 of 2 host n1
	rank 1 of 4 local 0 of 1 node 1 of 2 host n2
	rank 2 of 4 local 1 of 3 node 0 of 2 host n1
	rank 3 of 4 local 2 of 3 node 0 of 2 host n1
	END
	test_cmp want places
'

for mpi in none pmi2; do
	test_expect_success "srun --mpi=$mpi of several ranks is refused" '
		ring_srun 69 --mpi=$mpi -n2 -- &&
		test $(grep -c "^job-ring: no launcher: .*srun --mpi=pmix.*libpmix-dev" err) = 2
	'
done

test_expect_success 'srun --mpi=none of one rank is alone' '
	ring_srun 0 --mpi=none -n1 -- &&
	grep "^rank 0 of 1 .* launcher srun backend self" out
'

test_expect_success 'a batch script that forgets srun is refused' '
	cat >batch.sh <<-END &&
	#!/bin/sh
	"$ring"
	END
	expect_code 69 in_cluster sbatch -N2 -n2 -W -o batch.out batch.sh &&
	grep "^job-ring: no launcher: .*srun was not used.*srun --mpi=pmix" batch.out
'

test_expect_success 'mpirun in a batch script' '
	cat >mpirun.sh <<-END &&
	#!/bin/sh
	mpirun "$ring" -s 0
	END
	in_cluster sbatch -N2 -n4 --ntasks-per-node=2 -W -o mpirun.out mpirun.sh &&
	cat mpirun.out &&
	test $(grep -c "^rank [0-3] of 4 local [01] of 2 node [01] of 2 host n[12] launcher mpirun backend mpi" mpirun.out) = 4 &&
	grep "^rank 3 of 4 local 1 of 2 node 1 of 2 host n2 " mpirun.out
'

test_expect_success 'a rank that comes too late is named with its node' '
	cat >late.sh <<-END &&
	#!/bin/sh
	test \$SLURM_PROCID != 3 || exec sleep 60
	exec "$ring" -q --run-dir="$PWD/late" --deadline=3
	END
	chmod +x late.sh &&
	began=$(date +%s) &&
	! in_cluster srun --mpi=pmix -K1 -N2 -n4 \
		--ntasks-per-node=2 ./late.sh 2>err &&
	cat err &&
	test $(($(date +%s) - began)) -lt 15 &&
	grep "^job-ring: peer lost: rank [012] on n[12]: start-up: no progress for [34].[0-9] s: rank 3 on n2 has not arrived" err
'

test_expect_success 'a rank that ends before it starts, too' '
	cat >gone.sh <<-END &&
	#!/bin/sh
	test \$SLURM_PROCID != 1 || exit 0
	exec "$ring" -q --run-dir="$PWD/gone" --deadline=3
	END
	chmod +x gone.sh &&
	expect_code 69 in_cluster srun --mpi=pmix -N2 -n2 ./gone.sh 2>err &&
	cat err &&
	grep "^job-ring: peer lost: rank 0 on n1: start-up: .*: rank 1 on n2 has not arrived" err
'

# -K1: the survivors get SIGTERM, and some seconds to say what they know.
test_expect_success 'kill -9 of a rank, one rank a node' '
	ring_srun 137 --mpi=pmix -K1 -N2 -n2 -- -q --run-dir=one --deadline=20 \
		--seconds=60 --kill=1 &&
	test $took -lt 15 &&
	grep "^job-ring: peer lost: rank 0 on n1: round of ring: .*: rank 1 on n2 is gone, last seen .* in round of step" err &&
	no_rank_left one
'

test_expect_success 'kill -9 of a rank, two ranks a node, under traffic' '
	ring_srun 137 --mpi=pmix -K1 -N2 -n4 --ntasks-per-node=2 -- -q \
		--run-dir=two --deadline=20 --seconds=60 --block=100000 --kill=3 &&
	test $took -lt 15 &&
	grep "^job-ring: peer lost: rank [012] on n[12]: round of ring: .*: rank 3 on n2 is gone, last seen .* in round of step" err &&
	no_rank_left two
'

test_expect_success 'kill -9 of a rank, without -K1: at the deadline' '
	ring_srun 137 --mpi=pmix -K0 -N2 -n2 -- -q --run-dir=slow --deadline=3 \
		--seconds=60 --kill=0 &&
	test $took -lt 20 &&
	grep "^job-ring: peer lost: rank 1 on n2: round of ring: no progress for [34].[0-9] s: rank 0 on n1 is gone" err &&
	no_rank_left slow
'

test_expect_success 'a node without power: its ranks are named' '
	(
		in_cluster srun --mpi=pmix -K1 -N2 -n4 --ntasks-per-node=2 "$ring" \
			-q --run-dir=power --deadline=4 --seconds=60 >out 2>err
		echo $? >rc
	) &
	wait_for 60 eval "grep -qs \" round \" power/.job-*/rank-00003" &&
	cluster kill n2 &&
	wait &&
	cat err &&
	test "$(cat rc)" != 0 &&
	grep "^job-ring: peer lost: rank [01] on n1: round of ring: .*: ranks 2, 3 on n2 are gone, rank 2 last seen" err &&
	no_rank_left power
'

test_done
