#!/bin/sh

test_description='the same bits at every number of ranks, strategy and prefetch'

. "$SHARNESS_SH"

# The toy model compares its volumes with the formulas, its memory with the
# plan, and with --check its gradients with a plain sum, in each run.
toy=$FSDP_BUILDDIR/t/shard-toy

# reference NAME ARG...: the output of one rank
reference() {
	name=$1
	shift
	"$toy" --check "$@" >"$name.want" && grep -q "^digest" "$name.want"
}

# same NAME W ARG...: W ranks print the same
same() {
	name=$1 world=$2
	shift 2
	mpirun_np "$world" "$toy" "$@" >"$name.got" 2>"$name.err" &&
		cmp "$name.want" "$name.got" || {
		echo "$world ranks differ: $*"
		cat "$name.err"
		return 1
	}
}

# strategies W: all there are, with every F
strategies() {
	echo none grad-op full
	for f in 1 2 3 4 5 6 7 8; do
		test $(($1 % f)) = 0 && echo "hybrid:$f"
	done
	return 0
}

for g in 8 12 16; do
	test_expect_success "one rank, G = $g: gradients are the plain sum" '
		reference "g$g" -g "$g" --eval 5 &&
		grep -q "^step 3 " "g$g.want" && grep -q "^eval " "g$g.want"
	'
done

# One run of each number of ranks and strategy; G and prefetch vary.
cases=0
for w in 2 3 4 5 6 7 8; do
	for s in $(strategies "$w"); do
		cases=$((cases + 1))
		g=$(((cases % 3) * 4 + 8)) p=$((cases % 4))
		test_expect_success MPI "W = $w, $s, G = $g, prefetch $p" '
			same "g$g" "$w" -g "$g" --eval 5 -s "$s" -p "$p"
		'
	done
done

test_expect_success MPI 'two threads' '
	same g12 2 -g 12 --eval 5 -s full -t 2 &&
	same g12 3 -g 12 --eval 5 -s none -t 2
'

test_expect_success MPI 'the root may be resharded' '
	same g8 4 -g 8 --eval 5 -s full --reshard-root -p 2 &&
	same g8 4 -g 8 --eval 5 -s grad-op --reshard-root -p 0
'

for odd in 1 5 13; do
	test_expect_success MPI "G = $odd: ranks that have nothing to do" '
		reference "g$odd" -g "$odd" &&
		same "g$odd" 4 -g "$odd" -s hybrid:2 &&
		same "g$odd" 6 -g "$odd" -s hybrid:3 -p 3 --check &&
		same "g$odd" 3 -g "$odd" -s none
	'
done

test_expect_success MPI 'bf16 parameters and gradients' '
	reference bf16 -g 12 -b -r &&
	same bf16 2 -g 12 -b -r -s full --check &&
	same bf16 3 -g 12 -b -r -s none --check &&
	same bf16 4 -g 12 -b -r -s hybrid:2 -p 3 --check &&
	same bf16 5 -g 12 -b -r -s grad-op --check
'

test_expect_success MPI 'bf16 of one of them' '
	reference params -b && same params 4 -b -s hybrid:2 --check &&
	reference grads -r && same grads 3 -r -s full --check
'

test_expect_success MPI 'gradients are the plain sum on many ranks too' '
	same g12 6 -g 12 --eval 5 -s hybrid:3 --check &&
	same g12 8 -g 12 --eval 5 -s hybrid:4 --check
'

# All of them.
for w in 2 3 4 5 6 7 8; do
	test_expect_success MPI,EXPENSIVE "W = $w: all strategies, G, prefetch" '
		for s in $(strategies "$w"); do
			for g in 8 12 16; do
				for p in 0 1 2 3; do
					same "g$g" "$w" -g "$g" --eval 5 -s "$s" -p "$p" ||
						return 1
				done
			done
		done
	'
done

test_done
