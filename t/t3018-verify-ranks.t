#!/bin/sh

test_description='verify by several ranks: what one finds, said once'

. "$SHARNESS_SH"

preload=$FSDP_BUILDDIR/t/.libs/libfault.so
test_have_prereq SANITIZED || { test -e "$preload" && test_set_prereq FAULT; }
test_have_prereq EXPENSIVE && step=1 || step=4
host=$(hostname)

# alike N ARG...: N ranks find what one finds, read as much, and end alike.
# shellcheck disable=SC2046 # a list
alike() {
	n=$1
	shift
	case "$*" in
	# Two ranks may read a block for what each needs of it.
	*--manifest*) rest=', [^,]* read in .*' ;;
	*) rest=' read in .*' ;;
	esac
	fsdp-verify "$@" >one 2>err
	code=$?
	ranks "$n" fsdp-verify "$@" &&
	codes $(yes $code | head -n "$n") &&
	sort one | sed "/\"seconds\"/d; s/$rest//" >expected &&
	sort out.0 | sed "/\"seconds\"/d; s/$rest//" >actual &&
	sed "s/: rank [0-9] ([^)]*): /: /" err.0 >told &&
	test_cmp expected actual && test_cmp err told &&
	cat out.[1-9] err.[1-9] >rest && test_must_be_empty rest &&
	nothing_hidden
}

nothing_hidden() {
	find . -name ".tmp*" >hidden
	test_must_be_empty hidden
}

test_expect_success 'a source' '
	ckpt_make -w 4 --vocab 30000 --width 128 made && mv made/step-* src
'

test_expect_success 'ours, whole, and each rank reads a part' '
	alike 2 src && alike 5 src &&
	cat >counted <<-\END &&
	#!/bin/sh
	"$@"
	code=$?
	sed -n "s/^rchar: //p" /proc/$$/io >"read.$SLURM_PROCID"
	exit $code
	END
	chmod +x counted && ranks 2 ./counted fsdp-verify src &&
	codes 0 0 && total=$(du -sb src | cut -f1) &&
	test "$(cat read.0)" -lt $((total * 7 / 10)) &&
	test "$(cat read.1)" -lt $((total * 7 / 10)) &&
	test $(($(cat read.0) + $(cat read.1))) -gt "$total"
'

test_expect_success 'damage in several files is told in one order' '
	cp -r src bad &&
	for at in 500000 1500000 9000000; do
		flip bad/shard-00001.h5 $at && flip bad/shard-00003.h5 $at || return 1
	done &&
	alike 4 bad && alike 3 --json bad/shard-00001.h5 &&
	for n in 2 3; do
		ranks $n fsdp-verify bad && grep "CRC-32C" out.0 >found.$n || return 1
	done &&
	test "$(wc -l <found.2)" -ge 6 && test_cmp found.2 found.3
'

test_expect_success 'files that are missing, short, exchanged, or one too many' '
	cp -r src torn && : >torn/more && truncate -s -1 torn/shard-00002.h5 &&
	alike 3 torn && rm torn/shard-00000.h5 && alike 3 torn &&
	rm torn/index.h5 && alike 2 torn && rm -rf torn &&
	ckpt_make -w 4 --vocab 512 --width 128 made && mv made/step-* even &&
	mv even/shard-00001.h5 x && mv even/shard-00002.h5 even/shard-00001.h5 &&
	mv x even/shard-00002.h5 && alike 3 even
'

test_expect_success 'a directory of checkpoints, also from inside' '
	ckpt_make -w 2 made && mkdir many && mv made/step-* many/step-00000001 &&
	fsdp-reshard -q -w 3 many/step-00000001 many/step-00000002 &&
	flip many/step-00000002/shard-00001.h5 9000 && mkdir many/.tmp-x &&
	fsdp-verify many >one; test $? = 1 &&
	ranks 3 fsdp-verify many && codes 1 1 1 && grep "\.tmp-x: left" out.0 &&
	test "$(wc -l <one)" = "$(wc -l <out.0)" && rmdir many/.tmp-x &&
	alike 3 many && (cd many && alike 3 .) &&
	mkdir x && cd x && cp ../many/step-00000002/* . && ranks 2 fsdp-verify . &&
	grep "/out.0: is no part" out.0 && ! grep "ranks: is no part" out.0 &&
	cd ..
'

for spec in "convert --to dcp -w 3" "convert --to hdf5-file" \
	"convert --to safetensors" "convert --to torch"; do
	test_expect_success "what other tools write: $spec" '
		rm -rf other && set -- $spec && tool=fsdp-$1 && shift &&
		$tool -q "$@" src other && alike 3 other &&
		file=$(find other -type f -size +200k | sort | sed 1q) &&
		flip "$file" $(($(wc -c <"$file") / 2)) && alike 3 other
	'
done

test_expect_success SAMPLES 'real checkpoints' '
	samples=$FSDP_SAMPLES/checkpoints &&
	for name in $(sed -n "2~$step s/ |.*//p" "$samples/INDEX.txt"); do
		alike 2 "$samples/$name/ckpt" || { echo "$name"; return 1; }
	done
'

test_expect_success SAMPLES 'against a manifest, of which something is not true' '
	for name in $(sed -n "2~$((4 * step)) s/ |.*//p" "$samples/INDEX.txt"); do
		alike 3 --manifest "$samples/$name/manifest.json" \
			"$samples/$name/ckpt" || { echo "$name"; return 1; }
		sed "0,/\"sha256\": *\"/ s//&0/; s/\"dtype\": *\"[a-z]*/&x/3" \
			"$samples/$name/manifest.json" >manifest.json &&
		alike 3 --manifest manifest.json "$samples/$name/ckpt" ||
			{ echo "$name"; return 1; }
	done
'

test_expect_success 'damage under a manifest is told, by whichever rank reads it' '
	echo "{\"tensors\": []}" >manifest.json &&
	cp -r src torn && flip torn/shard-00001.h5 500000 &&
	flip torn/shard-00003.h5 9000000 &&
	alike 3 --manifest manifest.json torn && grep "shard-00001.*checksum" out.0 &&
	grep "shard-00003.*checksum" out.0 &&
	truncate -s -1 torn/shard-00002.h5 &&
	alike 3 --manifest manifest.json torn && rm -rf torn
'

test_expect_success 'ranks that see other files' '
	cat >moved <<-\END &&
	#!/bin/sh
	test "$SLURM_PROCID" = 1 && set -- fsdp-verify -q bad
	exec "$@"
	END
	chmod +x moved && ranks 3 ./moved fsdp-verify src && codes 2 2 2 &&
	grep "^fsdp-verify: src: rank 1 does not see what rank 0" err.0 &&
	cat err.[12] >rest && test_must_be_empty rest && nothing_hidden &&
	sed -i "s/-q bad/-q many/" moved &&
	ranks 3 ./moved fsdp-verify many/step-00000001 && codes 2 2 2 &&
	nothing_hidden &&
	sed -i "s/-q many/-q gone/" moved &&
	ranks 3 ./moved fsdp-verify src && codes 65 65 65 &&
	grep "^fsdp-verify: rank 1 ($host): gone: No such file" err.0
'

test_expect_success FAULT 'a rank that dies, or cannot read' '
	cat >with_fault <<-END &&
	#!/bin/sh
	test "\$SLURM_PROCID" != 2 || export LD_PRELOAD="$preload" \
		FSDP_FAULT="\$FAULT" FSDP_FAULT_DIR="$PWD/\$BELOW"
	exec "\$@"
	END
	chmod +x with_fault &&
	BELOW=. FAULT=kill:10 ranks 3 ./with_fault fsdp-verify --deadline 5 src &&
	codes 69 69 137 && grep "no word from rank 2 ($host)" err.0 &&
	nothing_hidden && failed=0 &&
	for at in $(seq 2 16); do
		BELOW=src FAULT=readeio:$at ranks 3 ./with_fault fsdp-verify \
			-j 1 src &&
		nothing_hidden || return 1
		if test "$(cat code.0)" = 0; then # a close after reading
			codes 0 0 0 && grep "^good" out.0 || return 1
			continue
		fi
		codes 74 74 74 &&
		grep "^fsdp-verify: rank 2 ($host): .*Input/outp" err.0 &&
		cat err.[12] >rest && test_must_be_empty rest || return 1
		failed=$((failed + 1))
	done &&
	test $failed -ge 5
'

test_expect_success 'ranks meet where they can write' '
	mkdir scratch && ranks 2 fsdp-verify --scratch scratch src &&
	codes 0 0 && grep "^good" out.0 &&
	ranks 2 fsdp-verify --scratch nowhere src && codes 78 78 &&
	grep "nowhere: ranks meet here, but cannot write: .*--scratch" err.0 &&
	test_must_be_empty err.1 && ls -A scratch >left && test_must_be_empty left
'

test_expect_success 'what is for one process' '
	for option in --clean --repair; do
		ranks 2 fsdp-verify $option src && codes 64 64 &&
		grep -e "$option is for one process.*--alone" err.0 &&
		test_must_be_empty err.1 || return 1
	done &&
	rank 1 2 fsdp-verify --alone --repair src &&
	grep "^good" out.1
'

test_done
