#!/bin/sh
test_description='the same bits at every world, strategy, prefetch and thread count

fsdp-train on a small GPT-2: losses, norms and digests of parameters and
optimizer state are compared, and the checkpoints by fsdp-diff.'

. "$SHARNESS_SH"

test -n "$TEST_LONG" || skip_all 'a long test: ./dev check --long'
test_have_prereq MPI || skip_all 'needs MPI'

test_expect_success 'make a text' '
	seq 1 20000 | sed "s/\$/ sheep jump over the garden gate/" >text
'

# run NAME WORLD G OPTION...: what must not differ goes to NAME.bits
run() {
	name=$1 world=$2 g=$3
	shift 3
	rm -rf "$name" &&
	mpirun_np "$world" "$FSDP_BUILDDIR/bin/fsdp-train" text --layers 2 \
		--width 48 --heads 3 --seq 24 --batch 2 --micro-batches "$g" \
		--steps 3 --decay-steps 6 --valid 0 --save "$name" --json "$@" \
		>"$name.json" &&
	bits "$name"
}

bits() {
	grep -E "\"event\":\"(step|end)\"" "$1.json" |
		grep -oE "\"(step|loss_hex|norm_hex|digest_[a-z]*)\":[^],]*[],]" \
		>"$1.bits" && test -s "$1.bits"
}

# same NAME REFERENCE: and nothing of it stays
same() {
	cmp "$1.bits" "$2.bits" && fsdp-diff -q "$1" "$2" && rm -rf "$1" "$1".*
}

strategies() {
	echo none grad-op full
	for f in $(seq 1 "$1"); do
		test $(($1 % f)) != 0 || echo "hybrid:$f"
	done
}

for g in 8 12 16; do
	test_expect_success "G = $g on one rank" "
		run ref-$g 1 $g --strategy none --prefetch 0
	"
	for w in 1 2 4 8 3 5 6 7; do
		for s in $(strategies $w); do
			d=$(((w + g + ${#s}) % 4))
			test_expect_success "G = $g, W = $w, $s, prefetch $d" "
				run one $w $g --strategy $s --prefetch $d &&
				same one ref-$g
			"
		done
	done
done

for d in 0 1 2 3; do
	for t in 1 2; do
		test_expect_success "prefetch $d, $t threads" "
			run one 2 8 --strategy full --prefetch $d --threads $t &&
			same one ref-8
		"
	done
done

# A run of 6 steps against one stopped after 3 and resumed elsewhere.
test_expect_success 'a run that never stopped' '
	run whole 1 8 --strategy none --steps 6
'
for to in 1:none 2:full 4:hybrid:2 3:grad-op 5:full 8:none 6:hybrid:3; do
	w=${to%%:*} s=${to#*:}
	test_expect_success "stopped on 4 ranks (full), resumed on $w ($s)" "
		run half 4 8 --strategy full &&
		mv half.json first.json &&
		mpirun_np $w \"$FSDP_BUILDDIR/bin/fsdp-train\" text --valid 0 \
			--steps 6 --strategy $s --resume half --save half \
			--json >second.json &&
		{ grep -v '\"end\"' first.json; cat second.json; } >half.json &&
		bits half && same half whole
	"
done

test_done
