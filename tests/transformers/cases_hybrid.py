"""Families with recurrent layers: LFM2, Qwen3.5 (dense and with experts), Qwen3-Next, Granite 4."""

import re

import transformers as tf

from shapes import YARN, Golden, decoder, split_granite, tiny

PARTIAL = {"rope_type": "default", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25}


def mixers(pattern, recurrent):
    """Layer types: a has attention."""
    return ["full_attention" if layer == "a" else recurrent for layer in pattern]


def lfm2(pattern, **fields):
    return decoder(tf.Lfm2Config, **{"layer_types": mixers(pattern, "conv"), "block_auto_adjust_ff_dim": False,
                                     "tie_word_embeddings": True, **fields})


def delta(kind, pattern, **fields):
    return decoder(kind, **{"layer_types": mixers(pattern, "linear_attention"), "rope_parameters": dict(PARTIAL),
                            "hidden_size": 60, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24,
                            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12,
                            "linear_value_head_dim": 20, **fields})


EXPERTS = {"num_experts": 9, "num_experts_per_tok": 3, "moe_intermediate_size": 26,
           "shared_expert_intermediate_size": 34}

CASES = {
    "lfm2, 6:2 heads, tied": lambda: lfm2(
        "caca", hidden_size=72, intermediate_size=131, num_attention_heads=6, num_key_value_heads=2),
    "lfm2, biases, four taps": lambda: lfm2(
        "ccac", hidden_size=64, intermediate_size=99, num_attention_heads=4, num_key_value_heads=4, conv_bias=True,
        conv_L_cache=4),
    "lfm2, adjusted width, untied": lambda: lfm2(
        "accc", hidden_size=60, intermediate_size=150, num_attention_heads=2, num_key_value_heads=1,
        block_auto_adjust_ff_dim=True, block_ffn_dim_multiplier=1.3, block_multiple_of=7, tie_word_embeddings=False),
    "lfm2, attention by index": lambda: lfm2(
        "cacc", hidden_size=56, intermediate_size=77, num_attention_heads=4, num_key_value_heads=2, layer_types=None,
        full_attn_idxs=[1]),
    "lfm2, one tap, yarn": lambda: lfm2(
        "cccca", hidden_size=48, intermediate_size=80, num_attention_heads=3, num_key_value_heads=3, conv_L_cache=1,
        num_hidden_layers=5, rope_parameters=dict(YARN)),

    "qwen3.5, every fourth layer attends": lambda: delta(
        tf.Qwen3_5TextConfig, "llla", intermediate_size=131),
    "qwen3.5, equal heads, tied": lambda: delta(
        tf.Qwen3_5TextConfig, "lala", intermediate_size=99, linear_num_key_heads=3, linear_num_value_heads=3,
        tie_word_embeddings=True),
    "qwen3.5, biases, half rotates": lambda: delta(
        tf.Qwen3_5TextConfig, "alll", intermediate_size=120, attention_bias=True,
        rope_parameters={**PARTIAL, "partial_rotary_factor": 0.5}),
    "qwen3.5, three taps, wide keys": lambda: delta(
        tf.Qwen3_5TextConfig, "llal", intermediate_size=77, linear_conv_kernel_dim=3, linear_key_head_dim=40,
        linear_value_head_dim=33, linear_num_key_heads=1, linear_num_value_heads=2),
    "qwen3.5, defaults of the layers": lambda: delta(
        tf.Qwen3_5TextConfig, "llla", intermediate_size=64, layer_types=None, num_hidden_layers=5,
        num_key_value_heads=1),

    "qwen3-next, three of nine experts": lambda: delta(
        tf.Qwen3NextConfig, "llla", intermediate_size=90, **EXPERTS),
    "qwen3-next, dense first layer, tied": lambda: delta(
        tf.Qwen3NextConfig, "lala", intermediate_size=66, mlp_only_layers=[0], tie_word_embeddings=True, **EXPERTS),
    "qwen3-next, every other layer has experts": lambda: delta(
        tf.Qwen3NextConfig, "lall", intermediate_size=70, decoder_sparse_step=2, **EXPERTS),
    "qwen3-next, weights not normalised": lambda: delta(
        tf.Qwen3NextConfig, "alll", intermediate_size=70, norm_topk_prob=False, **EXPERTS),
    "qwen3-next, equal heads, one expert": lambda: delta(
        tf.Qwen3NextConfig, "llla", intermediate_size=70, linear_num_key_heads=3, linear_num_value_heads=3,
        **{**EXPERTS, "num_experts_per_tok": 1}),

    "qwen3.5 experts, three of nine": lambda: delta(tf.Qwen3_5MoeTextConfig, "llla", **EXPERTS),
    "qwen3.5 experts, tied": lambda: delta(tf.Qwen3_5MoeTextConfig, "lala", tie_word_embeddings=True, **EXPERTS),
    "qwen3.5 experts, one of four": lambda: delta(
        tf.Qwen3_5MoeTextConfig, "alll", **{**EXPERTS, "num_experts": 4, "num_experts_per_tok": 1}),
    "qwen3.5 experts, wide shared one": lambda: delta(
        tf.Qwen3_5MoeTextConfig, "llal", **{**EXPERTS, "shared_expert_intermediate_size": 101}),
    "qwen3.5 experts, biases": lambda: delta(tf.Qwen3_5MoeTextConfig, "lla", num_hidden_layers=3,
                                             attention_bias=True, **EXPERTS),
}


def granite4(pattern, **fields):
    return decoder(tf.GraniteMoeHybridConfig, **{
        "layer_types": mixers(pattern, "linear_attention"), "hidden_size": 60, "num_attention_heads": 6,
        "num_key_value_heads": 2, "shared_intermediate_size": 99, "num_local_experts": 0, "num_experts_per_tok": 0,
        "mamba_n_heads": 6, "mamba_d_head": 20, "mamba_d_state": 18, "attention_multiplier": 0.2,
        "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0, **fields})


CASES.update({
    "granite-4 without rope, dense": lambda: granite4("llal"),
    "granite-4 with rope, tied": lambda: granite4("alll", position_embedding_type="rope", tie_word_embeddings=True),
    "granite-4 with experts": lambda: granite4(
        "llal", num_local_experts=7, num_experts_per_tok=3, intermediate_size=34),
    "granite-4, three taps without bias": lambda: granite4("lala", mamba_d_conv=3, mamba_conv_bias=False),
    "granite-4, wide state, limited steps": lambda: granite4(
        "laal", mamba_d_state=70, mamba_expand=3, mamba_n_heads=9, time_step_limit=(0.05, 0.9), attention_bias=True),
})


def tiny_delta(kind, **fields):
    return tiny(kind, **{"layer_types": mixers("la", "linear_attention"), "head_dim": 8,
                         "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6,
                         "linear_value_head_dim": 8,
                         "rope_parameters": {**PARTIAL, "rope_theta": 10000.0, "partial_rotary_factor": 0.5}, **fields})


def split_experts(tensors):
    """Stacked experts one by one, as the family lists them."""
    out = {}
    for name, tensor in tensors.items():
        stacked = re.fullmatch(r"(.*\.experts)\.(gate_up_proj|down_proj)", name)
        if not stacked:
            out[name] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            prefix = f"{stacked[1]}.{expert}."
            if stacked[2] == "down_proj":
                out[prefix + "down_proj.weight"] = matrix
                continue
            half = matrix.shape[0] // 2
            out[prefix + "gate_proj.weight"] = matrix[:half]
            out[prefix + "up_proj.weight"] = matrix[half:]
    return out


TINY_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
                "shared_expert_intermediate_size": 12}

GOLDEN = {
    "lfm2-tiny": Golden(lambda: tiny(
        tf.Lfm2Config, layer_types=mixers("caca", "conv"), num_hidden_layers=4, block_auto_adjust_ff_dim=False,
        intermediate_size=24, tie_word_embeddings=True)),
    "qwen3_5-tiny": Golden(lambda: tiny_delta(tf.Qwen3_5TextConfig), spread=0.4),
    "qwen3_5_moe-tiny": Golden(lambda: tiny_delta(tf.Qwen3_5MoeTextConfig, **TINY_EXPERTS), listed=split_experts, spread=0.35),
    "qwen3_next-tiny": Golden(lambda: tiny_delta(tf.Qwen3NextConfig, **TINY_EXPERTS), listed=split_experts, spread=0.35),
    "granitemoehybrid-tiny": Golden(lambda: tiny(
        tf.GraniteMoeHybridConfig, layer_types=mixers("la", "linear_attention"), num_local_experts=4,
        num_experts_per_tok=2, intermediate_size=12, shared_intermediate_size=16, mamba_n_heads=4, mamba_d_head=16,
        mamba_d_state=8, attention_multiplier=0.25, embedding_multiplier=3.0, residual_multiplier=0.5,
        logits_scaling=2.0), listed=split_granite, spread=0.45),
}

REFUSALS = {
    ("gguf", "granite-4"): "state size does not divide its width",  # llama.cpp stops
    ("gguf", "granite-4, wide state"): "biases of the attention",
}
