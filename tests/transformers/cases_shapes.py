"""Families whose attention differs by layer or is latent: Gemma 4, DeepSeek-V2 and V3."""

import torch
import transformers as tf

from shapes import YARN, Golden, decoder, tiny


def types(pattern):
    """Layer types: w has a window."""
    return ["sliding_attention" if layer == "w" else "full_attention" for layer in pattern]


def gemma4(pattern, make=decoder, **fields):
    return make(tf.Gemma4TextConfig, **{
        "num_hidden_layers": len(pattern), "layer_types": types(pattern), "sliding_window": 13,
        "vocab_size_per_layer_input": 160 if make is tiny else 1003, **fields})


def deepseek_v2(**fields):
    return decoder(tf.DeepseekV2Config, **{
        "hidden_size": 64, "intermediate_size": 99, "num_attention_heads": 4, "q_lora_rank": 22, "kv_lora_rank": 18,
        "qk_nope_head_dim": 14, "qk_rope_head_dim": 8, "v_head_dim": 12, "n_routed_experts": 12,
        "num_experts_per_tok": 3, "moe_intermediate_size": 34, "n_shared_experts": 2, "first_k_dense_replace": 1,
        **fields})


def deepseek_v3(**fields):
    return decoder(tf.DeepseekV3Config, **{
        "hidden_size": 66, "intermediate_size": 90, "num_attention_heads": 6, "num_key_value_heads": 6,
        "q_lora_rank": 20, "kv_lora_rank": 26, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 16,
        "n_routed_experts": 16, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2,
        "moe_intermediate_size": 28, "n_shared_experts": 1, "first_k_dense_replace": 1, **fields})


YARN_SCALED = {**YARN, "rope_theta": 10000.0, "mscale": 1.0, "mscale_all_dim": 0.7}

CASES = {
    "gemma-4, k is v, wider full heads, shared keys, wide MLP": lambda: gemma4(
        "wfwwff", hidden_size=60, intermediate_size=98, num_attention_heads=4, num_key_value_heads=2, head_dim=12,
        global_head_dim=20, num_global_key_value_heads=1, attention_k_eq_v=True, num_kv_shared_layers=3,
        use_double_wide_mlp=True, hidden_size_per_layer_input=10, final_logit_softcapping=7.0),
    "gemma-4 without shared keys and layer inputs": lambda: gemma4(
        "wwf", hidden_size=52, intermediate_size=90, num_attention_heads=6, num_key_value_heads=3, head_dim=14,
        global_head_dim=18, hidden_size_per_layer_input=0),
    "gemma-4, k is v, all layers full": lambda: gemma4(
        "fff", hidden_size=48, intermediate_size=80, num_attention_heads=4, num_key_value_heads=4, head_dim=16,
        global_head_dim=16, num_global_key_value_heads=2, attention_k_eq_v=True, hidden_size_per_layer_input=6),
    "gemma-4, one own layer of each kind, 26 of window": lambda: gemma4(
        "fwwwf", hidden_size=64, intermediate_size=70, num_attention_heads=8, num_key_value_heads=1, head_dim=10,
        global_head_dim=24, num_kv_shared_layers=3, hidden_size_per_layer_input=9, sliding_window=26),
    "gemma-4 with eyes": lambda: tf.Gemma4Config(
        text_config=gemma4("wwf", hidden_size=56, intermediate_size=77, num_attention_heads=4, num_key_value_heads=2,
                           head_dim=12, global_head_dim=22, hidden_size_per_layer_input=8, pad_token_id=0).to_dict(),
        vision_config={"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1, "num_attention_heads": 2,
                       "num_key_value_heads": 2, "head_dim": 8, "patch_size": 4, "position_embedding_size": 64},
        audio_config=None, boi_token_id=3, eoi_token_id=4, image_token_id=5, video_token_id=6, boa_token_id=7,
        eoa_token_index=8, audio_token_id=9),

    "deepseek-v2, greedy": deepseek_v2,
    "deepseek-v2-lite, queries not latent, no dense layer": lambda: deepseek_v2(
        q_lora_rank=None, first_k_dense_replace=0, n_shared_experts=1),
    "deepseek-v2, best groups, scaled": lambda: deepseek_v2(
        topk_method="group_limited_greedy", n_group=4, topk_group=2, routed_scaling_factor=2.5),
    "deepseek-v2, yarn": lambda: deepseek_v2(rope_parameters=dict(YARN_SCALED)),
    "deepseek-v2, biases, wide values": lambda: deepseek_v2(
        attention_bias=True, v_head_dim=30, qk_nope_head_dim=6, rms_norm_eps=1e-5),

    "deepseek-v3": deepseek_v3,
    "deepseek-v3, halves rotate, no groups": lambda: deepseek_v3(rope_interleave=False, n_group=1, topk_group=1),
    "deepseek-v3, weights not normalised, two shared": lambda: deepseek_v3(
        norm_topk_prob=False, routed_scaling_factor=1.0, n_shared_experts=2),
    "deepseek-v3, yarn, biases": lambda: deepseek_v3(rope_parameters=dict(YARN_SCALED), attention_bias=True),
    "deepseek-v3, queries not latent, dense layers only": lambda: deepseek_v3(
        q_lora_rank=None, first_k_dense_replace=4),
}


def fill_gemma4(name, weight):
    """Norm scales around 1, and factors of layers that are not 1."""
    if name.endswith("layer_scalar"):
        weight.copy_(0.8 + 0.3 * torch.rand_like(weight))
    elif weight.dim() == 1 and "post_" in name:  # of what layers add
        weight.copy_(0.3 + 0.1 * torch.randn_like(weight))
    elif weight.dim() == 1 and ("norm" in name or name.endswith("scale")):
        weight.copy_(1 + 0.2 * torch.randn_like(weight))
    elif name.endswith("router.proj.weight"):  # its inputs are divided by the root of the width
        weight.copy_(2 * torch.randn_like(weight))
    else:
        return False
    return True


INIT = {"gemma4_text": fill_gemma4, "gemma4": fill_gemma4}


def gemma4_heads(config):
    """The keys of heads before `per_layer_config`."""
    out = dict(config)
    scaling = out.pop("rope_scaling", None) or {"rope_type": "default"}
    if "partial_rotary_factor" in out:
        scaling = {**scaling, "partial_rotary_factor": out.pop("partial_rotary_factor")}
    out["rope_parameters"] = {
        "full_attention": {**scaling, "rope_theta": out.pop("rope_theta")},
        "sliding_attention": {"rope_type": "default", "rope_theta": out.pop("rope_local_base_freq")}}
    heads = next(iter((out.pop("per_layer_config", None) or {"": {}}).values()))
    out["global_head_dim"] = heads.get("head_dim", out["head_dim"])
    out["num_global_key_value_heads"] = heads.get("num_key_value_heads")
    return out


OLDER = {"gemma4_text": gemma4_heads}
KINDS = {"gemma4": tf.Gemma4ForConditionalGeneration}

TINY_LATENT = {"num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6,
               "qk_rope_head_dim": 4, "v_head_dim": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
               "n_shared_experts": 1, "first_k_dense_replace": 1}

GOLDEN = {
    "gemma4-tiny": Golden(lambda: gemma4(
        "wfwf", make=tiny, hidden_size=24, intermediate_size=32, head_dim=8, global_head_dim=12,
        num_global_key_value_heads=1, attention_k_eq_v=True,
        num_kv_shared_layers=2, use_double_wide_mlp=True, hidden_size_per_layer_input=4, sliding_window=10,
        final_logit_softcapping=9.0), spread=0.2),
    "deepseek_v2-tiny": Golden(lambda: tiny(
        tf.DeepseekV2Config, n_routed_experts=6, topk_method="group_limited_greedy", n_group=3, topk_group=2,
        **TINY_LATENT), spread=0.6),
    "deepseek_v3-tiny": Golden(lambda: tiny(
        tf.DeepseekV3Config, n_routed_experts=8, n_group=2, topk_group=1, routed_scaling_factor=1.5, **TINY_LATENT),
        spread=0.6),
}
