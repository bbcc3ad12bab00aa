#!/bin/sh
#
# Faults of a save, of fsdp-prune, of a repair and of --clean, at each call that
# changes, looks or removes: the older checkpoint is valid or the new one
# complete, and nothing else ever looks valid.
#
test_description='Faults while checkpoints are saved and kept'

. "$SHARNESS_SH"

test_have_prereq FAULT || skip_all 'no library to preload, or a sanitizer'

FAULT_SAMPLE=8

make_step() {
	"$FSDP_BUILDDIR/t/ckpt-make" -w 1 --vocab 40 --width 16 --layers 1 \
		-n "$1" run
}

test_expect_success 'checkpoints to begin with' '
	make_step 100 && mv run old &&
	cp -r old run && make_step 200 && make_step 300 && mv run many &&
	cp -r old broken && rm broken/step-00000100/index.h5 &&
	cp -r old littered && cp -r old/step-00000100 littered/.tmp-one &&
	cp -r old/step-00000100 littered/.tmp-one/within &&
	cp old/step-00000100/index.h5 littered/.tmp-two
'

# What is tried, what there is before it, and whether that is over afterwards.
save() {
	"$@" "$FSDP_BUILDDIR/t/ckpt-make" -w 1 --vocab 40 --width 16 \
		--layers 1 -n 200 run
}
prune() { "$@" fsdp-prune -j 1 --keep-last 1 run; }
repair() { "$@" fsdp-verify -j 1 --repair run/step-00000100; }
clean() { "$@" fsdp-verify -j 1 --clean=0 run; }

before() {
	case $1 in
	save) echo old ;;
	prune) echo many ;;
	repair) echo broken ;;
	clean) echo littered ;;
	esac
}

is_complete() {
	case $1 in
	save) test -d run/step-00000200 ;;
	prune) test ! -e run/step-00000200 ;;
	repair) fsdp-verify -q run/step-00000100 ;;
	clean) diff -r old run ;;
	esac
}

# All of the run's checkpoints are whole, and the newest is as new as it was.
holds() {
	case $1 in
	save | clean) set -- 100 ;;
	prune) set -- 300 ;;
	repair) # what its files hold, whether or not they can be opened yet
		(cd run/step-00000100 && cmp shard-00000.h5 \
			../../old/step-00000100/shard-00000.h5)
		return
		;;
	esac
	test -d run/step-00000$1 && for step in run/step-*; do
		fsdp-verify -q "$step" || return 1
	done
}

# judge WHAT MODE STATUS CALL PATH
judge() {
	holds "$1" || return
	test "$3" != 0 || is_complete "$1" || return
	case $2 in
	kill) # of a save, by the process that waits for the one that died
		test "$3" != 0 || test "$1" = save
		return
		;;
	esac
	case $1 in
	prune | clean) ;; # the next --clean removes the rest
	*) test -z "$(find run -name "*.tmp*")" || return ;;
	esac
	case $2,$3,$4 in
	eintr,0,* | *short,0,*) ;;
	enospc,0,* | edquot,0,* | *,0,link | *,0,close) ;;
	readeio,0,*) # while it looked what kind of directory this is
		case $5 in
		*/run/step-*) return 1 ;;
		esac
		;;
	*,74,*) grep "run.*: $(fault_text "$2")" said ;;
	*) return 1 ;;
	esac
}

# faults WHAT MODE: at each call, or at some.
faults() {
	bad=0
	rm -rf run && cp -r "$(before "$1")" run &&
	"$1" fault_points "$2" >points && test -s points || return
	while read -r number kind call path; do
		rm -rf run && cp -r "$(before "$1")" run
		"$1" fault "$2:$number" >said 2>&1 </dev/null
		status=$?
		judge "$1" "$2" $status "$call" "$path" || {
			echo "$1 $2:$number, $kind $call $path: status $status"
			cat said
			find run
			bad=1
		}
	done <points
	echo "$1 $2: $(wc -l <points) calls"
	test $bad = 0
}

for mode in kill enospc edquot eio estale short readshort eintr; do
	for what in save prune repair; do
		case $what,$mode in
		prune,short) continue ;; # it writes nothing
		esac
		test_expect_success "$what: $mode" "faults $what $mode"
	done
done

for what in prune clean; do
	test_expect_success "$what: rmeio" "faults $what rmeio"
done
for mode in kill readeio readshort eintr; do
	test_expect_success "clean: $mode" "faults clean $mode"
done

test_done
