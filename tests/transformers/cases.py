"""Random models of odd shapes, one function per case: a transformers configuration."""

import math

import torch
import transformers as tf

# Sizes that are not multiples of a vector, a block or 16; the context is longer than every window.
ODD = {"vocab_size": 1003, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2,
       "pad_token_id": None}
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0, "original_max_position_embeddings": 64}


def decoder(kind, **fields):
    return kind(**{**ODD, "num_hidden_layers": 4, **fields})


CASES = {
    "llama-3 untied, 6:2 heads of 20, llama3 rope": lambda: decoder(
        tf.LlamaConfig, hidden_size=90, intermediate_size=212, num_attention_heads=6, num_key_value_heads=2,
        head_dim=20, tie_word_embeddings=False, rope_parameters=dict(LLAMA3_ROPE)),
    "llama tied, 5:1 heads of 14, biases": lambda: decoder(
        tf.LlamaConfig, hidden_size=70, intermediate_size=130, num_attention_heads=5, num_key_value_heads=1,
        tie_word_embeddings=True, attention_bias=True, mlp_bias=True, rms_norm_eps=1e-5),
    "mistral untied, 6:3 heads of 12, window 17": lambda: decoder(
        tf.MistralConfig, hidden_size=72, intermediate_size=150, num_attention_heads=6, num_key_value_heads=3,
        head_dim=12, sliding_window=17, tie_word_embeddings=False),
    "qwen2 tied, 7:7 heads of 10": lambda: decoder(
        tf.Qwen2Config, hidden_size=70, intermediate_size=190, num_attention_heads=7, num_key_value_heads=7,
        tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
    "qwen2 untied, window 19 from layer 2": lambda: decoder(
        tf.Qwen2Config, hidden_size=64, intermediate_size=190, num_attention_heads=4, num_key_value_heads=2,
        use_sliding_window=True, sliding_window=19, max_window_layers=2, tie_word_embeddings=False),
    "qwen3 tied, 4:2 heads of 22": lambda: decoder(
        tf.Qwen3Config, hidden_size=68, intermediate_size=180, num_attention_heads=4, num_key_value_heads=2,
        head_dim=22, tie_word_embeddings=True),
    "qwen3 untied, 9:3 heads of 16, yarn": lambda: decoder(
        tf.Qwen3Config, hidden_size=100, intermediate_size=131, num_attention_heads=9, num_key_value_heads=3,
        head_dim=16, tie_word_embeddings=False, rope_parameters=dict(YARN)),
    "gemma-1, 4:1 heads of 18": lambda: decoder(
        tf.GemmaConfig, hidden_size=60, intermediate_size=166, num_attention_heads=4, num_key_value_heads=1,
        head_dim=18),
    "gemma-2, 4:2 heads of 26, caps, window 13": lambda: decoder(
        tf.Gemma2Config, hidden_size=84, intermediate_size=170, num_attention_heads=4, num_key_value_heads=2,
        head_dim=26, query_pre_attn_scalar=30, sliding_window=13, attn_logit_softcapping=5.0,
        final_logit_softcapping=7.0),
    "gemma-2 without caps": lambda: decoder(
        tf.Gemma2Config, hidden_size=52, intermediate_size=99, num_attention_heads=2, num_key_value_heads=1,
        head_dim=32, query_pre_attn_scalar=32, sliding_window=21, attn_logit_softcapping=None,
        final_logit_softcapping=None),
    "gemma-3 text, 4:1 heads of 24, 7 layers, window 11": lambda: decoder(
        tf.Gemma3TextConfig, hidden_size=76, intermediate_size=150, num_attention_heads=4, num_key_value_heads=1,
        head_dim=24, query_pre_attn_scalar=40, sliding_window=11, num_hidden_layers=7),
    "gemma-3 text, full layers first, scaled rope": lambda: decoder(
        tf.Gemma3TextConfig, hidden_size=66, intermediate_size=150, num_attention_heads=6, num_key_value_heads=3,
        head_dim=16, query_pre_attn_scalar=16, sliding_window=14,
        layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters={"full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}),
    "gemma-3 with eyes": lambda: tf.Gemma3Config(
        text_config={**ODD, "num_hidden_layers": 4, "hidden_size": 56, "intermediate_size": 115,
                     "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 20, "sliding_window": 12,
                     "query_pre_attn_scalar": 20, "model_type": "gemma3_text"},
        vision_config={"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1,
                       "num_attention_heads": 2, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4, boi_token_index=3, eoi_token_index=4, image_token_index=5),
    "gpt-2, 5 heads of 12": lambda: tf.GPT2Config(
        vocab_size=1003, n_positions=256, n_embd=60, n_layer=4, n_head=5, n_inner=101, bos_token_id=1,
        eos_token_id=2),
    "gpt-2, defaults of the MLP": lambda: tf.GPT2Config(
        vocab_size=517, n_positions=128, n_embd=42, n_layer=4, n_head=3, bos_token_id=1, eos_token_id=2),
}


def build(config, seed):
    """A model whose weights are large enough that every part affects the logits."""
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    kind = tf.Gemma3ForConditionalGeneration if config.model_type == "gemma3" else tf.AutoModelForCausalLM
    model = (kind(config) if kind is tf.Gemma3ForConditionalGeneration
             else kind.from_config(config, dtype=torch.float32)).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() < 2:
                base = 1.0 if name.endswith("weight") and not config.model_type.startswith("gemma") else 0.0
                weight.copy_(base + 0.2 * torch.randn_like(weight))
            elif "vision" in name:
                continue
            elif "embed" in name or "wte" in name or "wpe" in name:
                weight.copy_(0.3 * torch.randn_like(weight))
            else:
                # GPT-2 stores [in, out].
                inputs = weight.shape[0] if config.model_type == "gpt2" else weight.shape[1]
                weight.copy_(torch.randn_like(weight) * 1.3 / math.sqrt(inputs))
    return model.eval()


def older(config):
    """config.json as transformers 4 writes it, with the keys of published models."""
    out = dict(config)
    if "text_config" in out:
        out["text_config"] = older(out["text_config"])
    if "dtype" in out:
        out["torch_dtype"] = out.pop("dtype")
    out.pop("pad_token_id", None)
    rope = out.pop("rope_parameters", None)
    if rope and "full_attention" in rope:
        full, sliding = rope["full_attention"], rope.get("sliding_attention", {})
        out["rope_local_base_freq"] = sliding.get("rope_theta", 10000.0)
        rope = full
    if rope:
        rope = dict(rope)
        out["rope_theta"] = rope.pop("rope_theta")
        out["rope_scaling"] = rope if rope.get("rope_type") != "default" else None
    types = out.get("layer_types")
    if types and out["model_type"] == "gemma2":
        out.pop("layer_types")
    if types and out["model_type"] == "gemma3_text" and types[:6].count("full_attention") == 1 and len(types) > 5:
        out.pop("layer_types")
        out["sliding_window_pattern"] = 6
    if types and out["model_type"] in ("qwen2", "qwen3", "llama", "mistral"):
        out.pop("layer_types")
    return out
