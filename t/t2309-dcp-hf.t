#!/bin/sh

test_description="PyTorch's distributed checkpoints as safetensors shards"

. "$SHARNESS_SH"

# header FILE: of safetensors, as text.
header() {
	head -c 65536 "$1" | tr -d '\0' >header.txt
}

test_expect_success 'make a checkpoint' '
	ckpt_make four
'

for world in 1 3 7; do
	test_expect_success "shards of $world ranks and back" '
		fsdp-convert --to dcp-hf --world '$world' four hf-'$world' >out &&
		test $(ls hf-'$world' | wc -l) = '$world' &&
		fsdp-diff four hf-'$world' &&
		fsdp-verify hf-'$world' &&
		fsdp-convert --to hdf5 --world 4 hf-'$world' back-'$world' &&
		fsdp-diff four back-'$world'
	'
done

test_expect_success 'where the shards belong is in the metadata' '
	printf "shard-0000%d-model-00001-of-00001.safetensors\n" 1 2 3 >want &&
	ls hf-3 >names && test_cmp want names &&
	header hf-3/shard-00002-model-00001-of-00001.safetensors &&
	name=model/transformer.h.0.attn.c_attn.weight &&
	grep -q "\\\\\"$name\\\\\": {\\\\\"saved_offsets\\\\\": \\[22,0\\]}" header.txt &&
	grep -q "\"DCP_VERSION\":\"1.0\",\"format\":\"pt\"" header.txt
'

test_expect_success 'boxes of a layout' '
	fsdp-convert --to dcp-hf --layout dp=2,tp=2 \
		--split "*.c_attn.weight=1" four grid &&
	fsdp-diff four grid &&
	fsdp-ls -l grid model/transformer.h.0.attn.c_attn.weight >out &&
	grep " 6240 *3072 *shard-00004-" out
'

test_expect_success 'tied names are kept' '
	fsdp-ls hf-3 >out && grep "lm_head.weight.*is tied to" out &&
	fsdp-convert --to dcp-hf --world 2 hf-7 again && fsdp-diff hf-7 again
'

test_expect_success 'ranks that have nothing have no file' '
	fsdp-convert --to dcp-hf --world 7 --include buffer/half four few >out &&
	test $(ls few | wc -l) = 3 && fsdp-ls few &&
	rm few/shard-00002-* && expect_code 65 fsdp-ls few 2>err &&
	grep "rank 1 (shard-00002-.*missing" err
'

test_expect_success 'files of a size, and other strategies, are refused' '
	expect_code 78 fsdp-convert --to dcp-hf --shard-size 1M four no &&
	expect_code 78 fsdp-convert --to dcp-hf --strategy full four no &&
	test ! -e no
'

test_done
