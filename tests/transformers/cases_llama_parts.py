"""Families that are Llama's decoder with other parts: Phi-3, OLMo 1 to 3, SmolLM3, Granite, GLM-4, Seed-OSS, Arcee,
Ministral 3.
"""

import transformers as tf

from shapes import LLAMA3_ROPE, YARN, Golden, decoder, tiny


def longrope(pairs, original, theta=10000.0, **keys):
    """LongRoPE with different factors for short and long texts."""
    return {"rope_type": "longrope", "rope_theta": theta, "original_max_position_embeddings": original,
            "short_factor": [1.0 + 0.05 * i for i in range(pairs)],
            "long_factor": [1.5 + 0.7 * i for i in range(pairs)], **keys}


def phi3(**fields):
    return decoder(tf.Phi3Config, **fields)


def ministral3(growth, period, **fields):
    rope = fields.pop("rope", {"rope_type": "default", "rope_theta": 1000000.0})
    return decoder(tf.Ministral3Config, rope_parameters={
        **rope, "llama_4_scaling_beta": growth, "original_max_position_embeddings": period}, **fields)


def mistral3(text, **fields):
    """A multimodal model, of which the text part is served."""
    return tf.Mistral3Config(
        text_config={"vocab_size": 1003, "max_position_embeddings": 256, "num_hidden_layers": 4, "bos_token_id": 1,
                     "eos_token_id": 2, "sliding_window": None, **text},
        vision_config={"model_type": "pixtral", "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1,
                       "num_attention_heads": 2, "head_dim": 8, "image_size": 28, "patch_size": 14},
        image_token_index=5, **fields)


def types(pattern):
    """Layer types: w has a window."""
    return ["sliding_attention" if layer == "w" else "full_attention" for layer in pattern]


CASES = {
    "phi-3, 6:2 heads of 16": lambda: phi3(
        hidden_size=96, intermediate_size=212, num_attention_heads=6, num_key_value_heads=2),
    "phi-3, window 17, all heads": lambda: phi3(
        hidden_size=70, intermediate_size=130, num_attention_heads=5, num_key_value_heads=5, sliding_window=17),
    "phi-4-mini, tied, three quarters rotate, longrope, short": lambda: phi3(
        hidden_size=96, intermediate_size=150, num_attention_heads=6, num_key_value_heads=3, tie_word_embeddings=True,
        original_max_position_embeddings=128,
        rope_parameters=longrope(6, 128, partial_rotary_factor=0.75)),
    "phi-3 longrope, long": lambda: phi3(
        hidden_size=72, intermediate_size=99, num_attention_heads=4, num_key_value_heads=2,
        original_max_position_embeddings=32, rope_parameters=longrope(9, 32)),
    "phi-3, half rotates": lambda: phi3(
        hidden_size=80, intermediate_size=131, num_attention_heads=4, num_key_value_heads=1,
        rope_parameters={"rope_type": "default", "rope_theta": 50000.0, "partial_rotary_factor": 0.5}),

    "olmo-1, 4:4 heads of 18": lambda: decoder(
        tf.OlmoConfig, hidden_size=72, intermediate_size=150, num_attention_heads=4),
    "olmo-1, clipped": lambda: decoder(
        tf.OlmoConfig, hidden_size=60, intermediate_size=99, num_attention_heads=6, num_key_value_heads=2,
        clip_qkv=0.8),
    "olmo-1, tied": lambda: decoder(
        tf.OlmoConfig, hidden_size=64, intermediate_size=131, num_attention_heads=4, num_key_value_heads=1,
        tie_word_embeddings=True),
    "olmo-1, biases": lambda: decoder(
        tf.OlmoConfig, hidden_size=52, intermediate_size=77, num_attention_heads=2, attention_bias=True),
    "olmo-1, linear rope, clipped": lambda: decoder(
        tf.OlmoConfig, hidden_size=90, intermediate_size=100, num_attention_heads=5, clip_qkv=1.1,
        rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),

    "olmo-2, 6:6 heads of 14": lambda: decoder(
        tf.Olmo2Config, hidden_size=84, intermediate_size=170, num_attention_heads=6),
    "olmo-2, 6:2 heads, tied": lambda: decoder(
        tf.Olmo2Config, hidden_size=60, intermediate_size=131, num_attention_heads=6, num_key_value_heads=2,
        tie_word_embeddings=True),
    "olmo-2, theta 500000": lambda: decoder(
        tf.Olmo2Config, hidden_size=72, intermediate_size=99, num_attention_heads=4, num_key_value_heads=1,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0}, rms_norm_eps=1e-6),
    "olmo-2, biases": lambda: decoder(
        tf.Olmo2Config, hidden_size=50, intermediate_size=75, num_attention_heads=5, attention_bias=True),
    "olmo-2, llama3 rope": lambda: decoder(
        tf.Olmo2Config, hidden_size=80, intermediate_size=150, num_attention_heads=4, num_key_value_heads=2,
        rope_parameters=dict(LLAMA3_ROPE)),

    "olmo-3, window 13 on three of four": lambda: decoder(
        tf.Olmo3Config, hidden_size=72, intermediate_size=150, num_attention_heads=6, num_key_value_heads=2,
        sliding_window=13, num_hidden_layers=5),
    "olmo-3, yarn on full layers": lambda: decoder(
        tf.Olmo3Config, hidden_size=64, intermediate_size=99, num_attention_heads=4, sliding_window=11,
        rope_parameters={"full_attention": {**YARN, "rope_theta": 500000.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0}}),
    "olmo-3, full layers first": lambda: decoder(
        tf.Olmo3Config, hidden_size=60, intermediate_size=131, num_attention_heads=5, sliding_window=19,
        layer_types=types("-ww-"), tie_word_embeddings=True),
    "olmo-3, no layer with a window": lambda: decoder(
        tf.Olmo3Config, hidden_size=56, intermediate_size=77, num_attention_heads=4, num_key_value_heads=1,
        layer_types=types("----")),
    "olmo-3, window on all layers, biases": lambda: decoder(
        tf.Olmo3Config, hidden_size=48, intermediate_size=90, num_attention_heads=3, sliding_window=9,
        layer_types=types("wwww"), attention_bias=True),

    "smollm3, each fourth without rope": lambda: decoder(
        tf.SmolLM3Config, hidden_size=80, intermediate_size=150, num_attention_heads=4, num_key_value_heads=2,
        num_hidden_layers=5),
    "smollm3, listed layers, untied": lambda: decoder(
        tf.SmolLM3Config, hidden_size=72, intermediate_size=99, num_attention_heads=6, num_key_value_heads=3,
        no_rope_layers=[0, 1, 0, 0], tie_word_embeddings=False),
    "smollm3, every second": lambda: decoder(
        tf.SmolLM3Config, hidden_size=60, intermediate_size=131, num_attention_heads=6, num_key_value_heads=1,
        no_rope_layer_interval=2, rope_parameters={"rope_type": "default", "rope_theta": 5000000.0}),
    "smollm3, window 15 without rope": lambda: decoder(
        tf.SmolLM3Config, hidden_size=64, intermediate_size=77, num_attention_heads=4, num_key_value_heads=4,
        use_sliding_window=True, sliding_window=15, num_hidden_layers=4),
    "smollm3, yarn and biases": lambda: decoder(
        tf.SmolLM3Config, hidden_size=56, intermediate_size=90, num_attention_heads=4, num_key_value_heads=2,
        rope_parameters=dict(YARN), attention_bias=True, mlp_bias=True),

    "granite, all multipliers": lambda: decoder(
        tf.GraniteConfig, hidden_size=72, intermediate_size=150, num_attention_heads=6, num_key_value_heads=2,
        embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.0703, logits_scaling=3.0),
    "granite, tied": lambda: decoder(
        tf.GraniteConfig, hidden_size=64, intermediate_size=131, num_attention_heads=4, num_key_value_heads=1,
        embedding_multiplier=6.0, residual_multiplier=0.246, attention_multiplier=0.25, logits_scaling=6.0,
        tie_word_embeddings=True),
    "granite, biases": lambda: decoder(
        tf.GraniteConfig, hidden_size=60, intermediate_size=99, num_attention_heads=5, attention_bias=True,
        mlp_bias=True, attention_multiplier=0.3, logits_scaling=1.7),
    "granite, multipliers of one": lambda: decoder(
        tf.GraniteConfig, hidden_size=40, intermediate_size=77, num_attention_heads=4, num_key_value_heads=2,
        attention_multiplier=0.31),
    "granite, theta 10 million, yarn": lambda: decoder(
        tf.GraniteConfig, hidden_size=84, intermediate_size=90, num_attention_heads=6, num_key_value_heads=3,
        rope_parameters={**YARN, "rope_theta": 10000000.0}, embedding_multiplier=4.0, residual_multiplier=0.3,
        attention_multiplier=0.2, logits_scaling=2.0),

    "glm, 4:2 heads of 20": lambda: decoder(
        tf.GlmConfig, hidden_size=72, intermediate_size=150, num_attention_heads=4, num_key_value_heads=2,
        head_dim=20, eos_token_id=[2, 3]),
    "glm, no biases, tied": lambda: decoder(
        tf.GlmConfig, hidden_size=64, intermediate_size=131, num_attention_heads=4, num_key_value_heads=1,
        head_dim=16, attention_bias=False, tie_word_embeddings=True),
    "glm, three quarters rotate": lambda: decoder(
        tf.GlmConfig, hidden_size=60, intermediate_size=99, num_attention_heads=5, num_key_value_heads=5, head_dim=24,
        rope_parameters={"rope_type": "default", "rope_theta": 20000.0, "partial_rotary_factor": 0.75}),
    "glm, all rotates": lambda: decoder(
        tf.GlmConfig, hidden_size=56, intermediate_size=77, num_attention_heads=4, num_key_value_heads=2, head_dim=18,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}),
    "glm, yarn": lambda: decoder(
        tf.GlmConfig, hidden_size=80, intermediate_size=90, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        rope_parameters={**YARN, "partial_rotary_factor": 0.5}),

    "glm-4-0414, 4:2 heads of 20": lambda: decoder(
        tf.Glm4Config, hidden_size=72, intermediate_size=150, num_attention_heads=4, num_key_value_heads=2,
        head_dim=20),
    "glm-4-0414, no biases": lambda: decoder(
        tf.Glm4Config, hidden_size=64, intermediate_size=131, num_attention_heads=4, num_key_value_heads=1,
        head_dim=16, attention_bias=False),
    "glm-4-0414, tied": lambda: decoder(
        tf.Glm4Config, hidden_size=60, intermediate_size=99, num_attention_heads=5, num_key_value_heads=5, head_dim=12,
        tie_word_embeddings=True),
    "glm-4-0414, a quarter rotates": lambda: decoder(
        tf.Glm4Config, hidden_size=56, intermediate_size=77, num_attention_heads=4, num_key_value_heads=2, head_dim=24,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}),
    "glm-4-0414, linear rope": lambda: decoder(
        tf.Glm4Config, hidden_size=80, intermediate_size=90, num_attention_heads=4, num_key_value_heads=2, head_dim=28,
        rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0, "partial_rotary_factor": 0.5}),

    "seed-oss, 6:2 heads of 14": lambda: decoder(
        tf.SeedOssConfig, hidden_size=60, intermediate_size=150, num_attention_heads=6, num_key_value_heads=2,
        head_dim=14),
    "seed-oss, bias of the output": lambda: decoder(
        tf.SeedOssConfig, hidden_size=64, intermediate_size=131, num_attention_heads=4, num_key_value_heads=1,
        head_dim=20, attention_out_bias=True),
    "seed-oss, no biases, tied": lambda: decoder(
        tf.SeedOssConfig, hidden_size=56, intermediate_size=99, num_attention_heads=4, num_key_value_heads=4,
        head_dim=16, attention_bias=False, tie_word_embeddings=True),
    "seed-oss, biases of the MLP": lambda: decoder(
        tf.SeedOssConfig, hidden_size=72, intermediate_size=77, num_attention_heads=3, num_key_value_heads=3,
        head_dim=22, mlp_bias=True, residual_dropout=0.0),
    "seed-oss, theta 10 million": lambda: decoder(
        tf.SeedOssConfig, hidden_size=80, intermediate_size=90, num_attention_heads=5, num_key_value_heads=5,
        head_dim=24, rope_parameters={"rope_type": "default", "rope_theta": 10000000.0}),

    "arcee, 6:2 heads of 12": lambda: decoder(
        tf.ArceeConfig, hidden_size=72, intermediate_size=150, num_attention_heads=6, num_key_value_heads=2),
    "arcee, tied": lambda: decoder(
        tf.ArceeConfig, hidden_size=64, intermediate_size=131, num_attention_heads=4, num_key_value_heads=1,
        tie_word_embeddings=True),
    "arcee, biases": lambda: decoder(
        tf.ArceeConfig, hidden_size=60, intermediate_size=99, num_attention_heads=5, attention_bias=True,
        mlp_bias=True),
    "arcee, yarn": lambda: decoder(
        tf.ArceeConfig, hidden_size=80, intermediate_size=77, num_attention_heads=4, num_key_value_heads=2,
        rope_parameters=dict(YARN)),
    "arcee, exact GELU": lambda: decoder(
        tf.ArceeConfig, hidden_size=56, intermediate_size=90, num_attention_heads=4, num_key_value_heads=2,
        head_dim=18, hidden_act="gelu"),

    "ministral-3, queries grow": lambda: ministral3(
        0.4, 16, hidden_size=72, intermediate_size=150, num_attention_heads=6, num_key_value_heads=2, head_dim=20),
    "ministral-3, yarn, tied": lambda: ministral3(
        0.1, 32, rope={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}, hidden_size=64, intermediate_size=131,
        num_attention_heads=4, num_key_value_heads=1, head_dim=16, tie_word_embeddings=True),
    "ministral-3, window 17": lambda: ministral3(
        0.3, 8, hidden_size=60, intermediate_size=99, num_attention_heads=4, num_key_value_heads=4, head_dim=14,
        sliding_window=17),
    "ministral-3 with eyes": lambda: mistral3(
        {"model_type": "ministral3", "hidden_size": 56, "intermediate_size": 77, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 18, "rope_parameters": {
             "rope_type": "default", "rope_theta": 1000000.0, "llama_4_scaling_beta": 0.2,
             "original_max_position_embeddings": 16}}, tie_word_embeddings=False),
    "mistral small 3.1 with eyes": lambda: mistral3(
        {"model_type": "mistral", "hidden_size": 80, "intermediate_size": 90, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 24, "rope_parameters": {
             "rope_type": "default", "rope_theta": 1000000.0}}, tie_word_embeddings=False),
}

REFUSALS = {
    ("gguf", "olmo-1, biases"): "biases of the attention",
    ("gguf", "olmo-2, biases"): "biases of the attention",
    ("gguf", "olmo-2, llama3 rope"): "'rope_type': 'llama3'",
    ("gguf", "olmo-3, no layer with a window"): "no layer with a sliding window",
    ("gguf", "olmo-3, window on all layers"): "biases of the attention",
}
KINDS = {"mistral3": tf.Mistral3ForConditionalGeneration}

# Flags of `tandem serve`: the whole context, for which LongRoPE has other factors.
SERVE = {"phi-3 longrope, long": ["--max-model-len", "256"]}


def partial(config):
    """`partial_rotary_factor` stood beside the rope."""
    scaling = config.get("rope_scaling")
    if scaling and "partial_rotary_factor" in scaling:
        scaling = dict(scaling)
        config["partial_rotary_factor"] = scaling.pop("partial_rotary_factor")
        config["rope_scaling"] = scaling if scaling.keys() - {"rope_type"} else None
    return config


def phi(config):
    """The two lists of LongRoPE had a type, and the original length stood in the config alone."""
    config = partial(config)
    scaling = config.get("rope_scaling")
    if scaling:
        config["rope_scaling"] = {"type": scaling["rope_type"], "short_factor": scaling["short_factor"],
                                  "long_factor": scaling["long_factor"]}
    return config


def one_theta(config):
    config.pop("rope_local_base_freq", None)
    return config


OLDER = {"phi3": phi, "glm": partial, "glm4": partial, "olmo3": one_theta}

GOLDEN = {
    "phi3-tiny": Golden(lambda: tiny(
        tf.Phi3Config, max_position_embeddings=256, original_max_position_embeddings=128, sliding_window=24,
        rope_parameters=longrope(3, 128, partial_rotary_factor=0.75))),
    "olmo1-tiny": Golden(lambda: tiny(tf.OlmoConfig, clip_qkv=1.4), spread=0.7),
    "olmo2-tiny": Golden(lambda: tiny(tf.Olmo2Config)),
    "olmo3-tiny": Golden(lambda: tiny(
        tf.Olmo3Config, num_hidden_layers=3, sliding_window=10, layer_types=types("w-w"),
        rope_parameters={"full_attention": {**YARN, "rope_theta": 500000.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0}})),
    "smollm3-tiny": Golden(lambda: tiny(tf.SmolLM3Config, no_rope_layers=[1, 0])),
    "granite-tiny": Golden(lambda: tiny(
        tf.GraniteConfig, embedding_multiplier=6.0, residual_multiplier=0.3, attention_multiplier=0.25,
        logits_scaling=2.0, tie_word_embeddings=True)),
    "glm-tiny": Golden(lambda: tiny(tf.GlmConfig, head_dim=12)),
    "glm4-tiny": Golden(lambda: tiny(tf.Glm4Config, head_dim=8)),
    "arcee-tiny": Golden(lambda: tiny(tf.ArceeConfig)),
    "ministral3-tiny": Golden(lambda: ministral3(
        0.3, 16, vocab_size=160, max_position_embeddings=128, hidden_size=32, intermediate_size=40, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=10)),
    "seed-oss-tiny": Golden(lambda: tiny(
        tf.SeedOssConfig, head_dim=10, attention_out_bias=True, attention_dropout=0.0, residual_dropout=0.0)),
}
