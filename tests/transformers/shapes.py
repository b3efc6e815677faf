"""Sizes that modules of cases share."""

import dataclasses
from typing import Callable

# Sizes that are not multiples of a vector, a block or 16; the context is longer than every window.
ODD = {"vocab_size": 1003, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2,
       "pad_token_id": None}
# A golden folder of these sizes with two or three layers is below 400 KB.
TINY = {"vocab_size": 160, "max_position_embeddings": 128, "hidden_size": 32, "intermediate_size": 40,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1,
        "eos_token_id": 2, "pad_token_id": None}
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0, "original_max_position_embeddings": 64}


def decoder(kind, **fields):
    """A configuration of odd sizes."""
    return kind(**{**ODD, "num_hidden_layers": 4, **fields})


def tiny(kind, **fields):
    """A configuration for a golden folder."""
    return kind(**{**TINY, **fields})


def split_granite(tensors):
    """Granite's stacked experts one by one."""
    out = {}
    for name, tensor in tensors.items():
        prefix, _, leaf = name.rpartition(".block_sparse_moe.")
        if leaf not in ("input_linear.weight", "output_linear.weight"):
            out[name] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            each = f"{prefix}.block_sparse_moe.experts.{expert}."
            if leaf.startswith("output"):
                out[each + "down_proj.weight"] = matrix
            else:
                out[each + "gate_proj.weight"], out[each + "up_proj.weight"] = matrix.chunk(2)
    return out


@dataclasses.dataclass
class Golden:
    """A golden folder: its configuration, and how its files differ from those of transformers."""

    make: Callable  # -> the configuration
    storage: str = "bfloat16"  # torch dtype of the stored weights; values are rounded to it first
    # config.json with older keys -> config.json as published
    config: Callable = lambda json: json
    # tensors by the names of transformers -> tensors by the names of published checkpoints
    publish: Callable = lambda tensors: tensors
    # published tensors -> tensors by the names that a family lists, such as one for each expert
    listed: Callable = lambda tensors: tensors
    # whether AdamW's decay applies to the listed tensor; no gradient reaches the biases of choices
    decays: Callable = lambda name, tensor: tensor.dim() >= 2 and not name.endswith("e_score_correction_bias")
    # factor of all random matrices: smaller ones make a model that follows rounding less
    spread: float = 1.0
    prompts: tuple = (45, 21)  # tokens
