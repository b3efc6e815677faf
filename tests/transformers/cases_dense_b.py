"""Dense families with LayerNorms, parallel blocks or names of their own."""

import transformers as tf

from shapes import LLAMA3_ROPE, YARN, Golden, decoder, tiny


def partial(factor, theta=10000.0):
    return {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": factor}


def stablelm(**fields):
    return lambda: decoder(tf.StableLmConfig, **fields)


def starcoder2(**fields):
    return lambda: decoder(tf.Starcoder2Config, **fields)


def cohere(**fields):
    return lambda: decoder(tf.CohereConfig, **fields)


def cohere2(**fields):
    return lambda: decoder(tf.Cohere2Config, **fields)


def nemotron(**fields):
    return lambda: decoder(tf.NemotronConfig, **fields)


def phi(**fields):
    return lambda: decoder(tf.PhiConfig, **fields)


def gpt_neox(hidden, ffn, heads, factor=0.25, **fields):
    return lambda: decoder(
        tf.GPTNeoXConfig, hidden_size=hidden, intermediate_size=ffn, num_attention_heads=heads,
        **{"rope_parameters": partial(factor), **fields})


def gptj(hidden, heads, rotary_dim, **fields):
    return lambda: tf.GPTJConfig(vocab_size=1003, n_positions=256, n_embd=hidden, n_layer=4, n_head=heads,
                                 rotary_dim=rotary_dim, bos_token_id=1, eos_token_id=2, **fields)


def helium(**fields):
    return lambda: decoder(tf.HeliumConfig, **fields)


def ernie(**fields):
    return lambda: decoder(tf.Ernie4_5Config, **fields)


def internlm3(**fields):
    return lambda: decoder(tf.InternLM3Config, **fields)


def hunyuan(**fields):
    return lambda: decoder(tf.HunYuanDenseV1Config, **fields)


def exaone4(**fields):
    return lambda: decoder(tf.Exaone4Config, **fields)


def sizes(hidden, ffn, heads, kv_heads, **fields):
    return {"hidden_size": hidden, "intermediate_size": ffn, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, **fields}


def with_names_of_exaone(tensors):
    """Tensors of Llama by the names of EXAONE 3.5."""
    changes = {"model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f",
               "model.layers": "transformer.h", "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2",
               "self_attn.o_proj": "attn.attention.out_proj", "self_attn": "attn.attention",
               "mlp.gate_proj": "mlp.c_fc_0", "mlp.up_proj": "mlp.c_fc_1", "mlp.down_proj": "mlp.c_proj"}
    renamed = {}
    for name, tensor in tensors.items():
        for old, new in changes.items():
            name = name.replace(old, new)
        renamed[name] = tensor
    return renamed


def config_of_exaone(config):
    """Llama's config.json with the keys of EXAONE 3.5."""
    kept = {key: value for key, value in config.items()
            if key not in ("attention_bias", "mlp_bias", "pretraining_tp")}
    for old, new in (("num_hidden_layers", "num_layers"), ("hidden_act", "activation_function"),
                     ("rms_norm_eps", "layer_norm_epsilon")):
        kept[new] = kept.pop(old)
    return {**kept, "architectures": ["ExaoneForCausalLM"], "model_type": "exaone"}


def exaone(**fields):
    return lambda: decoder(tf.LlamaConfig, rms_norm_eps=1e-5, **fields)


EXAONE = {
    "exaone 3.5 untied, 6:2 heads of 12": exaone(**sizes(72, 150, 6, 2), tie_word_embeddings=False),
    "exaone 3.5 tied, llama3 rope": exaone(**sizes(80, 131, 4, 4), tie_word_embeddings=True,
                                           rope_parameters=dict(LLAMA3_ROPE)),
    "exaone 3.5 tied, 5:1 heads of 14": exaone(**sizes(70, 99, 5, 1), tie_word_embeddings=True),
    "exaone 3.5 untied, wide heads": exaone(**sizes(60, 131, 3, 3, head_dim=32), tie_word_embeddings=False),
    "exaone 3.5 untied, linear rope": exaone(
        **sizes(66, 120, 3, 1), tie_word_embeddings=False,
        rope_parameters={"rope_type": "linear", "rope_theta": 1000000.0, "factor": 4.0}),
}

CASES = {
    "stablelm untied, 5:5 heads of 16, a quarter rotates": stablelm(**sizes(80, 131, 5, 5)),
    "stablelm tied, 4:2 heads of 20, biases of q, k, v": stablelm(
        **sizes(80, 190, 4, 2), tie_word_embeddings=True, use_qkv_bias=True, rope_parameters=partial(0.4)),
    "stablelm parallel, 6:2 heads of 12": stablelm(
        **sizes(72, 99, 6, 2), use_parallel_residual=True, rope_parameters=partial(0.5)),
    "stablelm parallel, biases, gelu": stablelm(
        **sizes(64, 120, 2, 1), use_parallel_residual=True, use_qkv_bias=True, hidden_act="gelu"),
    "stablelm untied, all of the head rotates, linear": stablelm(
        **sizes(66, 120, 3, 1), rope_parameters={**partial(1.0), "rope_type": "linear", "factor": 2.0}),
    "starcoder2 tied, 6:2 heads of 12": starcoder2(**sizes(72, 150, 6, 2)),
    "starcoder2 untied, 4:1 heads of 18, window 13": starcoder2(
        **sizes(72, 131, 4, 1), sliding_window=13, tie_word_embeddings=False),
    "starcoder2 without biases": starcoder2(**sizes(70, 99, 5, 5), use_bias=False, tie_word_embeddings=True),
    "starcoder2 exact gelu, theta 1e6": starcoder2(
        **sizes(64, 131, 4, 2), hidden_act="gelu", rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    "starcoder2 yarn, window 21": starcoder2(
        **sizes(80, 131, 4, 2), sliding_window=21, rope_parameters=dict(YARN)),
    "cohere tied, 6:2 heads of 12": cohere(**sizes(72, 150, 6, 2)),
    "cohere untied, biases, scale 0.3": cohere(
        **sizes(80, 131, 4, 4), tie_word_embeddings=False, attention_bias=True, logit_scale=0.3),
    "cohere tied, 5:1 heads of 14, scale 1": cohere(**sizes(70, 99, 5, 1), logit_scale=1.0),
    "cohere tied, theta 8e6": cohere(
        **sizes(64, 131, 2, 1), rope_parameters={"rope_type": "default", "rope_theta": 8e6}),
    "cohere tied, linear rope": cohere(
        **sizes(96, 131, 6, 3), rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}),
    "cohere2 tied, 6:2 heads of 12, window 13": cohere2(**sizes(72, 150, 6, 2), sliding_window=13),
    "cohere2 untied, 7 layers, window 11, biases": cohere2(
        **sizes(80, 131, 4, 4), sliding_window=11, num_hidden_layers=7, tie_word_embeddings=False,
        attention_bias=True),
    "cohere2 full layers first": cohere2(
        **sizes(70, 99, 5, 1), sliding_window=17, logit_scale=0.5,
        layer_types=["full_attention", "sliding_attention", "full_attention", "sliding_attention"]),
    "cohere2 without a window": cohere2(**sizes(64, 131, 2, 1), layer_types=["full_attention"] * 4),
    "cohere2 all windows, theta 5e4": cohere2(
        **sizes(96, 131, 6, 3), sliding_window=19, layer_types=["sliding_attention"] * 4,
        rope_parameters={"rope_type": "default", "rope_theta": 5e4}),
    "nemotron untied, 4:2 heads of 20": nemotron(**sizes(80, 131, 4, 2)),
    "nemotron tied, biases": nemotron(
        **sizes(72, 150, 6, 3), tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "nemotron wide heads, a quarter rotates": nemotron(
        **sizes(60, 99, 3, 1, head_dim=32), rope_parameters=partial(0.25)),
    "nemotron all of the head rotates": nemotron(**sizes(70, 99, 5, 5), rope_parameters=partial(1.0)),
    "nemotron relu, linear rope": nemotron(
        **sizes(64, 120, 2, 2), hidden_act="relu", rope_parameters={**partial(0.5), "rope_type": "linear", "factor": 2.0}),
    "phi untied, 5:5 heads of 16": phi(**sizes(80, 131, 5, 5)),
    "phi untied, 4:2 heads of 20, 0.4 rotates": phi(**sizes(80, 190, 4, 2), rope_parameters=partial(0.4)),
    "phi exact gelu": phi(**sizes(72, 99, 6, 6, hidden_act="gelu"), rope_parameters=partial(1 / 3)),
    "phi relu, theta 5e5": phi(**sizes(64, 131, 2, 2, hidden_act="relu"), rope_parameters=partial(0.5, 5e5)),
    "phi all of the head rotates": phi(**sizes(66, 120, 3, 1), rope_parameters=partial(1.0)),
    "gpt-neox parallel, 5 heads of 16": gpt_neox(80, 131, 5),
    "gpt-neox in sequence, 0.4 rotates": gpt_neox(80, 190, 4, 0.4, use_parallel_residual=False),
    "gpt-neox tied, without biases of attention": gpt_neox(
        72, 99, 6, 0.5, tie_word_embeddings=True, attention_bias=False),
    "gpt-neox tanh gelu, theta 5e4": gpt_neox(
        64, 131, 2, hidden_act="gelu_new", rope_parameters=partial(0.25, 50000.0)),
    "gpt-neox relu, all of the head rotates": gpt_neox(66, 120, 3, 1.0, hidden_act="relu"),
    "gpt-j 5 heads of 16": gptj(80, 5, 8),
    "gpt-j 4 heads of 20, inner size": gptj(80, 4, 12, n_inner=99),
    "gpt-j exact gelu": gptj(72, 6, 4, activation_function="gelu"),
    "gpt-j relu": gptj(64, 2, 16, activation_function="relu"),
    "gpt-j all of the head rotates": gptj(66, 3, 22),
    "helium untied, 5:5 heads of 16": helium(**sizes(80, 131, 5, 5, head_dim=16)),
    "helium tied, 4:2 heads of 18": helium(**sizes(72, 150, 4, 2, head_dim=18), tie_word_embeddings=True),
    "helium biases": helium(**sizes(60, 99, 3, 1, head_dim=20), attention_bias=True, mlp_bias=True),
    "helium theta 2e4": helium(
        **sizes(64, 131, 2, 1, head_dim=32), rope_parameters={"rope_type": "default", "rope_theta": 2e4}),
    "helium linear rope": helium(
        **sizes(96, 131, 6, 3, head_dim=16), rope_parameters={"rope_type": "linear", "rope_theta": 1e5, "factor": 2.0}),
    "ernie 4.5 tied, 6:2 heads of 12": ernie(**sizes(72, 150, 6, 2, head_dim=12)),
    "ernie 4.5 untied, biases": ernie(
        **sizes(80, 131, 4, 4, head_dim=20), tie_word_embeddings=False, use_bias=True),
    "ernie 4.5 wide heads": ernie(**sizes(60, 99, 3, 1, head_dim=32)),
    "ernie 4.5 theta 2e4": ernie(
        **sizes(64, 131, 2, 1, head_dim=32), rope_parameters={"rope_type": "default", "rope_theta": 2e4}),
    "ernie 4.5 yarn": ernie(**sizes(96, 131, 6, 3, head_dim=16), rope_parameters=dict(YARN)),
    "internlm3 untied, 6:2 heads of 12": internlm3(**sizes(72, 150, 6, 2, head_dim=12)),
    "internlm3 tied, biases": internlm3(
        **sizes(80, 131, 4, 4, head_dim=20), tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "internlm3 dynamic rope": internlm3(
        **sizes(60, 99, 3, 1, head_dim=32),
        rope_parameters={"rope_type": "dynamic", "rope_theta": 5e7, "factor": 6.0}),
    "internlm3 theta 2e4": internlm3(
        **sizes(64, 131, 2, 1, head_dim=32), rope_parameters={"rope_type": "default", "rope_theta": 2e4}),
    "internlm3 llama3 rope": internlm3(**sizes(96, 131, 6, 3, head_dim=16), rope_parameters=dict(LLAMA3_ROPE)),
    "hunyuan untied, 6:2 heads of 12": hunyuan(**sizes(72, 150, 6, 2, head_dim=12)),
    "hunyuan tied, alpha": hunyuan(
        **sizes(80, 131, 4, 4, head_dim=20), tie_word_embeddings=True,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 1000.0, "factor": 1.0, "beta_fast": 32,
                         "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}),
    "hunyuan biases": hunyuan(**sizes(60, 99, 3, 1, head_dim=32), attention_bias=True),
    "hunyuan theta 2e4": hunyuan(
        **sizes(64, 131, 2, 1, head_dim=32), rope_parameters={"rope_type": "default", "rope_theta": 2e4}),
    "hunyuan linear rope": hunyuan(
        **sizes(96, 131, 6, 3, head_dim=16), rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}),
    "exaone 4 untied, 6:2 heads of 12, window 13": exaone4(**sizes(72, 150, 6, 2), sliding_window=13),
    "exaone 4 tied, 7 layers, window 11": exaone4(
        **sizes(80, 131, 4, 4), sliding_window=11, num_hidden_layers=7, tie_word_embeddings=True),
    "exaone 4 without windows, llama3 rope": exaone4(
        **sizes(70, 99, 5, 1), sliding_window=None, layer_types=["full_attention"] * 4,
        rope_parameters=dict(LLAMA3_ROPE)),
    "exaone 4 full layers first": exaone4(
        **sizes(64, 131, 2, 1), sliding_window=17,
        layer_types=["full_attention", "sliding_attention", "full_attention", "sliding_attention"]),
    "exaone 4 pattern of 2": exaone4(**sizes(96, 131, 6, 3), sliding_window=19, sliding_window_pattern=2),
    **EXAONE,
}

PUBLISH = {name: (config_of_exaone, with_names_of_exaone) for name in EXAONE}


REFUSALS = {
    ("gguf", "stablelm parallel, biases, gelu"): "an activation other than silu",
    ("gguf", "stablelm untied, all of the head"): "a scaled rope",
    ("gguf", "starcoder2 exact gelu"): "an activation other than gelu_tanh",
    ("gguf", "starcoder2 yarn"): "a scaled rope",
    ("gguf", "cohere untied, biases"): "biases of the attention",
    ("gguf", "cohere tied, linear rope"): "a scaled rope",
    ("gguf", "cohere2 untied, 7 layers"): "biases of the attention",
    ("gguf", "cohere2 full layers first"): "an order of layers",
    ("gguf", "cohere2 without a window"): "an order of layers",
    ("gguf", "cohere2 all windows"): "an order of layers",
    ("gguf", "nemotron relu"): "an activation other than relu2",
    ("gguf", "phi exact gelu"): "an activation other than gelu_tanh",
    ("gguf", "phi relu"): "an activation other than gelu_tanh",
    ("gguf", "gpt-neox"): "'gpt_neox'",
    ("gguf", "gpt-j"): "'gptj'",
    ("gguf", "helium"): "'helium'",
    ("gguf", "ernie 4.5 untied, biases"): "biases of the attention",
    ("gguf", "ernie 4.5 yarn"): "a scaled rope",
    ("gguf", "hunyuan biases"): "biases of the attention",
    ("gguf", "hunyuan linear rope"): "a scaled rope",
    ("gguf", "exaone 4 untied, 6:2"): "a sliding window",
    ("gguf", "exaone 4 tied, 7 layers"): "a sliding window",
    ("gguf", "exaone 4 full layers first"): "a sliding window",
    ("gguf", "exaone 4 pattern of 2"): "a sliding window",
}


def older_cohere2(config):
    """Published models have a pattern in place of the list of types."""
    types = config.get("layer_types")
    if types and types == ["full_attention" if at % 4 == 3 else "sliding_attention" for at in range(len(types))]:
        del config["layer_types"]
        config["sliding_window_pattern"] = 4
    return config


def older_exaone4(config):
    types = config.get("layer_types")
    if types and config.get("sliding_window") and types == [
            "full_attention" if at % 4 == 3 else "sliding_attention" for at in range(len(types))]:
        config["sliding_window_pattern"] = "LLLG"
        del config["layer_types"]
    return config


def older_gpt_neox(config):
    config["rotary_emb_base"] = config.pop("rope_theta")
    config["rotary_pct"] = config.pop("partial_rotary_factor")
    return config


def older_internlm3(config):
    """The names of its own code."""
    for own, shared in (("qkv_bias", "attention_bias"), ("bias", "mlp_bias")):
        config[own] = config.pop(shared, config.get(own, False))
    return {**config, "architectures": ["InternLM3ForCausalLM"]}


OLDER = {"gpt_neox": older_gpt_neox, "cohere2": older_cohere2, "exaone4": older_exaone4, "internlm3": older_internlm3}

GOLDEN = {
    "stablelm-tiny": Golden(lambda: tiny(
        tf.StableLmConfig, use_parallel_residual=True, use_qkv_bias=True, rope_parameters=partial(0.5))),
    "starcoder2-tiny": Golden(lambda: tiny(tf.Starcoder2Config, sliding_window=14)),
    "cohere-tiny": Golden(lambda: tiny(tf.CohereConfig, logit_scale=0.25)),
    "cohere2-tiny": Golden(lambda: tiny(tf.Cohere2Config, sliding_window=12, logit_scale=0.25,
                                        num_hidden_layers=4, intermediate_size=24)),
    "nemotron-tiny": Golden(lambda: tiny(tf.NemotronConfig)),
    "phi-tiny": Golden(lambda: tiny(tf.PhiConfig, num_key_value_heads=4)),
    "gpt_neox-tiny": Golden(lambda: tf.GPTNeoXConfig(
        vocab_size=160, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=128, bos_token_id=1, eos_token_id=2, rope_parameters=partial(0.5, 20000.0))),
    "gptj-tiny": Golden(lambda: tf.GPTJConfig(
        vocab_size=160, n_positions=128, n_embd=32, n_layer=2, n_head=4, n_inner=48, rotary_dim=4, bos_token_id=1,
        eos_token_id=2)),
    "helium-tiny": Golden(lambda: tiny(tf.HeliumConfig, head_dim=8)),
    "ernie4_5-tiny": Golden(lambda: tiny(tf.Ernie4_5Config, head_dim=12)),
    "internlm3-tiny": Golden(lambda: tiny(tf.InternLM3Config, head_dim=12)),
    "hunyuan-tiny": Golden(lambda: tiny(
        tf.HunYuanDenseV1Config, head_dim=8,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 1000.0, "factor": 1.0,
                         "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0})),
    "exaone-tiny": Golden(lambda: tiny(tf.LlamaConfig, rms_norm_eps=1e-5, tie_word_embeddings=True),
                          config=config_of_exaone, publish=with_names_of_exaone),
    "exaone4-tiny": Golden(lambda: tiny(tf.Exaone4Config, sliding_window=12, num_hidden_layers=4,
                                        intermediate_size=24)),
}
