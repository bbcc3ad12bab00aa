/*
 * The sets of rules that come with libfsdp.
 */
#include "config.h"

#include <stddef.h>

#include "ckpt/fsdp_ckpt.h"

/* Those of one optimizer's state beside the parameters. */
#define LLMC_KINDS                                 \
    "kind model/transformer.* = params.*\n"        \
    "kind optim/exp_avg/transformer.* = m.*\n"     \
    "kind optim/exp_avg_sq/transformer.* = v.*\n"  \
    "kind optim/master/transformer.* = master.*\n" \
    "kind transformer.* = params.*\n"              \
    "kind * = params.*\n"

static const struct {
    const char *name, *text;
} sets[] = {
    {"gpt2-llmc",
     "# GPT-2 of libfsdp or Hugging Face = llm.c\n" LLMC_KINDS
     "wte.weight:vocab_size + pad:128 = wte\n"
     "wpe.weight = wpe\n"
     "h.{i}.ln_1.weight = ln1w[i]\n"
     "h.{i}.ln_1.bias = ln1b[i]\n"
     "h.{i}.attn.c_attn.weight' = qkvw[i]\n"
     "h.{i}.attn.c_attn.bias = qkvb[i]\n"
     "h.{i}.attn.c_proj.weight' = attprojw[i]\n"
     "h.{i}.attn.c_proj.bias = attprojb[i]\n"
     "h.{i}.ln_2.weight = ln2w[i]\n"
     "h.{i}.ln_2.bias = ln2b[i]\n"
     "h.{i}.mlp.c_fc.weight' = fcw[i]\n"
     "h.{i}.mlp.c_fc.bias = fcb[i]\n"
     "h.{i}.mlp.c_proj.weight' = fcprojw[i]\n"
     "h.{i}.mlp.c_proj.bias = fcprojb[i]\n"
     "ln_f.weight = lnfw\n"
     "ln_f.bias = lnfb\n"
     "# The head is the embedding; masks of attention hold nothing.\n"
     "tied model/lm_head.weight = model/transformer.wte.weight\n"
     "tied lm_head.weight = transformer.wte.weight\n"
     "drop transformer.h.{i}.attn.bias\n"
     "drop transformer.h.{i}.attn.masked_bias\n"
     "drop h.{i}.attn.bias\n"
     "drop h.{i}.attn.masked_bias\n"                   },
    {"gpt2-linear",
     "# GPT-2 with weights (in, out) and fused q, k, v = (out, in), apart\n"
     "h.{i}.attn.c_attn.weight' = h.{i}.attn.q_proj.weight"
     " + h.{i}.attn.k_proj.weight + h.{i}.attn.v_proj.weight\n"
     "h.{i}.attn.c_attn.bias = h.{i}.attn.q_proj.bias"
     " + h.{i}.attn.k_proj.bias + h.{i}.attn.v_proj.bias\n"
     "h.{i}.attn.c_proj.weight' = h.{i}.attn.out_proj.weight\n"
     "h.{i}.attn.c_proj.bias = h.{i}.attn.out_proj.bias\n"
     "h.{i}.mlp.c_fc.weight' = h.{i}.mlp.fc_in.weight\n"
     "h.{i}.mlp.c_fc.bias = h.{i}.mlp.fc_in.bias\n"
     "h.{i}.mlp.c_proj.weight' = h.{i}.mlp.fc_out.weight\n"
     "h.{i}.mlp.c_proj.bias = h.{i}.mlp.fc_out.bias\n"
     "kind model/transformer.* = model/transformer.*\n"
     "kind optim/{kind}/transformer.* = optim/{kind}/transformer.*\n"
     "kind transformer.* = transformer.*\n"
     "kind * = *\n"                                    },
    {"gpt2-base",
     "# GPT-2 of libfsdp or Hugging Face = without the prefix transformer.\n"
     "kind model/transformer.* = *\n"
     "kind transformer.* = *\n"
     "* = *\n"
     "tied model/lm_head.weight = model/transformer.wte.weight\n"
     "tied lm_head.weight = transformer.wte.weight\n"
     "drop h.{i}.attn.bias\n"
     "drop h.{i}.attn.masked_bias\n"                   },
    {"llama-fused",
     "# Llama: q, k, v and gate, up apart = qkv_proj and gate_up_proj\n"
     "model.layers.{i}.self_attn.q_proj.weight:num_attention_heads"
     " + model.layers.{i}.self_attn.k_proj.weight:num_key_value_heads"
     " + model.layers.{i}.self_attn.v_proj.weight:num_key_value_heads"
     " = model.layers.{i}.self_attn.qkv_proj.weight\n"
     "? model.layers.{i}.self_attn.q_proj.bias:num_attention_heads"
     " + model.layers.{i}.self_attn.k_proj.bias:num_key_value_heads"
     " + model.layers.{i}.self_attn.v_proj.bias:num_key_value_heads"
     " = model.layers.{i}.self_attn.qkv_proj.bias\n"
     "model.layers.{i}.mlp.gate_proj.weight + model.layers.{i}.mlp.up_proj"
     ".weight = model.layers.{i}.mlp.gate_up_proj.weight\n"
     "? model.layers.{i}.mlp.gate_proj.bias + model.layers.{i}.mlp.up_proj"
     ".bias = model.layers.{i}.mlp.gate_up_proj.bias\n"},
    {"hf",
     "# A checkpoint of libfsdp = the names of Hugging Face's state dict\n"
     "kind model/* = *\n"
     "* = *\n"                                         },
    {"torch",
     "# A checkpoint of libfsdp = PyTorch's {\"model\": ..., \"optim\": ...}\n"
     "kind model/* = model.*\n"
     "kind optim/{kind}/* = optim.state.*.{kind}\n"
     "* = *\n"                                         },
    {"universal",
     "# A checkpoint of libfsdp = master weights and states as DeepSpeed's\n"
     "kind model/* = fp32.*\n"
     "kind optim/{kind}/* = {kind}.*\n"
     "* = *\n"                                         },
    {"wrappers",    "# Names without what wrappers of modules put into them\n"
                 "strip module.\n"
                 "strip _fsdp_wrapped_module.\n"
                 "strip _checkpoint_wrapped_module.\n"
                 "strip _orig_mod.\n"  },
};

bool fsdp_ckpt_get_rules(size_t index, const char **name_p, const char **text_p)
{
    if (index >= sizeof(sets) / sizeof(*sets)) {
        return false;
    }

    *name_p = sets[index].name;
    *text_p = sets[index].text;
    return true;
}
