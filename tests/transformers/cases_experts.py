"""Mixtures of experts: Qwen, Mixtral, OLMoE, GLM-4.5, ERNIE 4.5, MiniMax-M2, Granite."""

import torch
import transformers as tf

from shapes import YARN, Golden, decoder, split_granite, tiny


def qwen3_moe(**fields):
    return decoder(tf.Qwen3MoeConfig, **{"num_key_value_heads": 2, "head_dim": 16, "num_experts": 12,
                                         "num_experts_per_tok": 3, **fields})


def qwen2_moe(**fields):
    return decoder(tf.Qwen2MoeConfig, **{"num_key_value_heads": 2, "num_experts": 10, "num_experts_per_tok": 2,
                                         **fields})


def mixtral(**fields):
    return decoder(tf.MixtralConfig, **{"num_key_value_heads": 2, "num_local_experts": 8, **fields})


def olmoe(**fields):
    return decoder(tf.OlmoeConfig, **{"num_experts": 9, "num_experts_per_tok": 3, **fields})


def glm4_moe(**fields):
    return decoder(tf.Glm4MoeConfig, **{"num_key_value_heads": 2, "n_routed_experts": 12, "num_experts_per_tok": 3,
                                        "use_qk_norm": True, **fields})


def ernie(**fields):
    return decoder(tf.Ernie4_5_MoeConfig, **{"num_key_value_heads": 2, "moe_num_experts": 10, "moe_k": 3,
                                             "moe_intermediate_size": 33, **fields})


def minimax(**fields):
    return decoder(tf.MiniMaxM2Config, **{"num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 11,
                                          "num_experts_per_tok": 4, **fields})


def granite(**fields):
    return decoder(tf.GraniteMoeConfig, **{"num_key_value_heads": 2, "num_local_experts": 7, "num_experts_per_tok": 2,
                                           **fields})


def rope(theta, **keys):
    return {"rope_type": "default", "rope_theta": theta, **keys}


CASES = {
    "qwen3-moe, 3 of 12, normalised": lambda: qwen3_moe(
        hidden_size=68, intermediate_size=99, moe_intermediate_size=37, num_attention_heads=4, norm_topk_prob=True),
    "qwen3-moe, every second layer, not normalised": lambda: qwen3_moe(
        hidden_size=80, intermediate_size=131, moe_intermediate_size=48, num_attention_heads=6,
        decoder_sparse_step=2),
    "qwen3-moe, layers without experts, tied": lambda: qwen3_moe(
        hidden_size=64, intermediate_size=90, moe_intermediate_size=31, num_attention_heads=4,
        mlp_only_layers=[1, 3], tie_word_embeddings=True, norm_topk_prob=True),
    "qwen3-moe, window 17, biases": lambda: qwen3_moe(
        hidden_size=72, intermediate_size=77, moe_intermediate_size=40, num_attention_heads=4, attention_bias=True,
        use_sliding_window=True, sliding_window=17, num_experts=20, num_experts_per_tok=8, norm_topk_prob=True),
    "qwen3-moe, all experts, yarn": lambda: qwen3_moe(
        hidden_size=60, intermediate_size=64, moe_intermediate_size=17, num_attention_heads=2, num_experts=5,
        num_experts_per_tok=5, rope_parameters=dict(YARN)),

    "qwen2-moe, shared expert": lambda: qwen2_moe(
        hidden_size=64, intermediate_size=99, moe_intermediate_size=35, shared_expert_intermediate_size=70,
        num_attention_heads=4),
    "qwen2-moe, normalised, tied": lambda: qwen2_moe(
        hidden_size=72, intermediate_size=90, moe_intermediate_size=40, shared_expert_intermediate_size=41,
        num_attention_heads=6, norm_topk_prob=True, tie_word_embeddings=True),
    "qwen2-moe, windows on layers 0 and 2": lambda: qwen2_moe(
        hidden_size=56, intermediate_size=77, moe_intermediate_size=32, shared_expert_intermediate_size=33,
        num_attention_heads=4, use_sliding_window=True, sliding_window=15),
    "qwen2-moe, every second layer, no biases": lambda: qwen2_moe(
        hidden_size=80, intermediate_size=131, moe_intermediate_size=25, shared_expert_intermediate_size=64,
        num_attention_heads=4, decoder_sparse_step=2, qkv_bias=False),
    "qwen2-moe, one expert of 10": lambda: qwen2_moe(
        hidden_size=60, intermediate_size=66, moe_intermediate_size=50, shared_expert_intermediate_size=20,
        num_attention_heads=6, num_experts_per_tok=1, mlp_only_layers=[0]),

    "mixtral, 2 of 8": lambda: mixtral(hidden_size=72, intermediate_size=61, num_attention_heads=6),
    "mixtral, 3 of 5, tied": lambda: mixtral(
        hidden_size=64, intermediate_size=44, num_attention_heads=4, num_local_experts=5, num_experts_per_tok=3,
        tie_word_embeddings=True),
    "mixtral, window 19": lambda: mixtral(
        hidden_size=60, intermediate_size=53, num_attention_heads=6, sliding_window=19, head_dim=14),
    "mixtral, one of 4": lambda: mixtral(
        hidden_size=56, intermediate_size=40, num_attention_heads=4, num_local_experts=4, num_experts_per_tok=1),
    "mixtral, theta 10000, linear rope": lambda: mixtral(
        hidden_size=80, intermediate_size=48, num_attention_heads=4,
        rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}),

    "olmoe, 3 of 9": lambda: olmoe(hidden_size=72, intermediate_size=41, num_attention_heads=6),
    "olmoe, normalised, 6:2 heads": lambda: olmoe(
        hidden_size=60, intermediate_size=36, num_attention_heads=6, num_key_value_heads=2, norm_topk_prob=True),
    "olmoe, tied, biases": lambda: olmoe(
        hidden_size=64, intermediate_size=32, num_attention_heads=4, tie_word_embeddings=True, attention_bias=True),
    "olmoe, 8 of 16": lambda: olmoe(
        hidden_size=56, intermediate_size=25, num_attention_heads=4, num_experts=16, num_experts_per_tok=8),
    "olmoe, theta 500000": lambda: olmoe(
        hidden_size=80, intermediate_size=50, num_attention_heads=4, num_key_value_heads=1,
        rope_parameters=rope(500000.0)),

    "glm-4.5, one group": lambda: glm4_moe(
        hidden_size=64, intermediate_size=99, moe_intermediate_size=33, num_attention_heads=4),
    "glm-4.5, 2 of 3 groups, scaled": lambda: glm4_moe(
        hidden_size=72, intermediate_size=90, moe_intermediate_size=40, num_attention_heads=6, n_group=3,
        topk_group=2, routed_scaling_factor=2.5, attention_bias=True),
    "glm-4.5, no q and k norms, not normalised": lambda: glm4_moe(
        hidden_size=80, intermediate_size=77, moe_intermediate_size=28, num_attention_heads=4, use_qk_norm=False,
        norm_topk_prob=False, n_group=2, topk_group=1),
    "glm-4.5, two shared experts, two dense layers": lambda: glm4_moe(
        hidden_size=96, intermediate_size=131, moe_intermediate_size=24, num_attention_heads=4, n_shared_experts=2,
        first_k_dense_replace=2, tie_word_embeddings=True),
    "glm-4.5, experts in all layers": lambda: glm4_moe(
        hidden_size=64, intermediate_size=66, moe_intermediate_size=32, num_attention_heads=4, head_dim=24,
        first_k_dense_replace=0, n_group=4, topk_group=2),

    "ernie-4.5-moe, 3 of 10": lambda: ernie(hidden_size=64, intermediate_size=99, num_attention_heads=4),
    "ernie-4.5-moe, untied, one shared expert": lambda: ernie(
        hidden_size=72, intermediate_size=90, num_attention_heads=6, moe_num_shared_experts=1,
        tie_word_embeddings=False),
    "ernie-4.5-moe, no shared expert": lambda: ernie(
        hidden_size=80, intermediate_size=77, num_attention_heads=4, moe_num_shared_experts=0),
    "ernie-4.5-moe, every second layer": lambda: ernie(
        hidden_size=56, intermediate_size=66, num_attention_heads=4, moe_layer_interval=2),
    "ernie-4.5-moe, layers 1 to 2": lambda: ernie(
        hidden_size=60, intermediate_size=131, num_attention_heads=6, moe_layer_start_index=1, moe_layer_end_index=2),

    "minimax-m2, all of a head rotates": lambda: minimax(
        hidden_size=64, intermediate_size=37, num_attention_heads=4),
    "minimax-m2, half rotates": lambda: minimax(
        hidden_size=72, intermediate_size=40, num_attention_heads=6,
        rope_parameters=rope(5000000.0, partial_rotary_factor=0.5)),
    "minimax-m2, tied": lambda: minimax(
        hidden_size=56, intermediate_size=32, num_attention_heads=4, tie_word_embeddings=True),
    "minimax-m2, one expert": lambda: minimax(
        hidden_size=60, intermediate_size=50, num_attention_heads=2, num_experts_per_tok=1),
    "minimax-m2, all experts": lambda: minimax(
        hidden_size=48, intermediate_size=25, num_attention_heads=4, num_local_experts=6, num_experts_per_tok=6),

    "granite-moe, multipliers": lambda: granite(
        hidden_size=72, intermediate_size=45, num_attention_heads=6, embedding_multiplier=12.0,
        residual_multiplier=0.22, attention_multiplier=0.07, logits_scaling=3.0),
    "granite-moe, tied": lambda: granite(
        hidden_size=64, intermediate_size=33, num_attention_heads=4, attention_multiplier=0.25,
        tie_word_embeddings=True),
    "granite-moe, 4 of 8": lambda: granite(
        hidden_size=56, intermediate_size=40, num_attention_heads=4, num_local_experts=8, num_experts_per_tok=4,
        attention_multiplier=0.3, residual_multiplier=0.5),
    "granite-moe, biases": lambda: granite(
        hidden_size=60, intermediate_size=28, num_attention_heads=6, attention_bias=True, attention_multiplier=0.3),
    "granite-moe, one expert": lambda: granite(
        hidden_size=80, intermediate_size=50, num_attention_heads=4, num_experts_per_tok=1,
        attention_multiplier=0.2, logits_scaling=2.0),
}


def fill_choice_bias(name, weight):
    """Biases of the choice as large as the differences of scores."""
    if not name.endswith("e_score_correction_bias"):
        return False
    weight.copy_(0.1 * torch.randn_like(weight))
    return True


REFUSALS = {
    ("gguf", "qwen3-moe, every second layer"): "layers without experts",
    ("gguf", "qwen3-moe, layers without experts"): "layers without experts",
    ("gguf", "qwen3-moe, window 17, biases"): "biases of the attention",
    ("gguf", "qwen3-moe, all experts, yarn"): "'norm_topk_prob': false",
    ("gguf", "mixtral, window 19"): "a sliding window",
    ("gguf", "olmoe, normalised"): "'norm_topk_prob': true",
    ("gguf", "olmoe, tied, biases"): "biases of the attention",
}
INIT = {"ernie4_5_moe": fill_choice_bias}  # elsewhere they are buffers


def golden(kind, listed=lambda tensors: tensors, spread=0.6, **fields):
    return Golden(lambda: tiny(kind, **{"num_experts_per_tok": 2, **fields}), listed=listed, spread=spread)


GOLDEN = {
    "mixtral-tiny": golden(tf.MixtralConfig, num_local_experts=4, intermediate_size=16, sliding_window=14),
    "olmoe-tiny": golden(tf.OlmoeConfig, num_experts=4, intermediate_size=16, norm_topk_prob=True),
    "qwen3_moe-tiny": golden(tf.Qwen3MoeConfig, num_experts=6, moe_intermediate_size=12, head_dim=8,
                             norm_topk_prob=True, mlp_only_layers=[0]),
    "qwen2_moe-tiny": golden(tf.Qwen2MoeConfig, num_experts=4, moe_intermediate_size=16,
                             shared_expert_intermediate_size=20),
    "glm4_moe-tiny": golden(tf.Glm4MoeConfig, n_routed_experts=8, moe_intermediate_size=12, n_group=2, topk_group=1,
                            use_qk_norm=True, attention_bias=True, routed_scaling_factor=1.5),
    "ernie4_5_moe-tiny": golden(tf.Ernie4_5_MoeConfig, moe_num_experts=4, moe_k=2, moe_intermediate_size=16,
                                moe_num_shared_experts=1),
    "minimax_m2-tiny": golden(tf.MiniMaxM2Config, num_local_experts=4, intermediate_size=16, head_dim=8,
                              rope_parameters=rope(10000.0, partial_rotary_factor=0.5)),
    "granitemoe-tiny": golden(tf.GraniteMoeConfig, split_granite, num_local_experts=4, intermediate_size=16,
                              embedding_multiplier=6.0, residual_multiplier=0.4, attention_multiplier=0.25,
                              logits_scaling=2.0),
}
