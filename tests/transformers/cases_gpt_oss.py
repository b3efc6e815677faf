"""gpt-oss: sinks, windows, experts with biases, a rope whose ramp is not truncated."""

import transformers as tf

from shapes import Golden, decoder, tiny


def gpt_oss(**fields):
    return lambda: decoder(tf.GptOssConfig, **fields)


def yarn(original, factor=4.0, **fields):
    return {"rope_type": "yarn", "rope_theta": 150000.0, "factor": factor, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": False, "original_max_position_embeddings": original, **fields}


def older(config):
    """Without an object, the class has its own rope."""
    if config.get("rope_scaling") is None:
        config["rope_scaling"] = {"rope_type": "default"}
    return config


OLDER = {"gpt_oss": older}

CASES = {
    "gpt-oss 8:2 heads of 12, 6 experts, 2 chosen": gpt_oss(
        hidden_size=70, intermediate_size=46, num_attention_heads=8, num_key_value_heads=2, head_dim=12,
        num_local_experts=6, num_experts_per_tok=2, sliding_window=17, rope_parameters=yarn(64)),
    "gpt-oss tied, 5:1 heads of 16, all experts chosen": gpt_oss(
        hidden_size=64, intermediate_size=40, num_attention_heads=5, num_key_value_heads=1, head_dim=16,
        num_local_experts=3, num_experts_per_tok=3, sliding_window=20, tie_word_embeddings=True,
        rope_parameters=yarn(32, 8.0, beta_fast=16.0, beta_slow=2.0)),
    "gpt-oss without attention biases, full layers first, plain rope": gpt_oss(
        hidden_size=52, intermediate_size=33, num_attention_heads=4, num_key_value_heads=4, head_dim=14,
        num_local_experts=9, num_experts_per_tok=1, sliding_window=13, attention_bias=False, num_hidden_layers=3,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
    "gpt-oss full layers only, truncated yarn": gpt_oss(
        hidden_size=60, intermediate_size=64, num_attention_heads=6, num_key_value_heads=3, head_dim=10,
        num_local_experts=17, num_experts_per_tok=5, num_hidden_layers=2,
        layer_types=["full_attention", "full_attention"], rope_parameters={**yarn(64), "truncate": True}),
    "gpt-oss with the rope of its class, heads of 64": gpt_oss(
        hidden_size=96, intermediate_size=50, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
        num_local_experts=32, num_experts_per_tok=4, sliding_window=40, rms_norm_eps=1e-6),
}


REFUSALS = {
    ("gguf", "gpt-oss without attention biases"): "windows on other layers than every second",
    ("gguf", "gpt-oss full layers only"): "'truncate': true of yarn",
}


def listed(tensors):
    """One weight and one bias for each expert and projection."""
    out = {}
    for name, tensor in tensors.items():
        if ".mlp.experts." not in name:
            out[name] = tensor
            continue
        prefix, leaf = name.rsplit(".", 1)
        kind = "bias" if leaf.endswith("_bias") else "weight"
        rows = {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)}
        if leaf.startswith("down"):
            rows = {"down_proj": slice(None)}
        for expert, stacked in enumerate(tensor):
            each = stacked if kind == "bias" else stacked.T
            for projection, chosen in rows.items():
                out[f"{prefix}.{expert}.{projection}.{kind}"] = each[chosen]
    return out


GOLDEN = {
    "gpt_oss-tiny": Golden(
        lambda: tiny(tf.GptOssConfig, intermediate_size=16, head_dim=8, num_local_experts=4, num_experts_per_tok=2,
                     sliding_window=12, rope_parameters=yarn(32)),
        listed=listed, spread=0.7, decays=lambda name, tensor: tensor.dim() >= 2 and not name.endswith("bias")),
}
