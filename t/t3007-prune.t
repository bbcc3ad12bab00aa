#!/bin/sh

test_description='fsdp-latest, fsdp-prune and fsdp-verify --clean'

. "$SHARNESS_SH"

setpriv --reuid 65534 --clear-groups true 2>/dev/null &&
	test_set_prereq SETPRIV

# run: a directory of checkpoints of the steps 100 200 … 600.
test_expect_success 'make checkpoints' '
	for step in 100 200 300 400 500 600; do
		ckpt_make --step $step --world 1 run || return 1
	done &&
	test "$(cat run/latest)" = step-00000600
'

fresh() {
	chmod -R u+w r 2>/dev/null
	rm -rf r && cp -r run r
}

# there STEP...: exactly these are left.
there() {
	(cd r && printf "%s\n" step-*) >have &&
	for step; do printf "step-%08d\n" "$step"; done >want &&
	test_cmp want have
}

damage() {
	truncate -s -1 "r/step-$1/shard-00000.h5"
}

test_expect_success 'latest: the newest, whatever the file says' '
	fresh && echo r/step-00000600 >want &&
	fsdp-latest r >have 2>err && test_cmp want have &&
	test_must_be_empty err &&
	echo step-00000100 >r/latest &&
	fsdp-latest r >have && test_cmp want have &&
	test "$(cat r/latest)" = step-00000100
'

test_expect_success 'latest: damaged ones are skipped and named' '
	fresh && damage 00000600 && rm r/step-00000500/manifest.json &&
	echo r/step-00000400 >want &&
	fsdp-latest r >have 2>err && test_cmp want have &&
	grep "^fsdp-latest: step-00000600 is not valid: .*shard-00000.h5" err &&
	grep "^fsdp-latest: step-00000500 is not valid: " err &&
	fsdp-latest --json r >out &&
	grep "\"path\": \"r/step-00000400\"" out && grep "\"step\": 400" out
'

test_expect_success 'latest: --deep sees a flipped bit' '
	fresh && size=$(stat -c %s r/step-00000600/shard-00000.h5) &&
	printf "\377\0\377\0" | dd of=r/step-00000600/shard-00000.h5 bs=1 \
		seek=$((size / 2)) conv=notrunc 2>/dev/null &&
	fsdp-latest r >have && grep 00000600 have &&
	fsdp-latest --deep r >have 2>err && grep 00000500 have &&
	grep "step-00000600 is not valid: " err
'

test_expect_success 'latest: --repair' '
	fresh && damage 00000600 && fsdp-latest -q --repair r >out &&
	test_must_be_empty out && test "$(cat r/latest)" = step-00000500 &&
	rm r/latest && fsdp-latest --repair r && test -e r/latest &&
	fsdp-latest --json --repair r >out && grep "\"repaired\": false" out
'

test_expect_success 'latest: none' '
	mkdir empty && expect_code 65 fsdp-latest empty 2>err &&
	grep "^fsdp-latest: empty: holds no checkpoints" err &&
	expect_code 65 fsdp-latest nowhere &&
	expect_code 65 fsdp-latest --repair empty && ! test -e empty/latest &&
	expect_code 64 fsdp-latest && expect_code 64 fsdp-latest a b
'

test_expect_success 'prune: the last, and every' '
	fresh && fsdp-prune --keep-last 2 --keep-every 300 r >out &&
	there 300 500 600 && line_count 7 out &&
	grep "^keep r/step-00000600: latest names it$" out &&
	grep "^keep r/step-00000500: one of the last$" out &&
	grep "^keep r/step-00000300: its step is a multiple$" out &&
	grep "^remove r/step-00000100$" out &&
	grep "^3 kept, 3 removed, " out && fsdp-verify -q r
'

test_expect_success 'prune: a dry run removes nothing' '
	fresh && fsdp-prune -n -k 1 r >out && there 100 200 300 400 500 600 &&
	grep "^would remove r/step-00000100$" out &&
	grep "^1 kept, 5 would be removed, " out && diff -r run r
'

test_expect_success 'prune: never the only valid one' '
	fresh && for s in 200 300 400 500 600; do damage 00000$s || return 1; done &&
	fsdp-prune -k 1 r >out && there 100 200 300 400 500 600 &&
	grep "^keep r/step-00000100: the newest valid one$" out &&
	fsdp-prune -k 1 --damaged r && there 100 600 &&
	grep "^step-00000600$" r/latest &&
	damage 00000100 && expect_code 65 fsdp-prune -k 1 --damaged r 2>err &&
	grep "none of its 2 checkpoints step-N is valid" err && there 100 600
'

test_expect_success FAULT 'prune: an error of the disk is no damage' '
	fresh && rm -f "$HOME/fault-calls" &&
	fault count:0 fsdp-prune -k 1 --damaged -n r &&
	n=$(grep "^look" "$HOME/fault-calls" | grep -n step-00000300/index.h5 |
		cut -d: -f1 | head -n 1) && test -n "$n" &&
	fault readeio:$n fsdp-prune -k 1 --damaged r >out &&
	there 300 600 && grep "^keep r/step-00000300: .*[Ii]nput/output error" out
'

test_expect_success 'prune: damaged ones do not count' '
	fresh && damage 00000500 && fsdp-prune -k 2 r && there 400 500 600
'

test_expect_success 'prune: the one that latest names stays' '
	fresh && echo step-00000200 >r/latest && fsdp-prune -k 1 r &&
	there 200 600
'

test_expect_success 'prune: links and other entries are not touched' '
	fresh && mkdir elsewhere && cp -r run/step-00000100 elsewhere/c &&
	ln -s ../elsewhere/c r/step-00000050 && touch r/step-7 &&
	mkdir r/step-x r/other && fsdp-prune -k 1 r &&
	test -L r/step-00000050 && test -e elsewhere/c/manifest.json &&
	test -e r/step-7 && test -d r/step-x && test -d r/other
'

test_expect_success 'prune: usage' '
	expect_code 64 fsdp-prune r && expect_code 64 fsdp-prune -k 0 r &&
	expect_code 64 fsdp-prune -k 1 &&
	expect_code 65 fsdp-prune -k 1 nowhere
'

test_expect_success 'clean: old leftovers go, new ones stay' '
	fresh && mkdir -p r/.tmp-step-00000700-x r/.tmp-new-y &&
	echo half >r/.tmp-step-00000700-x/shard-00000.h5 &&
	touch -d "3 hours ago" r/.tmp-step-00000700-x/shard-00000.h5 &&
	touch -d "3 hours ago" r/.tmp-step-00000700-x &&
	expect_code 1 fsdp-verify r >out && grep -c "was interrupted" out &&
	expect_code 1 fsdp-verify --clean r >out &&
	grep "^removed r/.tmp-step-00000700-x: last touched 3.0 hours ago" out &&
	! test -e r/.tmp-step-00000700-x && test -d r/.tmp-new-y &&
	fsdp-verify --clean=0 r >out && grep "^removed r/.tmp-new-y" out &&
	diff -r run r
'

test_expect_success 'clean: of one checkpoint there is nothing to clean' '
	fresh && one=$(ls -d r/step-* | head -n 1) &&
	expect_code 2 fsdp-verify --clean "$one" 2>err &&
	grep "^fsdp-verify: $one: is one checkpoint: .* directory" err &&
	expect_code 2 fsdp-verify --clean "$one/shard-00000.h5" 2>err &&
	diff -r run r
'

test_expect_success SETPRIV 'prune: nothing goes if latest cannot be read' '
	fresh && cp -r r before && chown -R 65534 r && chmod 755 . &&
	chmod 0 r/latest &&
	echo "\"$FSDP_BUILDDIR/bin/fsdp-prune\" -k 1 r" >try &&
	expect_code 74 setpriv --reuid 65534 --clear-groups sh try 2>err &&
	grep "r/latest: .*Permission denied" err && diff -r before r
'

test_expect_success SETPRIV 'clean: what cannot be looked at stays' '
	fresh && mkdir -p r/.tmp-old/closed &&
	touch -d "3 hours ago" r/.tmp-old/closed r/.tmp-old &&
	chown -R 65534 r && chmod 755 . && chmod 0 r/.tmp-old/closed &&
	echo "\"$FSDP_BUILDDIR/bin/fsdp-verify\" --clean r" >try &&
	expect_code 74 setpriv --reuid 65534 --clear-groups sh try 2>err &&
	grep "r/.tmp-old: cannot see .*: Permission denied" err &&
	test -d r/.tmp-old/closed
'

test_done
