#!/bin/sh

test_description='fsdp-verify --repair'

. "$SHARNESS_SH"

step='step-00000100'

# damaged NAME: a fresh copy of the checkpoint to damage.
damaged() {
	rm -rf bad && mkdir bad && cp -r four/$step bad/$step
}

# data_same: the data files are as they were, and nothing temporary is left.
data_same() {
	(cd bad/$step && sha256sum shard-*.h5) >have && test_cmp sums have &&
	test -z "$(find bad -name "*tmp*")"
}

test_expect_success 'make a checkpoint' '
	ckpt_make four && (cd four/$step && sha256sum shard-*.h5) >sums
'

test_expect_success 'nothing to repair: nothing is done' '
	cp -r four same && fsdp-verify --repair same >out && diff -r four same &&
	! grep rebuilt out && grep "^good: 89 tensors" out
'

for how in missing damaged cut; do
	test_expect_success "the index is $how" '
		damaged && index=bad/$step/index.h5 &&
		case '$how' in
		missing) rm $index ;;
		damaged) flip $index 5000 ;;
		cut) truncate -s 3000 $index ;;
		esac && expect_code 1 fsdp-verify bad/$step >out &&
		fsdp-verify --repair bad/$step >out &&
		grep "bad/$step: rebuilt index.h5 and manifest.json from 4 shard files" out &&
		grep "^good: 89 tensors" out && ! grep lost out && data_same &&
		fsdp-diff --metadata four bad/$step &&
		fsdp-ls -l four | sed 1d >want && fsdp-ls -l bad/$step | sed 1d >have &&
		test_cmp want have
	'
done

test_expect_success 'the manifest is missing: what only it had is said' '
	damaged && rm bad/$step/manifest.json &&
	expect_code 1 fsdp-verify bad/$step >out &&
	fsdp-verify --repair bad/$step/ >out && grep "rebuilt" out &&
	grep "only the manifest had is lost: strategy, units, metadata" out &&
	! grep "other names" out && grep "^good: 89 tensors" out && data_same &&
	fsdp-diff four bad/$step && fsdp-ls bad/$step >list &&
	grep "hdf5, step 100$" list && grep "1 tied name" list &&
	fsdp-reshard -w 3 --strategy chunk bad/$step three && fsdp-diff four three
'

test_expect_success 'manifest and index are missing: tied names are lost too' '
	damaged && rm bad/$step/manifest.json bad/$step/index.h5 &&
	fsdp-verify --repair bad >out && grep "digests, other names of tensors" out &&
	grep "bad/latest: names bad/$step now" out && data_same &&
	fsdp-diff -i "model/transformer*" -i "optim/*" four bad && fsdp-verify bad
'

test_expect_success 'a damaged manifest is kept for people' '
	damaged && cp bad/$step/manifest.json old && flip bad/$step/manifest.json 40 &&
	fsdp-verify --repair bad/$step >out &&
	grep "bad/damaged-$step-manifest.json: the damaged manifest, kept" out &&
	! cmp old bad/damaged-$step-manifest.json && data_same &&
	fsdp-diff four bad && fsdp-verify bad
'

test_expect_success 'a shard is damaged too: refused, with what is lost' '
	damaged && rm bad/$step/index.h5 && cp -r bad before &&
	set -- $(ckpt_pieces four model/transformer.wte.weight) &&
	flip bad/$step/$3 $(($4 + 77)) && cp -r bad before2 &&
	expect_code 65 fsdp-verify --repair bad/$step >out 2>err &&
	grep "bad/$step/$3: does not have its checksum: it is damaged" out &&
	grep "^note: tensor model/transformer.wte.weight: [0-9]* of its [0-9]* elements are lost" out &&
	grep "cannot be repaired: data of [0-9]* tensors is lost" err &&
	diff -r before2 bad
'

test_expect_success 'a shard is missing, with or without a manifest' '
	damaged && rm bad/$step/index.h5 bad/$step/shard-00002.h5 &&
	expect_code 65 fsdp-verify --repair bad/$step >out 2>err &&
	grep "shard-00002.h5" out && grep "cannot be repaired" err &&
	rm bad/$step/manifest.json &&
	expect_code 65 fsdp-verify --repair bad/$step >out 2>err &&
	grep "bad/$step/shard-00002.h5: missing, though shard-00003.h5 is there" err &&
	rm bad/$step/shard-00003.h5 &&
	expect_code 65 fsdp-verify --repair bad/$step >out 2>err && cat err &&
	test ! -e bad/$step/manifest.json
'

test_expect_success 'a block is damaged, and nothing says so but its checksum' '
	damaged && rm bad/$step/manifest.json &&
	set -- $(ckpt_pieces four model/transformer.wte.weight) &&
	flip bad/$step/$3 $(($4 + 77)) &&
	expect_code 65 fsdp-verify --repair bad/$step >out 2>err &&
	grep "tensor model/transformer.wte.weight elements" err &&
	test ! -e bad/$step/manifest.json
'

test_expect_success "HDF5's own bytes of a shard are damaged" '
	damaged && rm bad/$step/manifest.json && shard=bad/$step/shard-00000.h5 &&
	cp $shard saved && n=0 &&
	for at in $(grep -abo shape $shard | cut -d: -f1 | head -20); do
		cp saved $shard && flip $shard $at &&
		expect_code 65 fsdp-verify --repair bad/$step >out 2>err &&
		grep "shard-00000.h5" err && test ! -e bad/$step/manifest.json || return 1
		n=$((n + 1))
	done && test $n -gt 5
'

test_expect_success 'files in each other'\''s place are found' '
	damaged && rm bad/$step/manifest.json &&
	mv bad/$step/shard-00001.h5 x && mv bad/$step/shard-00002.h5 bad/$step/shard-00001.h5 &&
	mv x bad/$step/shard-00002.h5 &&
	expect_code 65 fsdp-verify --repair bad/$step >out 2>err &&
	grep "another one of the files, by its own number" err
'

test_expect_success 'a directory: each that can be, and latest' '
	damaged && cp -r bad/$step bad/step-00000200 && cp -r bad/$step bad/step-00000300 &&
	rm bad/step-00000200/index.h5 bad/step-00000300/index.h5 \
		bad/step-00000300/shard-00001.h5 &&
	echo step-00000300 >bad/latest &&
	expect_code 1 fsdp-verify --repair bad >out &&
	grep "bad/step-00000200: rebuilt" out &&
	grep "bad/step-00000300: cannot be repaired" out &&
	grep "bad/latest: names bad/step-00000200 now" out &&
	test "$(cat bad/latest)" = step-00000200 && fsdp-diff four bad
'

test_expect_success 'as JSON' '
	damaged && rm bad/$step/index.h5 &&
	fsdp-verify --json --repair bad/$step >out && grep "\"repaired\"" out &&
	grep "rebuilt index.h5" out && grep "\"good\": true" out
'

test_expect_success 'the index of safetensors' '
	fsdp-convert --to safetensors --only model --shard-size 1MB four st &&
	cp -r st st-bad && index=st-bad/model.safetensors.index.json && rm $index &&
	expect_code 1 fsdp-verify st-bad >out
	fsdp-verify --repair st-bad >out &&
	grep "st-bad: rebuilt model.safetensors.index.json from [0-9]* files" out &&
	diff -r st st-bad &&
	echo "{}" >$index && fsdp-verify --repair st-bad >out && diff -r st st-bad &&
	rm $index st-bad/model-00002-of-*.safetensors &&
	expect_code 65 fsdp-verify --repair st-bad 2>err &&
	grep "cannot be repaired: number [0-9]* of [0-9]* files is missing" err &&
	test ! -e $index
'

test_expect_success 'what it is not for is said' '
	fsdp-convert --to dcp four dcp && rm dcp/.metadata &&
	expect_code 65 fsdp-verify --repair dcp >out 2>err; cat out err &&
	expect_code 64 fsdp-verify --repair --manifest x four 2>err &&
	grep "do not go together" err
'

test_done
