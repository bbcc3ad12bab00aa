#!/bin/sh

test_description='fsdp-verify: files that are too many, or another one'

. "$SHARNESS_SH"

test_expect_success 'make checkpoints of many files' '
	ckpt_make good &&
	fsdp-convert -q --to dcp --world 3 --strategy chunk \
		--exclude "types/*" good dcp &&
	fsdp-convert -q --to dcp-hf --world 3 --strategy chunk \
		--exclude "types/*" good hf &&
	fsdp-convert -q --only-model --shard-size 100KB --to safetensors good set
'

# fresh NAME: a copy of it, in c/.
fresh() {
	rm -rf c && cp -r "$1" c
}

# finds PATTERN...: of c/, so many findings that fit a pattern each.
finds() {
	expect_code 1 fsdp-verify c >out 2>err && test_must_be_empty err || return 1
	cat out
	test "$(sed "/^not good: /,\$d" out | wc -l)" = $# || return 1
	for pattern; do
		grep -e "$pattern" out || return 1
	done
}

# swap A B
swap() {
	mv "$1" x && mv "$2" "$1" && mv x "$2"
}

test_expect_success 'DCP: a file of a rank that it has not' '
	fresh dcp && cp c/__2_0.distcp c/__3_0.distcp &&
	finds "^c/__3_0.distcp: is no part of the checkpoint$"
'

test_expect_success 'DCP: what people keep beside it, and files of 0 bytes' '
	fresh dcp && cp c/__0_0.distcp c/copy.distcp && touch c/README c/latest \
		c/config.json c/zero_to_fp32.py c/__7_0.distcp &&
	mkdir c/tokenizer c/.git && fsdp-verify c >out && ! grep "^beside" out
'

test_expect_success 'DCP: what a save of more files left is told, as PyTorch leaves it' '
	fresh dcp && cp c/__2_0.distcp c/__2_1.distcp &&
	cp c/.metadata c/__1.metadata && fsdp-verify c >out &&
	grep "^beside it 2 files of an earlier save, " out &&
	fsdp-verify --json c >out && grep "\"stale_files\": 2," out
'

test_expect_success 'DCP: a save that did not end' '
	fresh dcp && cp c/.metadata c/.metadata.tmp &&
	finds "^c/.metadata.tmp: is no part of the checkpoint$"
'

test_expect_success 'DCP in directories of model and optimizer' '
	rm -rf c && mkdir c && cp -r dcp c/pytorch_model_fsdp_0 &&
	cp c/pytorch_model_fsdp_0/__0_0.distcp c/pytorch_model_fsdp_0/__4_0.distcp &&
	finds "^c/pytorch_model_fsdp_0/__4_0.distcp: is no part of the checkpoint$"
'

test_expect_success 'DCP: files exchanged, and one copied over another' '
	fresh dcp && swap c/__0_0.distcp c/__2_0.distcp &&
	finds "^c/__0_0.distcp: holds what __2_0.distcp should hold: were they" &&
	fresh dcp && cp c/__1_0.distcp c/__2_0.distcp &&
	finds "^c/__2_0.distcp: holds what __1_0.distcp should hold: were they" &&
	expect_code 65 fsdp-ls c 2>err && grep "holds what __1_0.distcp should" err
'

test_expect_success 'DCP: one that is cut, or of another checkpoint, is not' '
	fresh dcp && truncate -s -1 c/__1_0.distcp &&
	finds "^c/__1_0.distcp: has .* cut short" &&
	cp dcp/.metadata c/__1_0.distcp && finds "^c/__1_0.distcp: has "
'

test_expect_success 'DCP of safetensors: one copied over another' '
	fsdp-verify hf && fresh hf &&
	cp c/shard-00002-* c/shard-00001-model-00001-of-00001.safetensors &&
	finds "^c/shard-00002-.*: holds only shards that c/shard-00001-.* holds too: " &&
	fresh hf && cp c/shard-00003-* c/shard-00004-model-00001-of-00001.safetensors &&
	finds "^c/shard-00004-.*: holds only shards that c/shard-00003-.* holds too: "
'

test_expect_success 'safetensors: one of another set, but not of another name' '
	fresh set && cp c/model-00001-of-*.safetensors c/model-00009-of-00009.safetensors &&
	cp c/model-00009-of-00009.safetensors c/other-00001-of-00001.safetensors &&
	finds "^c/model-00009-of-00009.safetensors: is no part of the checkpoint$"
'

test_expect_success 'safetensors: files exchanged, and one copied over another' '
	fresh set && swap c/model-00001-* c/model-00002-* &&
	finds "^c/model-00001-of-.*: holds what model-00002-of-.* should hold: were" &&
	fresh set && cp c/model-00001-* c/model-00002-of-*.safetensors &&
	finds "^c/model-00002-of-.*: holds what model-00001-of-.* should hold: were"
'

test_expect_success 'safetensors: a tensor of another file is not all of it' '
	fresh set && sed -i "s/\(\"transformer.h.0.attn.c_attn.bias\": \"\)model-0000./\1model-00001/" \
		c/model.safetensors.index.json && ! cmp set/model.safetensors.index.json \
		c/model.safetensors.index.json &&
	finds "^c/model-.*: tensor transformer.h.0.attn.c_attn.bias is in this file, but the index says model-00001"
'

test_expect_success 'ours: files of other sizes exchanged, or copied' '
	fresh good/step-00000100 && test $(stat -c %s c/shard-00001.h5) != \
		$(stat -c %s c/shard-00003.h5) &&
	swap c/shard-00001.h5 c/shard-00003.h5 &&
	finds "^c/shard-00001.h5: holds what shard-00003.h5 should hold: were they" \
		"^c/shard-00003.h5: holds what shard-00001.h5 should hold: were they" &&
	fresh good/step-00000100 && cp c/shard-00001.h5 c/shard-00003.h5 &&
	finds "^c/shard-00003.h5: holds what shard-00001.h5 should hold: were they" &&
	flip c/shard-00003.h5 100000 &&
	finds "^c/shard-00003.h5: too long: has"
'

# A sample NAME, that may be written.
sample() {
	rm -rf c && cp -r "$FSDP_SAMPLES/checkpoints/$1/ckpt" c && chmod -R u+w c
}

test_expect_success SAMPLES 'Megatron: a file too many; exchanged by their SHA-256' '
	sample mcore-w2-a && dir=$(dirname "$(find c -name "__0_0.distcp")") &&
	cp "$dir/__0_0.distcp" "$dir/__5_0.distcp" &&
	finds "/__5_0.distcp: is no part of the checkpoint$" &&
	rm "$dir/__5_0.distcp" && (
		cd "$dir" && echo a >a && echo b >b &&
		{ printf "{\"algorithm\": \"sha256\", \"files\": {\"a\": \"%s\"," \
			"$(sha256sum <b | cut -c 1-64)" &&
		printf "\"b\": \"%s\"}}\n" "$(sha256sum <a | cut -c 1-64)"; } \
			>integrity.json ) &&
	finds "/a: holds what b should hold: were" "/b: holds what a should hold: were"
'

test_expect_success SAMPLES 'DeepSpeed: a model of another stage' '
	sample ds-z2-bf16-w3-a && fsdp-verify c && (
		cd c/global_step2 && cp mp_rank_00_model_states.pt \
			zero_pp_rank_0_mp_rank_00_model_states.pt ) &&
	finds "^c/global_step2/zero_pp_rank_0_mp_rank_00_model_states.pt: is no part" &&
	cd c/global_step2 && rm zero_pp_rank_0_mp_rank_00_model_states.pt &&
	cp bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt \
		bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt && cd ../.. &&
	finds "has 4 files of optimizer states, its run had 3 ranks"
'

test_expect_success SAMPLES 'nothing is found beside checkpoints of other tools' '
	for dir in "$FSDP_SAMPLES"/checkpoints/*/ckpt; do
		case $dir in *-local-*) continue ;; esac &&
		{ fsdp-verify -q "$dir" || test $? = 2; } || { echo "$dir"; return 1; }
	done
'

test_done
