#!/bin/sh

test_description='the checkpoint tools under srun, on two nodes'

. "$SHARNESS_SH"

test_have_prereq SLURM || skip_all 'no private cluster here'

preload=$FSDP_BUILDDIR/t/.libs/libfault.so
test_have_prereq SANITIZED || { test -e "$preload" && test_set_prereq FAULT; }
for tool in convert reshard consolidate verify; do
	ln -s "$FSDP_BUILDDIR/bin/fsdp-$tool" .
done

nothing_hidden() {
	find . -name ".tmp*" >hidden
	test_must_be_empty hidden
}

test_expect_success 'two nodes and a source' '
	cluster_up -n 2 -c 2 &&
	ckpt_make -w 4 --vocab 3000 --width 128 src &&
	fsdp-reshard -q -w 3 --strategy grad-op src one &&
	fsdp-consolidate -q src one.safetensors && rm -f config.json &&
	fsdp-convert -q --to dcp -w 3 src one-dcp
'

test_expect_success '2 x 2 ranks: the bytes of one process, said once' '
	in_cluster srun --mpi=none -N2 -n4 ./fsdp-reshard -w 3 \
		--strategy grad-op src many >out 2>err && cat out err &&
	test "$(grep -c "by 4 ranks$" out)" = 1 && test_must_be_empty err &&
	diff -r one many && nothing_hidden
'

test_expect_success 'with PMIx, one file, and PyTorch files' '
	in_cluster srun --mpi=pmix -N2 -n3 ./fsdp-consolidate src \
		many.safetensors >out 2>err && cat out err &&
	test "$(grep -c "by 3 ranks$" out)" = 1 && cmp one.safetensors many.safetensors &&
	in_cluster srun --mpi=none -N2 -n2 ./fsdp-convert -q --to dcp -w 3 \
		src many-dcp && diff -r one-dcp many-dcp && nothing_hidden
'

test_expect_success 'verify: what one process finds, said once' '
	cp -r one bad && flip bad/shard-00001.h5 500000 &&
	flip bad/shard-00002.h5 600000 && : >bad/more &&
	for dir in one bad; do
		fsdp-verify "$dir" >alone
		code=$?
		expect_code $code in_cluster srun --mpi=pmix -N2 -n4 ./fsdp-verify \
			"$dir" >out 2>err
		sort alone | sed "s/ read in .*//" >expected &&
		sort out | sed "s/ read in .*//" >actual &&
		test_cmp expected actual || return 1
	done &&
	mkdir scratch && expect_code 1 in_cluster srun --mpi=none -N2 -n2 \
		./fsdp-verify --scratch "$PWD/scratch" bad >out 2>err && cat out err &&
	! grep "^fsdp-verify" err && nothing_hidden
'

test_expect_success 'alone in a batch job with many tasks, and a step in it' '
	cat >job.sbatch <<-\END &&
	#!/bin/sh
	#SBATCH -N2 -n4 -o job.out
	./fsdp-reshard -w 3 --strategy grad-op src batch &&
	srun --mpi=none ./fsdp-reshard -w 3 --strategy grad-op src step
	END
	in_cluster sbatch --wait job.sbatch >out && cat job.out &&
	diff -r one batch && diff -r one step &&
	grep -c "by 4 ranks" job.out >count && echo 1 >expected &&
	test_cmp expected count && nothing_hidden
'

test_expect_success FAULT 'kill -9 of a rank: the others name it and its node' '
	cat >dies <<-END &&
	#!/bin/sh
	test "\$SLURM_PROCID" != 3 || export LD_PRELOAD="$preload" \
		FSDP_FAULT=kill:7 FSDP_FAULT_DIR="$PWD"
	exec "\$@"
	END
	chmod +x dies && rm -rf many &&
	expect_code 137 in_cluster srun --mpi=none -K0 -N2 -n4 ./dies \
		./fsdp-reshard --deadline 5 -w 3 src many >out 2>err &&
	cat err && grep "fsdp-reshard: many: no word from rank 3 (n2)" err &&
	test ! -e many && nothing_hidden
'

test_expect_success FAULT 'with -K1 Slurm ends them, and nothing stays' '
	! in_cluster srun --mpi=none -K1 -N2 -n4 ./dies \
		./fsdp-reshard -w 3 src many >out 2>err && cat err &&
	test ! -e many && nothing_hidden
'

test_expect_success 'so does scancel' '
	cat >stuck <<-\END &&
	#!/bin/sh
	test "$SLURM_PROCID" != 1 || exec sleep 60
	exec "$@"
	END
	chmod +x stuck && rm -rf many &&
	{ in_cluster srun --mpi=none -J limited -N2 -n2 ./stuck ./fsdp-reshard \
		-w 3 src many >out 2>err & } && pid=$! &&
	wait_for 60 eval "test -d .tmp-many-*.ranks" &&
	in_cluster scancel -n limited &&
	{ wait $pid; cat err; } && grep "CANCELLED" err &&
	test ! -e many && nothing_hidden
'

test_done
