#!/bin/sh
#
# Faults at the calls of every writer but the save: the target is complete or
# not there, message and status say why, and nothing is left behind.
#
test_description='Faults while each format is written'

. "$SHARNESS_SH"

test_have_prereq FAULT || skip_all 'no library to preload, or a sanitizer'

# What --link needs, on any file system.
FAULT_NEXT=$FSDP_BUILDDIR/t/.libs/libclone.so

# writer NAME: what writes that form, on one thread, but for the target.
writer() {
	case $1 in
	reshard) echo fsdp-reshard -j 1 -w 3 source ;;
	hdf5-file) echo fsdp-convert -j 1 --to hdf5-file source ;;
	safetensors) echo fsdp-convert -j 1 --to safetensors source ;;
	split) echo fsdp-convert -j 1 --to safetensors --shard-size 20000 \
		source ;;
	torch) echo fsdp-convert -j 1 --to torch source ;;
	from-plain) echo fsdp-convert -j 1 --to safetensors plain.h5 ;;
	virtual) echo fsdp-convert -j 1 --to hdf5-file --virtual source ;;
	link) echo fsdp-convert -j 1 --link large ;;
	dcp | dcp-hf) echo fsdp-convert -j 1 --to "$1" -w 2 source ;;
	universal) echo fsdp-convert -j 1 --to universal universal ;;
	llmc) echo fsdp-convert -j 1 --to llmc -w 2 --rules gpt2-llmc \
		--set num_heads=4 --set vocab_size=40 --set rng_state=1337 \
		--set current_shard_idx=3 --set current_sample_idx=5 gpt2 ;;
	esac
}

# The file in the work directory that a writer makes.
target() {
	case $1 in
	safetensors | from-plain) echo target.safetensors ;;
	*) echo target ;;
	esac
}

writers='reshard hdf5-file safetensors split torch dcp dcp-hf universal llmc
	from-plain virtual link'

test_expect_success 'sources and what comes of them' '
	"$FSDP_BUILDDIR/t/ckpt-make" -w 2 --vocab 40 --width 16 --layers 1 made &&
	mv made/step-00000100 source &&
	fsdp-convert -i "model/tr*" -i "optim/*" -x model/lm_head.weight \
		source gpt2 &&
	fsdp-convert --to hdf5-file source plain.h5 &&
	fsdp-convert -i "model/*.ln_1.*" -i "optim/*.ln_1.*" \
	 --rename "model/*=fp32.*" \
		--rename "optim/exp_avg/*=exp_avg.*" \
		--rename "optim/exp_avg_sq/*=exp_avg_sq.*" source universal &&
	ckpt_make -w 1 large && mkdir want work &&
	for name in $writers; do
		mkdir want/$name &&
		$(writer $name) "want/$name/$(target $name)" || return 1
	done
'

# synced N END: N syncs of what ends so.
synced() {
	test "$(grep -c " fsync .*/$2\$" "$HOME/fault-calls")" = "$1" || {
		echo "$2 was not synced $1 times"
		grep fsync "$HOME/fault-calls"
		return 1
	}
}

test_expect_success 'each file of data is synced, once' '
	for name in reshard split dcp dcp-hf universal llmc; do
		rm -f fault-calls &&
		fault count:0 $(writer $name) work/target &&
		(cd work/target && find . -type f "(" -name "*.h5" \
			-o -name "*.safetensors" -o -name "*.distcp" \
			-o -name "*.pt" -o -name "*.bin" ")") |
			sed "s,^\./,," >files && test -s files &&
		while read -r file; do
			synced 1 "$file" || return 1
		done <files && rm -rf work/target || return 1
	done &&
	for name in hdf5-file safetensors torch from-plain; do
		rm -f fault-calls &&
		fault count:0 $(writer $name) "work/$(target $name)" &&
		synced 1 "\.tmp-target[^/]*" && rm work/target* || return 1
	done
'

# same NAME: the target is what it is without a fault.
same() {
	path=$1/$(target "$1")
	diff -r "want/$path" "work/$(target "$1")" >/dev/null ||
		{ fsdp-verify -q "work/$(target "$1")" &&
		fsdp-diff "want/$path" "work/$(target "$1")"; }
}

# judge NAME MODE STATUS CALL: is that what it must be?
judge() {
	left=$(find work -name ".tmp*")
	if test -e "work/$(target "$1")"; then
		same "$1" || return
	elif test "$3" = 0; then
		return 1
	fi
	case $2 in
	kill) test "$3" = 137 && return ;;
	int) expect=130 ;;
	term) expect=143 ;;
	hup) expect=129 ;;
	eintr | *short) expect=0 ;;
	*) expect=74 ;;
	esac
	test -z "$left" || return
	case $expect,$3 in
	74,0)
		# Nothing needed space any more; without link() it is renamed,
		# without reflinks it is copied; and what was synced is safe
		# whatever close says.
		case $2,$4 in
		enospc,* | edquot,* | read* | *,link | *,ioctl | *,close) ;;
		*) return 1 ;;
		esac
		;;
	74,74)
		grep "^fsdp-[a-z]*: .*\(work\|source\|large\|gpt2\|universal\|plain.h5\).*: $(fault_text "$2")" \
			said
		;;
	1??,1??) test "$3" = "$expect" && grep "stopped by a signal" said ;;
	*) test "$3" = "$expect" ;;
	esac
}

# faults NAME MODE: at each call, or at some.
# shellcheck disable=SC2046 # a writer is several words
faults() {
	bad=0
	rm -rf work && mkdir work &&
	fault_points "$2" $(writer "$1") "work/$(target "$1")" >points &&
		test -s points || return
	while read -r number kind call path; do
		rm -rf work && mkdir work
		fault "$2:$number" $(writer "$1") "work/$(target "$1")" \
			>said 2>&1 </dev/null
		status=$?
		judge "$1" "$2" $status "$call" || {
			echo "$1 $2:$number, $call $path: status $status"
			cat said
			find work
			bad=1
		}
	done <points
	echo "$1 $2: $(wc -l <points) calls"
	test $bad = 0
}

for name in $writers; do
	for mode in kill enospc edquot eio estale short readshort readeio eintr \
		int term hup; do
		test_expect_success "$name: $mode" "faults $name $mode"
	done
done

test_expect_success 'the sources are what they were' '
	fsdp-verify -q source && fsdp-verify -q large && fsdp-verify -q gpt2 && fsdp-verify -q universal
'

test_done
