"""More shapes of the first dense families, so that each has five."""

import transformers as tf

from shapes import YARN, decoder


def heads(hidden, ffn, query, key, **fields):
    return {"hidden_size": hidden, "intermediate_size": ffn, "num_attention_heads": query,
            "num_key_value_heads": key, **fields}


def rope(theta, **scaling):
    return {"rope_type": "default", "rope_theta": theta, **scaling}


def llama(*sizes, **fields):
    return lambda: decoder(tf.LlamaConfig, **heads(*sizes), **fields)


def mistral(*sizes, **fields):
    return lambda: decoder(tf.MistralConfig, **heads(*sizes), **{"sliding_window": None, **fields})


def qwen2(*sizes, **fields):
    return lambda: decoder(tf.Qwen2Config, **heads(*sizes), **fields)


def qwen3(*sizes, **fields):
    return lambda: decoder(tf.Qwen3Config, **heads(*sizes), **fields)


def gemma(*sizes, **fields):
    return lambda: decoder(tf.GemmaConfig, **heads(*sizes), **fields)


def gemma2(*sizes, **fields):
    return lambda: decoder(tf.Gemma2Config, **heads(*sizes), **fields)


def gemma3(*sizes, **fields):
    return lambda: decoder(tf.Gemma3TextConfig, **heads(*sizes), **fields)


def gpt2(hidden, n_heads, layers, **fields):
    return lambda: tf.GPT2Config(vocab_size=1003, n_positions=256, n_embd=hidden, n_layer=layers, n_head=n_heads,
                                 bos_token_id=1, eos_token_id=2, **fields)


def ministral3(growth, period, *sizes, **fields):
    return lambda: decoder(
        tf.Ministral3Config, **heads(*sizes), **fields,
        rope_parameters=rope(5e5, llama_4_scaling_beta=growth, original_max_position_embeddings=period))


WINDOWED = {"use_sliding_window": True}

CASES = {
    "llama untied, 8:4 heads of 10, linear rope": llama(
        80, 99, 8, 4, head_dim=10, rope_parameters=rope(1e4, factor=3.0) | {"rope_type": "linear"}),
    "llama tied, 3:3 heads of 34, yarn, one layer": llama(
        66, 131, 3, 3, head_dim=34, num_hidden_layers=1, tie_word_embeddings=True, rope_parameters=dict(YARN)),
    "llama untied, 4:1 heads of 26, biases of the MLP": llama(
        104, 77, 4, 1, mlp_bias=True, num_hidden_layers=7, rope_parameters=rope(2e6)),
    "mistral tied, 4:4 heads of 18": mistral(72, 131, 4, 4, tie_word_embeddings=True),
    "mistral untied, 5:1 heads of 14, window 33": mistral(
        70, 99, 5, 1, sliding_window=33, rope_parameters=rope(1e6)),
    "mistral untied, 9:3 heads of 10, window 16": mistral(84, 190, 9, 3, head_dim=10, sliding_window=16),
    "mistral tied, 2:1 heads of 40, window 5, three layers": mistral(
        60, 211, 2, 1, head_dim=40, sliding_window=5, num_hidden_layers=3, tie_word_embeddings=True),
    "qwen2 tied, 6:2 heads of 12, yarn": qwen2(
        72, 131, 6, 2, tie_word_embeddings=True, rope_parameters=dict(YARN)),
    "qwen2 untied, 5:1 heads of 14, six layers": qwen2(
        70, 77, 5, 1, tie_word_embeddings=False, num_hidden_layers=6, rope_parameters=rope(3e5)),
    "qwen2 tied, 8:4 heads of 8, window 7": qwen2(
        64, 150, 8, 4, tie_word_embeddings=True, sliding_window=7, max_window_layers=0, **WINDOWED),
    "qwen3 tied, 5:1 heads of 10, window 9 from layer 1": qwen3(
        70, 99, 5, 1, head_dim=10, tie_word_embeddings=True, sliding_window=9, max_window_layers=1, **WINDOWED),
    "qwen3 untied, 6:6 heads of 30, biases": qwen3(
        84, 131, 6, 6, head_dim=30, tie_word_embeddings=False, attention_bias=True),
    "qwen3 untied, 2:1 heads of 48, two layers": qwen3(
        52, 211, 2, 1, head_dim=48, tie_word_embeddings=False, num_hidden_layers=2, rope_parameters=rope(5e6)),
    "gemma-1, 6:2 heads of 14": gemma(84, 131, 6, 2, head_dim=14),
    "gemma-1, 5:5 heads of 10, theta 5e4": gemma(70, 99, 5, 5, head_dim=10, rope_parameters=rope(5e4)),
    "gemma-1, 2:1 heads of 44, two layers": gemma(52, 211, 2, 1, head_dim=44, num_hidden_layers=2),
    "gemma-1, 3:3 heads of 22, eps 1e-5": gemma(66, 77, 3, 3, head_dim=22, rms_norm_eps=1e-5),
    "gemma-2, 6:3 heads of 14, window 29, five layers": gemma2(
        84, 131, 6, 3, head_dim=14, query_pre_attn_scalar=14, sliding_window=29, num_hidden_layers=5),
    "gemma-2, 5:1 heads of 10, window 6": gemma2(
        70, 99, 5, 1, head_dim=10, query_pre_attn_scalar=23, sliding_window=6, attn_logit_softcapping=3.0),
    "gemma-2, 2:2 heads of 36, one layer, head without cap": gemma2(
        52, 211, 2, 2, head_dim=36, query_pre_attn_scalar=36, sliding_window=13, num_hidden_layers=1,
        final_logit_softcapping=None),
    "gemma-3 text, 5:5 heads of 12, 13 layers, window 9": gemma3(
        70, 77, 5, 5, head_dim=12, query_pre_attn_scalar=12, sliding_window=9, num_hidden_layers=13),
    "gemma-3 text, 2:1 heads of 36, all windows of 21": gemma3(
        52, 211, 2, 1, head_dim=36, query_pre_attn_scalar=30, sliding_window=21,
        layer_types=["sliding_attention"] * 4),
    "gemma-3 text, 8:2 heads of 10, no windows, other thetas": gemma3(
        88, 131, 8, 2, head_dim=10, query_pre_attn_scalar=10, layer_types=["full_attention"] * 4,
        rope_parameters={"full_attention": rope(3e5), "sliding_attention": rope(2e4)}),
    "gpt-2, 3 heads of 22, seven layers": gpt2(66, 3, 7, n_inner=77),
    "gpt-2, 7 heads of 8, exact gelu": gpt2(56, 7, 3, activation_function="gelu"),
    "gpt-2, 2 heads of 40, scores not scaled, untied": gpt2(
        80, 2, 2, n_inner=190, scale_attn_weights=False, tie_word_embeddings=False),
    "ministral-3, 5:1 heads of 14, tied, window 6": ministral3(
        0.2, 12, 70, 99, 5, 1, head_dim=14, tie_word_embeddings=True, sliding_window=6),
    "ministral-3, 9:3 heads of 10, seven layers": ministral3(
        0.7, 20, 84, 131, 9, 3, head_dim=10, num_hidden_layers=7),
}

NO_COUNTERPART = "the parameter tree has no counterpart for"
REFUSALS = {
    ("maxtext", "llama untied, 4:1 heads of 26"): NO_COUNTERPART,
    ("maxtext", "qwen3 untied, 6:6 heads of 30"): NO_COUNTERPART,
    ("maxtext", "gemma-2, 6:3 heads of 14"): "has layers in pairs",
    ("maxtext", "gemma-2, 2:2 heads of 36"): "has layers in pairs",
    ("gguf", "qwen2 tied, 8:4 heads of 8"): "a sliding window",
    ("gguf", "qwen3 tied, 5:1 heads of 10"): "a sliding window",
    ("gguf", "qwen3 untied, 6:6 heads of 30"): "biases of the attention",
    ("gguf", "gemma-2, 5:1 heads of 10"): "'query_pre_attn_scalar' other than 10",
    ("gguf", "gemma-2, 2:2 heads of 36"): "no 'final_logit_softcapping'",
    ("gguf", "gemma-3 text, 2:1 heads of 36"): "'query_pre_attn_scalar' other than 36",
    ("gguf", "gpt-2, 7 heads of 8"): "an activation other than gelu_tanh",
    ("gguf", "gpt-2, 2 heads of 40"): "'scale_attn_weights': false",
    ("gguf", "ministral-3, queries grow"): "'llama_4_scaling_beta' without",
    ("gguf", "ministral-3, window 17"): "a sliding window",
    ("gguf", "ministral-3, 5:1 heads of 14"): "a sliding window",
    ("gguf", "ministral-3, 9:3 heads of 10"): "'llama_4_scaling_beta' without",
    ("gguf", "llama-4, "): "chunks other than 8192 positions",
}
