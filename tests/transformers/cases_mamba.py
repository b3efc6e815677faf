"""Mamba-2 and its hybrids (Falcon-H1, Bamba, Nemotron-H), and Llama 4."""

import re

import torch
import transformers as tf

from shapes import LLAMA3_ROPE, Golden, decoder, tiny

MIXERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}


def mamba2(**fields):
    return decoder(tf.Mamba2Config, **{"hidden_size": 60, "num_heads": 6, "head_dim": 20, "state_size": 18,
                                       "n_groups": 1, **fields})


def falcon(**fields):
    return decoder(tf.FalconH1Config, **{
        "hidden_size": 72, "intermediate_size": 99, "num_attention_heads": 4, "num_key_value_heads": 2,
        "mamba_d_ssm": 60, "mamba_n_heads": 6, "mamba_d_state": 18, "embedding_multiplier": 3.0,
        "lm_head_multiplier": 0.5, "key_multiplier": 0.7, "attention_out_multiplier": 0.8, "ssm_out_multiplier": 0.6,
        "mlp_multipliers": [0.9, 0.7], "ssm_multipliers": [0.8, 0.9, 0.7, 1.2, 0.6], **fields})


def bamba(**fields):
    return decoder(tf.BambaConfig, **{
        "hidden_size": 64, "intermediate_size": 99, "num_attention_heads": 4, "num_key_value_heads": 2,
        "mamba_n_heads": 8, "mamba_d_state": 18, "attn_layer_indices": [2], **fields})


def nemotron(pattern, **fields):
    return decoder(tf.NemotronHConfig, **{
        "layers_block_type": [MIXERS[letter] for letter in pattern], "num_hidden_layers": len(pattern),
        "hidden_size": 60, "intermediate_size": 99, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "mamba_num_heads": 6, "mamba_head_dim": 14, "ssm_state_size": 18, "n_groups": 2,
        "n_routed_experts": 9, "num_experts_per_tok": 3, "moe_intermediate_size": 26,
        "moe_shared_expert_intermediate_size": 34, **fields})


def llama4(kind=tf.Llama4TextConfig, **fields):
    return decoder(kind, **{
        "hidden_size": 60, "intermediate_size": 40, "intermediate_size_mlp": 99, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 5, "attention_chunk_size": 16,
        "floor_scale": 8, "attn_scale": 0.3, **fields})


CASES = {
    "mamba-2, one group": lambda: mamba2(),
    "mamba-2, three groups, tied": lambda: mamba2(n_groups=3, tie_word_embeddings=True),
    "mamba-2, biases, three taps": lambda: mamba2(use_bias=True, conv_kernel=3, n_groups=2),
    "mamba-2, no bias of the convolution, wide state": lambda: mamba2(
        use_conv_bias=False, state_size=70, expand=3, num_heads=9, layer_norm_epsilon=1e-3),
    "mamba-2, codestral's shape, limited steps": lambda: mamba2(
        hidden_size=64, num_heads=16, head_dim=8, n_groups=8, state_size=16, time_step_limit=(0.05, 0.9)),

    "falcon-h1 without norm": lambda: falcon(),
    "falcon-h1, norm before the gate, groups, tied": lambda: falcon(
        mamba_rms_norm=True, mamba_n_groups=2, tie_word_embeddings=True),
    "falcon-h1, norm after the gate, biases": lambda: falcon(
        mamba_rms_norm=True, mamba_norm_before_gate=False, mamba_proj_bias=True, projectors_bias=True,
        attention_bias=True, mlp_bias=True, attention_in_multiplier=0.6, ssm_in_multiplier=1.4),
    "falcon-h1, expanded width, three taps": lambda: falcon(
        mamba_d_ssm=None, mamba_expand=2, mamba_d_conv=3, mamba_conv_bias=False, mamba_n_groups=3),
    "falcon-h1, no multipliers, long rope": lambda: falcon(
        embedding_multiplier=1.0, lm_head_multiplier=1.0, key_multiplier=1.0, attention_out_multiplier=1.0,
        ssm_out_multiplier=1.0, mlp_multipliers=None, ssm_multipliers=None,
        rope_parameters={"rope_type": "default", "rope_theta": 100000000000.0}),

    "bamba, one layer attends": lambda: bamba(),
    "bamba, two groups, tied": lambda: bamba(mamba_n_groups=2, attn_layer_indices=[0, 3], tie_word_embeddings=True),
    "bamba, biases": lambda: bamba(mamba_proj_bias=True, attention_bias=True, mlp_bias=True, mamba_d_conv=3),
    "bamba, three layers attend": lambda: bamba(attn_layer_indices=[0, 1, 3], mamba_conv_bias=False),
    "bamba, limited steps, llama3 rope": lambda: bamba(
        time_step_limit=(0.05, 0.9), attn_layer_indices=[1, 2], rope_parameters=dict(LLAMA3_ROPE)),

    "nemotron-h without experts": lambda: nemotron("M-*-M"),
    "nemotron-h with experts": lambda: nemotron("MEM*E", routed_scaling_factor=2.5),
    "nemotron-h, latent experts, biases": lambda: nemotron(
        "ME*-", moe_latent_size=28, mlp_bias=True, use_bias=True),
    "nemotron-h, groups of experts, weights not normalised": lambda: nemotron(
        "EM*E", n_routed_experts=12, n_group=4, topk_group=2, norm_topk_prob=False),
    "nemotron-h, silu, larger least step": lambda: nemotron(
        "M*M-E", mlp_hidden_act="silu", time_step_min=0.1, use_conv_bias=False, n_groups=3),

    "llama-4, experts in all layers": lambda: llama4(),
    "llama-4, every other layer has experts, no norms of q and k": lambda: llama4(
        interleave_moe_layer_step=2, use_qk_norm=False, rope_parameters=dict(LLAMA3_ROPE)),
    "llama-4, two experts of a row, tied": lambda: llama4(
        num_experts_per_tok=2, moe_layers=[1, 3], tie_word_embeddings=True, attention_chunk_size=32),
    "llama-4, full layers with rope, biases": lambda: llama4(
        layer_types=["full_attention", "chunked_attention", "full_attention", "chunked_attention"],
        no_rope_layers=[1, 0, 0, 1], attention_bias=True, attn_temperature_tuning=False),
    "llama-4, seven layers, 5:1 heads of 14, chunks of 48": lambda: llama4(
        hidden_size=70, num_hidden_layers=7, num_attention_heads=5, num_key_value_heads=1, head_dim=14,
        num_local_experts=9, attention_chunk_size=48),
    "llama-4 with eyes": lambda: tf.Llama4Config(
        text_config=llama4().to_dict(),
        vision_config={"hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
                       "image_size": 28, "patch_size": 14, "vision_output_dim": 16, "projector_input_dim": 16,
                       "projector_output_dim": 16}),
}
KINDS = {"llama4": tf.Llama4ForConditionalGeneration, "llama4_text": tf.Llama4ForCausalLM}


def fill_nemotron(name, weight):
    """Norm scales around one: those of the dense Nemotron, whose name is the same, are stored minus one."""
    is_scale = weight.dim() < 2 and name.endswith(("weight", ".D"))
    if is_scale:
        weight.copy_(1 + 0.2 * torch.randn_like(weight))
    return is_scale


INIT = {"nemotron_h": fill_nemotron}


def older_nemotron(config):
    out = dict(config)
    letters = {name: letter for letter, name in MIXERS.items()}
    out["hybrid_override_pattern"] = "".join(letters[name] for name in out.pop("layers_block_type"))
    return out


def older_llama4(config):
    out = dict(config)
    derived = ["chunked_attention" if rope else "full_attention" for rope in out["no_rope_layers"]]
    if out.get("layer_types") == derived:
        out.pop("layer_types")
    if out["attn_temperature_tuning"]:
        out["attn_temperature_tuning"] = 4
    return out


OLDER = {"nemotron_h": older_nemotron, "llama4_text": older_llama4}


def split_stacks(tensors):
    """Stacked experts one by one, as the families list them."""
    out = {}
    for name, tensor in tensors.items():
        stacked = re.fullmatch(r"(.*\.experts)\.(gate_up_proj|up_proj|down_proj)", name)
        if not stacked:
            out[name] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            prefix = f"{stacked[1]}.{expert}."
            if "feed_forward" not in name:  # Nemotron-H: [out, in], no gate
                out[f"{prefix}{stacked[2]}.weight"] = matrix
            elif stacked[2] == "down_proj":  # Llama 4: [in, out]
                out[prefix + "down_proj.weight"] = matrix.T.contiguous()
            else:
                half = matrix.shape[1] // 2
                out[prefix + "gate_proj.weight"] = matrix[:, :half].T.contiguous()
                out[prefix + "up_proj.weight"] = matrix[:, half:].T.contiguous()
    return out


# Chunks change the time of the reference alone.
TINY_MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 6, "mamba_n_groups": 2, "mamba_chunk_size": 16}

GOLDEN = {
    "mamba2-tiny": Golden(lambda: tiny(
        tf.Mamba2Config, num_hidden_layers=3, num_heads=8, head_dim=8, state_size=6, n_groups=2, chunk_size=16),
                          spread=0.5),
    "falcon_h1-tiny": Golden(lambda: tiny(
        tf.FalconH1Config, **TINY_MAMBA, intermediate_size=24, mamba_d_ssm=48, mamba_rms_norm=True,
        embedding_multiplier=2.0, lm_head_multiplier=0.75, key_multiplier=0.7, attention_out_multiplier=0.8, ssm_out_multiplier=0.6,
        mlp_multipliers=[0.9, 0.7], ssm_multipliers=[0.8, 0.9, 0.7, 1.2, 0.6]), spread=0.5),
    "bamba-tiny": Golden(lambda: tiny(tf.BambaConfig, **TINY_MAMBA, num_hidden_layers=2, attn_layer_indices=[1]),
                         spread=0.5),
    "nemotron_h-tiny": Golden(lambda: tiny(
        tf.NemotronHConfig, layers_block_type=[MIXERS[letter] for letter in "ME*-"], num_hidden_layers=4, head_dim=8,
        mamba_num_heads=6, mamba_head_dim=8, ssm_state_size=6, n_groups=2, n_routed_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=12, moe_shared_expert_intermediate_size=16, routed_scaling_factor=1.5, chunk_size=16),
        listed=split_stacks, spread=0.5),
    "llama4-tiny": Golden(lambda: tiny(
        tf.Llama4TextConfig, num_hidden_layers=3, head_dim=8, intermediate_size=12, intermediate_size_mlp=24,
        num_local_experts=4, moe_layers=[1], no_rope_layers=[1, 1, 0], attention_chunk_size=16, floor_scale=8,
        attn_scale=0.3), listed=split_stacks, spread=0.5),
}

REFUSALS = {
    ("gguf", "falcon-h1"): "state size does not divide its width",  # llama.cpp stops
    ("gguf", "falcon-h1, norm after the gate, biases"): "biases of the attention",
    ("gguf", "mamba-2"): "state size does not divide its width",
    ("gguf", "nemotron-h"): "state size does not divide its width",
    ("gguf", "nemotron-h, latent experts, biases"): "layers with a plain MLP beside layers with experts",
    ("gguf", "nemotron-h, silu"): "layers with a plain MLP beside layers with experts",
    ("gguf", "nemotron-h, groups"): "groups of experts",
}
