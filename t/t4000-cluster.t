#!/bin/sh

test_description='the private cluster: nodes, statuses, two at once, nothing left'

. "$SHARNESS_SH"

test_have_prereq SLURM || skip_all 'no Slurm, or not root, or no namespaces'

ours() { # processes that carry this cluster's name
	grep -lzxF "CLUSTER_ID=$1" /proc/[0-9]*/environ 2>/dev/null | grep .
}

test_expect_success 'two nodes come up' '
	cluster_up &&
	in_cluster srun -N2 -n4 hostname >out &&
	sort out >actual &&
	printf "%s\n" n1 n1 n2 n2 >expected &&
	test_cmp expected actual
'

test_expect_success 'status and signals of a job pass through' '
	expect_code 7 in_cluster srun -n1 sh -c "exit 7" &&
	echo "exit 5" | expect_code 5 "$FSDP_SRCDIR/slurm/cluster" run sh &&
	printf "#!/bin/sh\nexit 3\n" >job &&
	expect_code 3 in_cluster sbatch --wait -o job.log job
'

test_expect_success 'another cluster does not disturb it' '
	other=$(mktemp -d /tmp/fsdp-t.XXXXXX) &&
	at_exit "cluster down -d $other; rm -rf $other" &&
	cluster up -d "$other" -n 1 -o SlurmdTimeout=60 &&
	CLUSTER_DIR=$other in_cluster srun hostname >one &&
	echo n1 >expected && test_cmp expected one &&
	in_cluster srun -N2 hostname | sort >both &&
	printf "%s\n" n1 n2 >expected && test_cmp expected both &&
	id=$(cat "$other/id") &&
	cluster down -d "$other" &&
	! ours "$id" &&
	in_cluster srun -N2 true
'

test_expect_success 'errors say what to do' '
	expect_code 1 cluster up 2>err && grep "first .cluster down" err &&
	long=/tmp/$(printf %070d 0) &&
	expect_code 1 cluster up -d "$long" 2>err && grep "path too long" err &&
	expect_code 125 cluster run -d /tmp/fsdp-t.none true 2>err &&
	grep "no cluster is up" err &&
	expect_code 64 cluster run 2>err
'

test_expect_success 'the job to copy runs here' '
	mkdir bin &&
	cat >bin/fsdp-train <<-\END &&
	#!/bin/sh
	echo "$SLURM_PROCID of $SLURM_NTASKS on $(hostname): $* $PMIX_RANK"
	END
	chmod +x bin/fsdp-train &&
	PATH=$PWD/bin:$PATH in_cluster sbatch --wait -o train.log \
		"$FSDP_SRCDIR/slurm/train.sbatch" --steps 3 "a file" &&
	sort train.log >actual &&
	for r in 0 1 2 3; do
		echo "$r of 4 on n$((r / 2 + 1)): --steps 3 a file $r"
	done >expected &&
	test_cmp expected actual
'

test_expect_success 'down leaves no process, and may be called twice' '
	id=$(cat "$CLUSTER_DIR/id") &&
	ours "$id" &&
	cluster down && ! ours "$id" && cluster down
'

test_done
