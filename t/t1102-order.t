#!/bin/sh

test_description='ranks that do different things, and steps that cannot be made'

. "$SHARNESS_SH"

toy=$FSDP_BUILDDIR/t/shard-toy

test_expect_success MPI 'two units swapped on one rank: all ranks name both' '
	MPIRUN_TIMEOUT=30 test_must_fail mpirun_np 3 "$toy" -s full --swap 2 2>err &&
	grep "on rank 0 .*unit .h\.1. begins forward, on rank 2 .*unit .h\.2." err
'

test_expect_success MPI 'the same without sharding' '
	MPIRUN_TIMEOUT=30 test_must_fail mpirun_np 3 "$toy" -s none --swap 1 2>err &&
	grep "on rank 0 .*unit .h\.1. begins forward, on rank 1 .*unit .h\.2." err
'

test_expect_success MPI 'swapped in a later round: this rank names both' '
	MPIRUN_TIMEOUT=30 test_must_fail \
		mpirun_np 2 "$toy" -s full --swap 1 --swap-round 5 2>err &&
	grep "rank 1: mismatch: .*unit .h\.2. begins forward where unit .h\.1." err
'

test_expect_success 'swapped in a later round on a single rank' '
	expect_code 2 "$toy" --swap 0 --swap-round 9 2>err &&
	grep "mismatch: .*unit .h\.2. begins forward where unit .h\.1." err
'

test_expect_success MPI 'another shape on one rank: named before training' '
	MPIRUN_TIMEOUT=30 test_must_fail mpirun_np 3 "$toy" --odd 1 >out 2>err &&
	grep "rank 0 .*has parameter .h\.0\.bias.*shape 5, rank 1 .*shape 6" err &&
	! grep digest out
'

test_expect_success 'gradients that are no number are not used' '
	"$toy" --poison 2 >out && grep "^step 2 .*norm inf" out &&
	"$toy" >want &&
	grep -v "norm inf" out | head -n 3 >head && head -n 3 want >head.want &&
	test_cmp head.want head
'

test_expect_success MPI 'nor on many ranks' '
	mpirun_np 3 "$toy" -s full --poison 2 >out.3 && test_cmp out out.3
'

test_expect_success MPI 'F must divide W' '
	MPIRUN_TIMEOUT=30 test_must_fail mpirun_np 4 "$toy" -s hybrid:3 2>err &&
	grep "configuration" err
'

test_done
