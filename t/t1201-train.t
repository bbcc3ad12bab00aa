#!/bin/sh

test_description='fsdp-train: learning, the same bits everywhere, bad input'

. "$SHARNESS_SH"

tiny="$(tiny --micro-batches 6 --valid 0)"
text_make text

# train LOG ARG...: alone.
train() {
	log=$1
	shift
	run_timeout 60 fsdp-train $tiny --log "$log" "$@" text >"$log.out"
}

# train_np N LOG ARG...
train_np() {
	n=$1 log=$2
	shift 2
	mpirun_np "$n" fsdp-train $tiny --log "$log" "$@" text >"$log.out"
}

test_expect_success 'alone it learns' '
	train learn --steps 300 --lr 5e-3 --valid 300 &&
	entropy=$(field learn start order0_entropy) &&
	first=$(field learn step loss) && loss=$(field learn valid loss) &&
	echo "order 0 $entropy, step 300 $first, validation $loss" &&
	losses learn >all && sed -n 2p all | grep "0x1.6.*p+2" &&
	awk -v h="$entropy" -v l="$loss" "BEGIN { exit !(l < h && l > 1) }"
'

test_expect_success 'it prints what it does' '
	grep "^ranks  *1 on 1 node" learn.out &&
	grep "^strategy  *full" learn.out &&
	grep "optimizer state  *[0-9]" learn.out &&
	grep "^order-0 entropy" learn.out &&
	grep "^ *300 " learn.out &&
	grep "^validation after step 300" learn.out &&
	grep "^memory: .*(equal)" learn.out &&
	! grep DIFFERS learn.out &&
	grep "^digest of parameters [0-9a-f]\{32\}, of optimizer state" learn.out
'

test_expect_success 'JSON is one object a line' '
	train json --steps 2 --json &&
	grep -c "^{.*}$" json.out >lines &&
	echo 4 >expected &&
	test_cmp expected lines &&
	test_cmp json json.out
'

test_expect_success 'the run that all others are compared with' '
	train one --steps 4 --decay-steps 6 --strategy none --prefetch 0 &&
	losses one >expected && test $(wc -l <expected) = 12 &&
	digests one >expected-digests
'

# Each: ranks, strategy, prefetch, threads.
for case in '2 full 1 1' '3 grad-op 2 1' '4 hybrid:2 3 1' '2 none 0 2' \
	'4 full 0 1' '5 full 1 1'; do
	set -- $case
	test_expect_success MPI "$1 ranks, $2, prefetch $3, threads $4: same bits" "
		train_np $1 np$1-$2 --steps 4 --decay-steps 6 --strategy $2 \
			--prefetch $3 --threads $4 &&
		losses np$1-$2 >actual && test_cmp expected actual &&
		digests np$1-$2 >actual && test_cmp expected-digests actual &&
		! grep DIFFERS np$1-$2.out
	"
done

test_expect_success MPI 'stopped, saved, resumed elsewhere: same bits' '
	train whole --steps 6 &&
	losses whole 4 >expected && digests whole >expected-digests &&
	train_np 4 first --steps 3 --decay-steps 6 --strategy full \
		--save ckpt >out &&
	test -e ckpt/step-00000003/manifest.json &&
	train_np 3 second --steps 6 --strategy grad-op --resume ckpt &&
	losses second >actual && test_cmp expected actual &&
	digests second >actual && test_cmp expected-digests actual &&
	train third --steps 6 --strategy none --resume ckpt/step-00000003 &&
	losses third >actual && test_cmp expected actual &&
	train_np 4 fourth --steps 6 --strategy hybrid:2 --sync-save \
		--save ckpt --save-every 2 --resume latest &&
	losses fourth >actual && test_cmp expected actual &&
	ls -d ckpt/step-* | wc -l >actual && echo 3 >expected &&
	test_cmp expected actual
'

test_expect_success MPI 'what differs from the checkpoint is said' '
	mpirun_np 2 fsdp-train --steps 4 --lr 0.5 --resume ckpt/step-00000003 \
		text >out 2>err &&
	grep "warning: the learning rate is 0.5, and was 0.001" err &&
	test $(grep -c warning err) = 1
'

test_expect_success 'nothing is left to do' '
	train done --steps 3 --resume ckpt/step-00000003 &&
	grep "nothing to do: step 3 is reached" done.out
'

test_expect_success 'latest, when there is none yet, starts anew' '
	train fresh --steps 1 --save fresh-ckpt --resume latest 2>err &&
	grep "no checkpoint in fresh-ckpt yet" err &&
	test "$(cat fresh-ckpt/latest)" = step-00000001
'

test_expect_success 'a checkpoint can be evaluated and written on' '
	run_timeout 60 fsdp-train --eval --init-from ckpt --valid-count 4 \
		text >out && grep "^validation after step .* loss [2-6]" out &&
	run_timeout 60 fsdp-train --sample "The " --init-from ckpt --tokens 20 \
		--seed 3 >one && head -c 4 one >start && printf "The " >want &&
	test_cmp want start &&
	run_timeout 60 fsdp-train --sample "The " --init-from ckpt --tokens 20 \
		--seed 3 >two && test_cmp one two &&
	run_timeout 60 fsdp-train --sample "The " --init-from ckpt --tokens 20 \
		--seed 4 >three && ! cmp one three
'

test_expect_success MPI 'sampling is for one process' '
	expect_code 78 mpirun_np 2 fsdp-train --sample x --init-from ckpt \
		2>err && grep "one process" err
'

test_expect_success MPI 'more ranks than micro-batches, and tiny units' '
	MPIRUN_TIMEOUT=60 mpirun_np 4 fsdp-train --layers 1 --width 2 --heads 1 \
		--seq 2 --batch 1 --vocab 256 --micro-batches 3 --steps 2 \
		--valid 0 --log few text >out &&
	run_timeout 60 fsdp-train --layers 1 --width 2 --heads 1 --seq 2 \
		--batch 1 --vocab 256 --micro-batches 3 --steps 2 --valid 0 \
		--log few1 text >out &&
	losses few1 >expected && losses few >actual && test_cmp expected actual
'

# bad CODE PATTERN ARG...
bad() {
	code=$1 pattern=$2
	shift 2
	expect_code "$code" run_timeout 60 fsdp-train "$@" >out 2>err &&
	cat err && grep "^fsdp-train: .*$pattern" err
}

test_expect_success 'bad input has its exit code' '
	bad 65 nowhere $tiny nowhere &&
	printf "too short" >short &&
	bad 65 short $tiny short &&
	bad 78 "3 heads.*32" $tiny --heads 3 text &&
	bad 64 micro-batches $tiny --micro-batches 0 text &&
	bad 64 "no text" $tiny &&
	bad 78 positions $tiny --positions 16 text &&
	bad 78 "chunk is .*checkpoints only" $tiny --strategy chunk text &&
	bad 65 "no-such" $tiny --resume no-such text &&
	bad 64 "exclude each other" $tiny --resume a --init-from b text &&
	bad 64 strategy $tiny --strategy half text &&
	bad 64 "element type" $tiny --dtype fp8 text
'

test_expect_success MPI 'and so it has on several ranks, said once' '
	expect_code 65 mpirun_np 3 fsdp-train $tiny nowhere 2>err &&
	test $(grep -c "^fsdp-train: .*nowhere" err) = 1 &&
	expect_code 78 mpirun_np 4 fsdp-train $tiny --strategy hybrid:3 text \
		2>err &&
	test $(grep -c "^fsdp-train: " err) = 1
'

test_expect_success 'a directory that cannot be written is found at the start' '
	>file &&
	bad 74 "file" $tiny --save file/ckpt text &&
	test_must_be_empty out
'

# A file system that is too small, in a mount namespace of its own.
test_expect_success ROOT 'a full disk: status 74, and the older checkpoint holds' '
	mkdir small &&
	cat >job <<-\END &&
	mount -t tmpfs -o size=5m none small || exit 99
	fsdp-train "$@" >full.out 2>full.err
	code=$?
	cp -r small kept
	exit $code
	END
	expect_code 74 run_timeout 60 unshare -m sh ./job $tiny --steps 9 \
		--save-every 1 --save small text &&
	cat full.err &&
	grep "newest checkpoint in small is that of step [1-8]" full.err &&
	step=$(sed -n "s/.*is that of step \([0-9]*\)/\1/p" full.err) &&
	train again --steps $((step + 1)) --resume kept &&
	test "$(losses again | head -n 1)" = "step $((step + 1))"
'

test_expect_success 'a loss that is not a number ends the run' '
	bad 2 "lower --lr" $tiny --steps 200 --lr 1e6 --warmup 0 --clip 0 \
		--min-lr 1e6 text
'

test_expect_success 'SIGTERM ends a run alone after its step' '
	{ fsdp-train $tiny --steps 1000000 text >term.out 2>term.err & } &&
	pid=$! &&
	wait_for 60 grep -q "^ *1 " term.out &&
	kill -TERM $pid &&
	expect_code 69 wait $pid &&
	grep "SIGTERM" term.err
'

# term N SIGN COMMAND...: all its N ranks get SIGTERM when they are ready for it
# and the command SIGN succeeds.
term() {
	ranks=$1 sign=$2 && shift 2 &&
	{ "$@" >term.out 2>term.err & } &&
	launcher=$! &&
	wait_for 60 ready "$ranks" && wait_for 60 $sign &&
	cat pids.* | xargs kill -TERM &&
	{ wait $launcher; code=$?; } &&
	cat term.err &&
	test $code -eq 69
}

ready() {
	pids=$(cat pids.*) && test "$(echo "$pids" | wc -l)" = "$1" &&
		catches 15 $pids
}

test_expect_success MPI 'SIGTERM to all ranks ends training after a step' '
	cat >ranks <<-\EOF &&
	#!/bin/sh
	echo $$ >pids.$$
	exec fsdp-train "$@"
	EOF
	chmod +x ranks && rm -f pids.* &&
	term 2 "test -e stopped/latest" mpirun_np 2 ./ranks $tiny \
		--steps 1000000 --save stopped --save-every 50 text &&
	grep "stopped by SIGTERM after step" term.err &&
	fsdp-verify stopped
'

test_expect_success 'SIGTERM ends sampling and validation' '
	rm -f pids.* &&
	train one --steps 1 --save one.ckpt &&
	term 1 true ./ranks --sample x --init-from one.ckpt --tokens 16777216 &&
	rm -f pids.* &&
	term 1 true ./ranks --eval $tiny --init-from one.ckpt \
		--valid-count 1000000 text
'

test_expect_success 'resume says that the newest checkpoint is damaged' '
	train marred --steps 2 --save two.ckpt --save-every 1 &&
	truncate -s 10 two.ckpt/step-00000002/shard-00000.h5 &&
	train older --steps 2 --resume two.ckpt 2>two.err &&
	cat two.err &&
	grep "warning: two.ckpt/step-00000002/shard-00000.h5: " two.err &&
	grep "going on from two.ckpt/step-00000001" two.err
'

test_expect_success 'a number too large for its option is not called in range' '
	bad 64 "beta1 must be from 0 to 0.9999999, not 1" $tiny --beta1 1 text
'

test_done
