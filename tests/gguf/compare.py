"""Compares GGUF files of `tandem convert` with the expectations of the `gguf` package.

`compare.py BINARY [NAME]...`; README.md lists the checks.
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import gguf
import numpy as np
from gguf import quants

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma": "gemma",
                 "gemma2": "gemma2", "gemma3_text": "gemma3", "gpt2": "gpt2"}
REFUSED = {"minigpt-tiny", "gemma2-tiny-query-scalar"}
TYPES = {"f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16,
         "bf16": gguf.GGMLQuantizationType.BF16, "q8_0": gguf.GGMLQuantizationType.Q8_0,
         "q4_0": gguf.GGMLQuantizationType.Q4_0}
FILE_TYPES = {"f32": 0, "f16": 1, "bf16": 32, "q8_0": 7, "q4_0": 2}
FAULTS = []


def check(holds, what):
    if not holds:
        FAULTS.append(what)
        print(f"  WRONG: {what}")


def read_safetensors(path):
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = data[8 + size + begin:8 + size + end]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        elif entry["dtype"] == "F32":
            values = np.frombuffer(raw, np.float32)
        else:  # masks are not weights
            continue
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def read_model(folder):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update(read_safetensors(path))
    return json.loads((folder / "config.json").read_text()), tensors


def of(config, *names, fallback=None):
    for name in names:
        if config.get(name) is not None:
            return config[name]
    return fallback


def pairs(weights, heads):
    return (weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:]).swapaxes(1, 2)
            .reshape(weights.shape))


def expected_tensors(config, tensors, arch, blocks):
    """The file's expected tensors in f32, under the names of the package's table."""
    names = gguf.get_tensor_name_map(next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == arch), blocks)
    out = {}
    for name, values in tensors.items():
        if name.endswith((".attn.bias", ".masked_bias")):
            continue
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if new is None:
            check(False, f"the package knows no place for {name}")
            continue
        if arch == "llama" and ".q_proj." in name:
            values = pairs(values, config["num_attention_heads"])
        if arch == "llama" and ".k_proj." in name:
            values = pairs(values, config["num_key_value_heads"])
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            values = values + np.float32(1)
        if arch == "gpt2" and values.ndim == 2 and ".c_" in name:
            values = values.T
        out[new] = np.ascontiguousarray(values, dtype=np.float32)
    return out


def type_of(name, values, dtype, makes_logits):
    if values.ndim < 2 or name == "position_embd.weight":
        return gguf.GGMLQuantizationType.F32
    if dtype in ("q8_0", "q4_0") and values.shape[-1] % 32:
        return gguf.GGMLQuantizationType.F32
    if dtype == "q4_0" and name == makes_logits:
        return gguf.GGMLQuantizationType.Q8_0
    return TYPES[dtype]


def check_tensors(reader, expected, dtype):
    is_there = {tensor.name: tensor for tensor in reader.tensors}
    makes_logits = "output.weight" if "output.weight" in expected else "token_embd.weight"
    check(set(is_there) - {"rope_freqs.weight"} == set(expected),
          f"tensors: {sorted(set(is_there) ^ set(expected))}")
    worst = 0
    for name, values in expected.items():
        tensor = is_there.get(name)
        if tensor is None:
            continue
        wanted = type_of(name, values, dtype, makes_logits)
        check(tensor.tensor_type == wanted, f"{name}: is {tensor.tensor_type.name}, not {wanted.name}")
        check(list(reversed(tensor.shape.tolist())) == list(values.shape), f"{name}: shape {tensor.shape}")
        bytes_ = quants.quantize(values, wanted)
        check(np.array_equal(np.asarray(tensor.data).view(np.uint8).ravel(), bytes_.view(np.uint8).ravel()),
              f"{name}: {wanted.name} has other bytes")
        decoded = quants.dequantize(tensor.data, wanted).reshape(values.shape)
        worst = max(worst, float(np.abs(decoded - values).max()))
    return worst


def check_keys(reader, config, arch, blocks, dtype):
    keys = gguf.Keys
    known = {value.replace("{arch}", arch) for group in vars(keys).values() if isinstance(group, type)
             for value in vars(group).values() if isinstance(value, str)}
    for name in reader.fields:
        check(name.startswith("GGUF.") or name in known, f"the package knows no key {name}")

    def value(key):
        field = reader.get_field(key.format(arch=arch))
        return None if field is None else field.contents()

    heads = of(config, "num_attention_heads", "n_head")
    width = of(config, "hidden_size", "n_embd")
    wanted = {
        keys.General.ARCHITECTURE: arch,
        keys.General.ALIGNMENT: 32,
        keys.General.FILE_TYPE: FILE_TYPES[dtype],
        keys.LLM.CONTEXT_LENGTH: of(config, "max_position_embeddings", "n_positions"),
        keys.LLM.EMBEDDING_LENGTH: width,
        keys.LLM.BLOCK_COUNT: blocks,
        keys.LLM.FEED_FORWARD_LENGTH: of(config, "intermediate_size", "n_inner", fallback=4 * width),
        keys.LLM.VOCAB_SIZE: config["vocab_size"],
        keys.Attention.HEAD_COUNT: heads,
        keys.Attention.HEAD_COUNT_KV: of(config, "num_key_value_heads", fallback=heads),
        keys.Tokenizer.MODEL: "no_vocab",
    }
    floats = {}
    if arch == "gpt2":
        floats[keys.Attention.LAYERNORM_EPS] = config["layer_norm_epsilon"]
    else:
        wanted[keys.Attention.KEY_LENGTH] = of(config, "head_dim", fallback=width // heads)
        wanted[keys.Attention.VALUE_LENGTH] = of(config, "head_dim", fallback=width // heads)
        floats[keys.Attention.LAYERNORM_RMS_EPS] = config["rms_norm_eps"]
        floats[keys.Rope.FREQ_BASE] = config["rope_theta"]
    if arch in ("gemma2", "gemma3") or config["model_type"] == "mistral":
        wanted[keys.Attention.SLIDING_WINDOW] = config["sliding_window"]
    if arch == "gemma2":
        floats[keys.LLM.ATTN_LOGIT_SOFTCAPPING] = config["attn_logit_softcapping"]
        floats[keys.LLM.FINAL_LOGIT_SOFTCAPPING] = config["final_logit_softcapping"]
    if arch == "gemma3":
        wanted[keys.Rope.SCALING_TYPE] = "linear"
        floats[keys.Rope.SCALING_FACTOR] = config["rope_scaling"]["factor"]
    for key, expected in wanted.items():
        check(value(key) == expected, f"{key}: {value(key)}, not {expected}")
    for key, expected in floats.items():
        is_ = value(key)
        check(is_ is not None and np.float32(is_) == np.float32(expected), f"{key}: {is_}, not {expected}")


def main():
    binary, only = sys.argv[1], sys.argv[2:]
    compared = 0
    for folder in sorted(GOLDEN.iterdir()):
        if not (folder / "config.json").exists() or folder.name in REFUSED:
            continue
        if only and not any(name in folder.name for name in only):
            continue
        config, tensors = read_model(folder)
        arch = ARCHITECTURES.get(config["model_type"])
        if arch is None:
            continue
        blocks = of(config, "num_hidden_layers", "n_layer")
        for dtype in TYPES:
            with tempfile.TemporaryDirectory() as work:
                path = pathlib.Path(work) / "model.gguf"
                subprocess.run([binary, "convert", str(folder), str(path), "--to", "gguf", "--dtype", dtype],
                               check=True, capture_output=True)
                reader = gguf.GGUFReader(path)
                check_keys(reader, config, arch, blocks, dtype)
                worst = check_tensors(reader, expected_tensors(config, tensors, arch, blocks), dtype)
                del reader
            print(f"{folder.name} {dtype}: largest error {worst:.3g}")
            compared += 1
    print(f"{compared} files compared, {len(FAULTS)} faults")
    return 1 if FAULTS or compared == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
