"""Random models of odd shapes, one function per case: a transformers configuration.

A module `cases_*.py` adds models. It may define
  CASES   {name: () -> configuration}, compared by compare.py and exports.py;
  INIT    {model type: (name, parameter or buffer) -> whether it filled it with random numbers};
  OLDER   {model type: config.json with older keys -> the same with this model's own older keys};
  KINDS   {model type: the class to build}, where it is not AutoModelForCausalLM;
  PUBLISH {case: (config.json -> config.json, tensors -> tensors)}, for models that transformers knows as another one;
  REFUSALS {(form, beginning of a case): words of the message}, for conversions in exports.py that are refused;
  GOLDEN  {folder: shapes.Golden}, for golden.py.
"""

import importlib
import json
import math
import pathlib
import zlib

import torch
import transformers as tf
from safetensors.torch import load_file, save_file

from shapes import LLAMA3_ROPE, ODD, YARN, decoder

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


INIT, OLDER, PUBLISH, REFUSALS, GOLDEN, SERVE = {}, {}, {}, {}, {}, {}
KINDS = {"gemma3": tf.Gemma3ForConditionalGeneration}
# Models that only transformers 5 has: their config.json has one spelling of ropes.
ONE_SPELLING = ("ministral3",)
# Norms whose scale is stored minus 1.
ZERO_CENTRED = ("gemma", "nemotron", "qwen3_next", "qwen3_5")


def seed_of(name, seed):
    """A seed that other cases do not change."""
    return seed + zlib.crc32(name.encode()) % 100000


def kind_of(config):
    """The class of a configuration's model."""
    return KINDS.get(config.model_type, tf.AutoModelForCausalLM)


def fill_vector(name, weight, model_type):
    if name.endswith("A_log"):
        weight.copy_(torch.log(1 + 7 * torch.rand_like(weight)))
    elif name.endswith("dt_bias"):
        weight.copy_(torch.log(torch.expm1(0.02 + 0.3 * torch.rand_like(weight))))
    elif name.endswith("sinks"):
        weight.copy_(torch.randn_like(weight))
    else:
        is_scale = name.endswith(("weight", ".D", "layer_scalar")) and not model_type.startswith(ZERO_CENTRED)
        weight.copy_((1.0 if is_scale else 0.0) + 0.2 * torch.randn_like(weight))


def fill_matrix(name, weight, model_type, spread):
    leaf = name.split(".")[-2] if name.endswith((".weight", ".bias")) else name.split(".")[-1]
    if "embed" in name or leaf in ("wte", "wpe", "word_embeddings"):
        weight.copy_(0.3 * torch.randn_like(weight))
    elif "norm" in leaf:  # one scale for each head
        weight.copy_(1 + 0.2 * torch.randn_like(weight))
    elif name.endswith("bias"):  # of experts
        weight.copy_(0.2 * torch.randn_like(weight))
    elif "conv" in leaf:
        weight.copy_(torch.randn_like(weight) / math.sqrt(weight.shape[-1]))
    else:
        # GPT-2 stores [in, out]; experts are [expert, out, in].
        inputs = weight.shape[0] if model_type == "gpt2" else weight.shape[-1]
        # Clear leads of the chosen experts.
        lead = 2 if leaf in ("router", "gate") else 1
        weight.copy_(torch.randn_like(weight) * lead * spread * 1.3 / math.sqrt(inputs))


def build(config, seed, spread=1.0):
    """A model whose weights are large enough that every part affects the logits."""
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    torch.manual_seed(seed)
    kind = kind_of(config)
    model = kind.from_config(config, dtype=torch.float32) if kind is tf.AutoModelForCausalLM else kind(config)
    model = model.float()
    model_type = (getattr(config, "text_config", None) or config).model_type
    fill = INIT.get(config.model_type, lambda name, weight: False)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if fill(name, weight) or ("vision" in name and weight.dim() >= 2):
                continue
            if weight.dim() < 2:
                fill_vector(name, weight, model_type)
            else:
                fill_matrix(name, weight, model_type, spread)
        for name, buffer in model.named_buffers():
            if not fill(name, buffer) and name.endswith("e_score_correction_bias"):
                buffer.copy_(0.1 * torch.randn_like(buffer))
    return model.eval()


def save(name, model, folder, max_shard_size):
    """Saves a model as it is published; returns the config.json as saved and with older keys."""
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    config = json.loads((folder / "config.json").read_text())
    publish_config, publish_tensors = PUBLISH.get(name, (lambda given: given, None))
    if publish_tensors is not None:
        for path in folder.glob("*.safetensors"):
            save_file(publish_tensors(load_file(path)), path, metadata={"format": "pt"})
        index = folder / "model.safetensors.index.json"
        if index.exists():
            content = json.loads(index.read_text())
            content["weight_map"] = publish_tensors(content["weight_map"])
            index.write_text(json.dumps(content))
    return publish_config(config), publish_config(older(config))


def older(config):
    """config.json as transformers 4 writes it, with the keys of published models."""
    out = dict(config)
    if "text_config" in out:
        out["text_config"] = older(out["text_config"])
    if "dtype" in out:
        out["torch_dtype"] = out.pop("dtype")
    out.pop("pad_token_id", None)
    rope = None if out.get("model_type") in ONE_SPELLING else out.pop("rope_parameters", None)
    if rope and "full_attention" in rope:
        full, sliding = rope["full_attention"], rope.get("sliding_attention", {})
        out["rope_local_base_freq"] = sliding.get("rope_theta", 10000.0)
        rope = full
    if rope:
        rope = dict(rope)
        out["rope_theta"] = rope.pop("rope_theta")
        if "partial_rotary_factor" in rope:
            out["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        out["rope_scaling"] = rope if rope.get("rope_type") != "default" else None
    types = out.get("layer_types")
    if types and out["model_type"] == "gemma2":
        out.pop("layer_types")
    if types and out["model_type"] == "gemma3_text" and types[:6].count("full_attention") == 1 and len(types) > 5:
        out.pop("layer_types")
        out["sliding_window_pattern"] = 6
    if types and out["model_type"] in ("qwen2", "qwen3", "llama", "mistral"):
        out.pop("layer_types")
    return OLDER.get(out.get("model_type"), lambda config: config)(out)


for path in sorted(pathlib.Path(__file__).parent.glob("cases_*.py")):
    module = importlib.import_module(path.stem)
    for table, part in ((CASES, "CASES"), (INIT, "INIT"), (OLDER, "OLDER"), (KINDS, "KINDS"), (PUBLISH, "PUBLISH"),
                        (REFUSALS, "REFUSALS"), (GOLDEN, "GOLDEN"), (SERVE, "SERVE")):
        entries = getattr(module, part, {})
        assert not table.keys() & entries.keys(), f"{path.name} names {table.keys() & entries.keys()} again"
        table.update(entries)
