#!/bin/sh
#
# Ranks as srun would start them, here without Slurm: the environment alone
# says who they are (t4102 has the real thing).
#
test_description='convert, reshard and consolidate by several ranks'

. "$SHARNESS_SH"

preload=$FSDP_BUILDDIR/t/.libs/libfault.so
test_have_prereq SANITIZED || { test -e "$preload" && test_set_prereq FAULT; }
test_have_prereq ROOT && command -v setpriv >/dev/null &&
	test_set_prereq SETPRIV
test_have_prereq EXPENSIVE && step=1 || step=5
host=$(hostname)

# with_fault R MODE:N COMMAND...: rank R has it.
cat >with_fault <<END
#!/bin/sh
who=\$1 what=\$2
shift 2
test "\$SLURM_PROCID" = "\$who" || exec "\$@"
exec env LD_PRELOAD='$preload' FSDP_FAULT="\$what" FSDP_FAULT_DIR="\$PWD" "\$@"
END
chmod +x with_fault

# same A B: the same files with the same bytes.
same() {
	diff -r "$1" "$2"
}

nothing_hidden() {
	find . -name ".tmp*" >hidden
	test_must_be_empty hidden
}

test_expect_success 'a source, in which pieces are larger than what ranks share' '
	ckpt_make -w 4 --vocab 3000 --width 128 src
'

for spec in "reshard -w 3 --strategy grad-op" \
	"reshard -w 5 --files 2 --strategy none" \
	"convert --to dcp -w 3" \
	"convert --to safetensors --shard-size 3MB" \
	"convert --to hdf5-file --cast bf16"; do
	test_expect_success "the bytes of one process: $spec" '
		rm -rf one many && set -- $spec && tool=fsdp-$1 && shift &&
		$tool -q "$@" src one &&
		for n in 2 5; do
			rm -rf many && ranks $n $tool "$@" src many &&
			codes $(yes 0 | head -n $n) && same one many || return 1
		done &&
		test "$(grep -c "by 5 ranks$" out.0)" = 1 &&
		cat out.[1-9] err.[1-9] >rest && test_must_be_empty rest &&
		nothing_hidden
	'
done

test_expect_success 'one file, of which each rank writes a part' '
	fsdp-consolidate -q src one.safetensors && rm -f config.json &&
	ranks 4 fsdp-consolidate --json src many.safetensors && codes 0 0 0 0 &&
	cmp one.safetensors many.safetensors && test -e config.json &&
	grep "\"ranks\": 4" out.0 && nothing_hidden
'

test_expect_success 'from boxes and torch files, whose checksums ranks share' '
	fsdp-convert -q --to dcp -w 2 src dcp && rm -rf one many &&
	fsdp-reshard -q -w 1 dcp one && ranks 3 fsdp-reshard -w 1 dcp many &&
	codes 0 0 0 && same one many
'

test_expect_success 'a damaged block of which two ranks have a part is found' '
	fsdp-convert -q --to dcp -w 1 --include "*wte*" --only-model src bad &&
	set -- $(ckpt_pieces bad transformer.wte.weight) &&
	flip "bad/$3" $(($4 + 700000)) && rm -rf many &&
	ranks 2 fsdp-convert --to safetensors bad many && codes 65 65 &&
	grep "transformer.wte.weight.* checksum: the file is damaged" err.0 &&
	test_must_be_empty err.1 && test ! -e many && nothing_hidden
'

test_expect_success 'what is wrong with the command is said once' '
	ranks 3 fsdp-reshard -w x src many && codes 64 64 64 &&
	cat err.[1-9] >rest && test_must_be_empty rest && grep "not .x." err.0 &&
	ranks 3 fsdp-reshard -w 3 --strategy hybrid:2 src many &&
	codes 78 78 78 && cat err.[1-9] >rest && test_must_be_empty rest &&
	ranks 3 fsdp-reshard -w 3 nowhere many && codes 65 65 65 &&
	cat err.[1-9] >rest && test_must_be_empty rest && nothing_hidden
'

test_expect_success 'a target that is there stays' '
	mkdir old && echo >old/manifest.json && ranks 3 fsdp-reshard -w 3 src old &&
	codes 74 74 74 && grep "old: is there already" err.0 && ls -A old >names &&
	echo manifest.json >expected && test_cmp expected names && nothing_hidden
'

test_expect_success 'only one has work in a dry run' '
	ranks 2 fsdp-reshard --dry-run -w 3 src many && codes 0 0 &&
	grep "would be" out.0 && test_must_be_empty out.1 && test ! -e many
'

test_expect_success 'a rank that cannot open the source' '
	cat >moved <<-\END &&
	#!/bin/sh
	test "$SLURM_PROCID" = 1 && set -- fsdp-reshard -q -w 3 gone many
	exec "$@"
	END
	chmod +x moved &&
	ranks 3 ./moved fsdp-reshard -w 3 src many && codes 65 65 65 &&
	grep "^fsdp-reshard: rank 1 ($host): gone: No such file" err.0 &&
	test ! -e many && nothing_hidden
'

test_expect_success 'what one process makes of it, to compare with' '
	rm -rf one && fsdp-reshard -q -w 3 src one
'

test_expect_success FAULT 'a rank that cannot write: all say so, by name' '
	failed=0 &&
	for at in $(seq 2 $step 24); do
		rm -rf many &&
		ranks 3 ./with_fault 2 eio:$at fsdp-reshard --deadline 5 -w 3 \
			src many &&
		nothing_hidden || return 1
		case $(cat code.0) in
		0) # a sign of life that it could not give
			codes 0 0 0 && same one many || return 1
			continue
			;;
		*)
			codes 74 74 74 &&
			grep "^fsdp-reshard: rank 2 ($host): .*Input/outp" err.0 &&
			cat err.[1-9] >rest && test_must_be_empty rest || return 1
			;;
		esac
		test ! -e many || return 1
		failed=$((failed + 1))
	done &&
	test $failed -ge 2
'

test_expect_success FAULT 'one that comes after that learns it too' '
	cat >tardy <<-\END &&
	#!/bin/sh
	test "$SLURM_PROCID" != 1 || sleep 2
	exec "$@"
	END
	chmod +x tardy &&
	ranks 3 ./tardy ./with_fault 2 eio:1 fsdp-reshard --deadline 20 -w 3 \
		src many &&
	codes 74 74 74 && grep "rank 2 ($host): .*Input/outp" err.0 &&
	test ! -e many && nothing_hidden
'

test_expect_success FAULT 'a rank that dies: the others name it and its host' '
	rm -rf many &&
	ranks 3 ./with_fault 2 kill:7 fsdp-reshard --deadline 5 -w 3 src many &&
	codes 69 69 137 &&
	grep "^fsdp-reshard: many: no .* from rank 2 ($host)" err.0 &&
	test ! -e many && nothing_hidden
'

test_expect_success FAULT 'the first rank dies: so do the others' '
	ranks 3 ./with_fault 0 kill:20 fsdp-reshard --deadline 5 -w 3 src many &&
	codes 137 69 69 && cat err.[12] >both &&
	grep "^fsdp-reshard: rank [12]: many: .*rank 0 ($host)" both &&
	test ! -e many && test -d .tmp-many-7.0.ranks
'

test_expect_success 'what it left does not disturb a run of the same name' '
	ranks 3 fsdp-reshard -w 3 src many && codes 0 0 0 && same one many &&
	nothing_hidden
'

test_expect_success 'old words of an earlier run are not believed' '
	rm -rf many && dir=.tmp-many-7.0.ranks && mkdir $dir .tmp-many-7.0 &&
	echo "-20 5 1" >$dir/failed && echo "old" >>$dir/failed &&
	cp $dir/failed $dir/reserve && : >$dir/published-00000 &&
	: >$dir/part-00001 && : >$dir/made-00002 && echo "1 a" >$dir/here-00001 &&
	printf "%s\n" "1 a" "2 b" "3 c" >$dir/welcome-00000 &&
	ranks 3 fsdp-reshard -w 3 src many && codes 0 0 0 && same one many &&
	nothing_hidden
'

test_expect_success 'a rank that never comes' '
	rm -rf many code.* &&
	{ rank 0 3 fsdp-reshard --deadline 5 -w 3 src many & } &&
	first=$! && rank 1 3 fsdp-reshard --deadline 5 -w 3 src many &&
	wait $first &&
	codes 69 69 && grep "no word from rank 2 within 5 s" err.0 &&
	test ! -e many && nothing_hidden
'

test_expect_success SETPRIV 'a rank without permission says so itself' '
	chmod 755 . && chmod -R a+rX src && rm -rf many && mkdir -m 755 theirs &&
	cat >drop <<-\END &&
	#!/bin/sh
	test "$SLURM_PROCID" = 1 || exec "$@"
	exec setpriv --reuid 65534 --clear-groups "$@"
	END
	chmod +x drop &&
	ranks 2 ./drop fsdp-reshard --deadline 5 -w 3 src theirs/many &&
	codes 69 74 && grep "rank 1: .*Permission denied" err.1 &&
	grep "no word from rank 1" err.0 && ls -A theirs >names &&
	test_must_be_empty names
'

test_expect_success 'SIGTERM at one rank ends all' '
	cat >late <<-\END &&
	#!/bin/sh
	test "$SLURM_PROCID" = 1 && { sleep 1 && kill -TERM $$ & }
	test "$SLURM_PROCID" = 2 && sleep 2
	exec "$@"
	END
	chmod +x late && rm -rf many &&
	ranks 3 ./late fsdp-reshard --deadline 20 -w 3 src many &&
	codes 69 143 69 && grep "rank 1" err.0 && test ! -e many && nothing_hidden
'

test_expect_success 'SIGTERM at the first one is told' '
	sed "s/= 1 &&/= 0 \&\&/" late >first && chmod +x first &&
	ranks 3 ./first fsdp-reshard --deadline 20 -w 3 src many &&
	codes 143 69 69 &&
	grep "^fsdp-reshard: stopped by a signal: Terminated" err.0 &&
	test ! -e many && nothing_hidden
'

test_expect_success 'two conversions at once do not mix' '
	rm -rf many && mkdir a b &&
	{ (cd a && STEP=1 ranks 2 fsdp-reshard -q -w 3 ../src ../many) & } &&
	other=$! &&
	(cd b && STEP=2 ranks 3 fsdp-reshard -q -w 3 ../src ../many) &&
	wait $other && cat a/code.0 b/code.0 | sort >codes &&
	printf "0\n74\n" >expected &&
	test_cmp expected codes && same one many && nothing_hidden
'

test_expect_success 'a program alone is not one of many' '
	for env in "SLURM_JOB_ID=1 SLURM_NTASKS=4 SLURM_PROCID=0" \
		"SLURM_JOB_ID=1 SLURM_NTASKS=4 SLURM_STEP_ID=4294967290 \
			SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1"; do
		rm -rf many &&
		env $env timeout 30 fsdp-reshard -w 3 src many >out &&
		! grep "ranks$" out && same one many || return 1
	done &&
	rm -rf many &&
	env SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 \
		timeout 30 fsdp-reshard --alone -w 3 src many >out &&
	grep "^many" out && same one many &&
	expect_code 69 env PMI_SIZE=3 PMI_RANK=1 fsdp-reshard -w 3 src x 2>err &&
	grep "PMI_SIZE" err
'

test_done
