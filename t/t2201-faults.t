#!/bin/sh
#
# Faults of a save and of a conversion: killed at every call that writes, no
# space from any call on, an error or a short write at any: the old checkpoint
# is valid or the new one complete, and nothing else ever looks valid.
#
test_description='Faults while checkpoints are written'

. "$SHARNESS_SH"

test_have_prereq SANITIZED && skip_all 'a preloaded library and a sanitizer'

preload=$FSDP_BUILDDIR/t/.libs/libfault.so
test -e "$preload" || skip_all 'no shared libraries'

# fault MODE:N COMMAND...
fault() {
	what=$1
	shift
	env LD_PRELOAD="$preload" FSDP_FAULT="$what" FSDP_FAULT_DIR="$PWD" \
		FSDP_FAULT_LOG="$PWD/../calls" "$@"
}

# calls COMMAND...: how many there are.
calls() {
	rm -f ../calls
	fault count:0 "$@" >&2 && wc -c <../calls
}

make_step() {
	"$FSDP_BUILDDIR/t/ckpt-make" -w 1 --vocab 300 --width 32 --layers 1 \
		-n "$1" run
}

# hidden DIR: temporary files in it.
hidden() {
	find "$1" -name '.tmp*' | wc -l
}

# The run's directory holds a checkpoint that is whole, and none that is not.
check_run() {
	fsdp-ls run >list && for step in run/step-*; do
		fsdp-verify -q "$step" || return 1
	done
}

# each_save MODE CODE...: at each call; the status is one of these.
each_save() {
	mode=$1 codes=" $2 "
	n=1
	total=$(cat ../saves) && test "$total" -gt 10 || return 1
	while test $n -le "$total"; do
		rm -rf run && cp -r ../old run || return 1
		fault "$mode:$n" "$FSDP_BUILDDIR/t/ckpt-make" -w 1 --vocab 300 \
			--width 32 --layers 1 -n 200 run >log 2>&1
		code=$?
		case $codes in
		*" $code "*) ;;
		*) echo "$mode:$n: status $code"; cat log; return 1 ;;
		esac
		test $code != 0 || test -d run/step-00000200 || return 1
		check_run || { echo "$mode:$n: damaged"; return 1; }
		if test $mode != kill && test "$(hidden run)" != 0; then
			echo "$mode:$n: leftovers"
			find run -name '.tmp*'
			return 1
		fi
		n=$((n + 1))
	done
}

# each_convert MODE CODES FUNCTION TARGET [DIFF-OPTION]
each_convert() {
	mode=$1 codes=" $2 " command=$3 target=$4
	n=1
	total=$(cat "../$command") && test "$total" -gt 5 || return 1
	while test $n -le "$total"; do
		rm -rf "$target" .tmp* config.json
		fault "$mode:$n" sh -c ". ../commands; $command" >log 2>&1
		code=$?
		case $codes in
		*" $code "*) ;;
		*) echo "$mode:$n: status $code"; cat log; return 1 ;;
		esac
		if test -e "$target"; then
			fsdp-diff -q ../source/step-00000100 "$target" $5 || {
				echo "$mode:$n: damaged"
				return 1
			}
		elif test $code = 0; then
			echo "$mode:$n: status 0 and no target"
			return 1
		fi
		if test $code != 137 && test "$(hidden .)" != 0; then
			echo "$mode:$n: leftovers"
			return 1
		fi
		n=$((n + 1))
	done
}

test_expect_success 'checkpoints to begin with' '
	mkdir work source &&
	"$FSDP_BUILDDIR/t/ckpt-make" -w 2 --vocab 300 --width 32 --layers 1 source &&
	(cd work && make_step 100 && mv run ../old) &&
	cat >commands <<-EOT &&
	reshard() { exec fsdp-reshard -q -j 1 -w 3 ../source/step-00000100 target; }
	convert() { exec fsdp-convert -q -j 1 ../source/step-00000100 \
		target.safetensors; }
	EOT
	(cd work && cp -r ../old run &&
	 calls "$FSDP_BUILDDIR/t/ckpt-make" -w 1 --vocab 300 --width 32 \
		--layers 1 -n 200 run >../saves && rm -rf run &&
	 calls sh -c ". ../commands; reshard" >../reshard && rm -rf target &&
	 calls sh -c ". ../commands; convert" >../convert) &&
	test_debug "cat saves reshard convert"
'

test_expect_success "a save killed at each call" '
	(cd work && each_save kill "2 0")
'

test_expect_success "a save without space from each call on" '
	(cd work && each_save enospc "74 0")
'

test_expect_success "a save with an error at each call" '
	(cd work && each_save eio 74)
'

test_expect_success "a save with a short write at each call" '
	(cd work && each_save short 0)
'

test_expect_success "a reshard killed at each call" '
	(cd work && each_convert kill 137 reshard target)
'

test_expect_success "a reshard without space from each call on" '
	(cd work && each_convert enospc "74 0" reshard target)
'

test_expect_success "a reshard with an error at each call" '
	(cd work && each_convert eio 74 reshard target)
'

test_expect_success "a reshard with a short write at each call" '
	(cd work && each_convert short 0 reshard target)
'

for mode in "kill 137" "enospc 74" "eio 74" "short 0"; do
	test_expect_success "a conversion to safetensors: $mode" '
		(cd work && each_convert ${mode% *} "${mode#* } 0" convert \
			target.safetensors --only-model)
	'
done

test_expect_success 'the sources are what they were' '
	fsdp-verify -q source/step-00000100
'

test_done
