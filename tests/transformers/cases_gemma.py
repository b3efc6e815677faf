"""Gemma 4 with experts and Gemma 3n."""

import re

import torch
import transformers as tf

from cases_shapes import gemma4, types
from shapes import Golden, decoder, tiny


def experts(pattern, **fields):
    return gemma4(pattern, **{"enable_moe_block": True, "num_experts": 12, "top_k_experts": 3,
                              "moe_intermediate_size": 34, "hidden_size_per_layer_input": 0, **fields})


def gemma3n(pattern, make=decoder, **fields):
    return make(tf.Gemma3nTextConfig, **{
        "num_hidden_layers": len(pattern), "layer_types": types(pattern), "sliding_window": 13,
        "vocab_size_per_layer_input": 160 if make is tiny else 990, "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 10, "laurel_rank": 9, **fields})


CASES = {
    "gemma-4 with experts, k is v": lambda: experts(
        "wwf", hidden_size=60, intermediate_size=98, num_attention_heads=4, num_key_value_heads=2, head_dim=12,
        global_head_dim=20, num_global_key_value_heads=1, attention_k_eq_v=True, final_logit_softcapping=7.0),
    "gemma-4 with experts, all layers full, all chosen": lambda: experts(
        "fff", hidden_size=48, intermediate_size=33, num_attention_heads=4, num_key_value_heads=4, head_dim=16,
        global_head_dim=16, num_experts=5, top_k_experts=5),
    "gemma-4 with experts, shared keys, layer inputs": lambda: experts(
        "wfwf", hidden_size=64, intermediate_size=70, num_attention_heads=8, num_key_value_heads=1, head_dim=10,
        global_head_dim=24, num_kv_shared_layers=2, hidden_size_per_layer_input=9, use_double_wide_mlp=True),
    "gemma-4 with experts, one chosen": lambda: experts(
        "wf", hidden_size=52, intermediate_size=90, num_attention_heads=6, num_key_value_heads=3, head_dim=14,
        global_head_dim=18, num_experts=20, top_k_experts=1, moe_intermediate_size=17),
    "gemma-4 with experts and eyes": lambda: tf.Gemma4Config(
        text_config=experts("wwf", hidden_size=56, intermediate_size=77, num_attention_heads=4,
                            num_key_value_heads=2, head_dim=12, global_head_dim=22, pad_token_id=0).to_dict(),
        vision_config={"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1, "num_attention_heads": 2,
                       "num_key_value_heads": 2, "head_dim": 8, "patch_size": 4, "position_embedding_size": 64},
        audio_config=None, boi_token_id=3, eoi_token_id=4, image_token_id=5, video_token_id=6, boa_token_id=7,
        eoa_token_index=8, audio_token_id=9),

    "gemma-3n, shared keys, sparse layers": lambda: gemma3n(
        "wfwwff", hidden_size=60, intermediate_size=98, num_attention_heads=4, num_key_value_heads=2, head_dim=12,
        num_kv_shared_layers=3, activation_sparsity_pattern=[0.95, 0.5, 0.3, 0.0, 0.0, 0.0]),
    "gemma-3n, another stream, a width for each layer": lambda: gemma3n(
        "wwf", hidden_size=52, intermediate_size=[90, 71, 33], num_attention_heads=2, num_key_value_heads=1,
        head_dim=22, altup_active_idx=2, activation_sparsity_pattern=[0.7, 0.0, 0.9], final_logit_softcapping=7.0),
    "gemma-3n, two streams, full layers, not scaled": lambda: gemma3n(
        "fff", hidden_size=48, intermediate_size=80, num_attention_heads=4, num_key_value_heads=4, head_dim=16,
        altup_num_inputs=2, altup_correct_scale=False, laurel_rank=3, vocab_size_per_layer_input=1003),
    "gemma-3n, scaled rope, 12 layers of which ten are sparse": lambda: gemma3n(
        "wwwwfwwwwfwf", hidden_size=60, intermediate_size=265, num_attention_heads=5, num_key_value_heads=1,
        head_dim=10, num_kv_shared_layers=2, sliding_window=26,
        rope_parameters={"full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}),
    "gemma-3n with eyes and ears": lambda: gemma3n(
        "wwf", hidden_size=56, intermediate_size=77, num_attention_heads=4, num_key_value_heads=2, head_dim=12,
        altup_num_inputs=3),
}


def fill_gemma3n(name, weight):
    """Scales around 1, smaller ones of what layers add, and factors of streams that matter."""
    if "post_" in name and weight.dim() == 1:
        weight.copy_(0.3 + 0.1 * torch.randn_like(weight))
    elif name.endswith("correct_output_scale") or ("norm" in name and weight.dim() == 1):
        weight.copy_(1 + 0.2 * torch.randn_like(weight))
    elif name.endswith("_coefs.weight"):
        weight.copy_(0.15 * torch.randn_like(weight))
    elif name.endswith("modality_router.weight"):
        # The inputs of routers are divided by the width.
        weight.copy_(weight.shape[-1] ** 0.5 * torch.randn_like(weight))
    else:
        return False
    return True


INIT = {"gemma3n_text": fill_gemma3n}


def inside_config(config):
    """config.json of a model of which this is the text part."""
    return {"architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n", "text_config": config,
            "vision_config": {"hidden_size": 16}, "audio_config": {"hidden_size": 16}}


def inside(tensors):
    """Its tensors' names, or files by these names, and a tensor of the part that is not read."""
    found = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    beside = found.get("model.language_model.norm.weight")
    if beside is not None:
        found["model.vision_tower.norm.weight"] = beside if isinstance(beside, str) else beside.clone()
    return found


REFUSALS = {
    ("maxtext", "gemma-4 with experts"): "windows are on other layers than in MaxText",
    ("maxtext scanned", "gemma-4 with experts, shared keys"): "has no scanned layers",
    ("gguf", "gemma-3n, two streams"): "'altup_correct_scale': false",
    # A file has a row for every token.
    ("gguf", "gemma-3n"): "lacks [('model.embed_tokens_per_layer.weight'",
}
PUBLISH = {"gemma-3n with eyes and ears": (inside_config, inside)}


def by_expert(tensors):
    """Stacked experts, gates above ups, as a tensor for each expert."""
    listed = {}
    for name, tensor in tensors.items():
        found = re.fullmatch(r"(.*\.experts)\.(gate_up|down)_proj", name)
        if not found:
            listed[name] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            prefix = f"{found[1]}.{expert}."
            if found[2] == "down":
                listed[prefix + "down_proj.weight"] = matrix
            else:
                listed[prefix + "gate_proj.weight"], listed[prefix + "up_proj.weight"] = matrix.chunk(2)
    return {name: tensor.contiguous() for name, tensor in listed.items()}


GOLDEN = {
    "gemma4-experts-tiny": Golden(lambda: experts(
        "wf", make=tiny, head_dim=8, global_head_dim=12, num_global_key_value_heads=1, attention_k_eq_v=True,
        num_experts=5, top_k_experts=2, moe_intermediate_size=12, sliding_window=10, final_logit_softcapping=9.0),
        listed=by_expert),
    "gemma3n-tiny": Golden(lambda: gemma3n(
        "wfw", make=tiny, hidden_size=24, intermediate_size=36, head_dim=8, num_kv_shared_layers=1,
        hidden_size_per_layer_input=4, laurel_rank=4, altup_num_inputs=3, sliding_window=10, altup_active_idx=1,
        activation_sparsity_pattern=[0.6, 0.0, 0.0], vocab_size_per_layer_input=150), spread=0.5),
}
