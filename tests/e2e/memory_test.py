#!/usr/bin/env python3
"""Compares the memory planned by `tandem plan` with the memory used by `tandem train`.

`memory_test.py BINARY [unittest arguments]`. It makes models with random weights in the shapes of
real ones. `memory_test.py BINARY --table` prints all cases with their numbers, including those that
take minutes.
"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import harness

MIB = 1 << 20


def bf16_noise(elements):
    """Values of ±[2^-7, 2^-6)."""
    sign_and_exponent = bytes(0x3C if byte < 128 else 0xBC for byte in range(256))
    data = bytearray(2 * elements)
    data[0::2] = os.urandom(elements)
    data[1::2] = os.urandom(elements).translate(sign_and_exponent)
    return bytes(data)


def write_model(folder, config, shapes):
    """Writes a Hugging Face directory."""
    header, at = {}, 0
    for name, shape in shapes.items():
        elements = 1
        for length in shape:
            elements *= length
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * elements]}
        at += 2 * elements
    text = json.dumps(header).encode()
    folder.mkdir()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for entry in header.values():
            begin, end = entry["data_offsets"]
            file.write(bf16_noise((end - begin) // 2))
    (folder / "config.json").write_text(json.dumps(config))


def decoder_shapes(layers, width, ffn, q_width, kv_width, vocab, norms):
    shapes = {"model.embed_tokens.weight": [vocab, width], "model.norm.weight": [width]}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for name, shape in {
                "self_attn.q_proj": [q_width, width], "self_attn.k_proj": [kv_width, width],
                "self_attn.v_proj": [kv_width, width], "self_attn.o_proj": [width, q_width],
                "mlp.gate_proj": [ffn, width], "mlp.up_proj": [ffn, width],
                "mlp.down_proj": [width, ffn]}.items():
            shapes[prefix + name + ".weight"] = shape
        for norm in norms:
            shapes[prefix + norm + ".weight"] = [width]
    return shapes


def write_llama(folder, layers=8, width=512, ffn=1408, vocab=32000):
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab,
              "hidden_size": width, "intermediate_size": ffn, "num_hidden_layers": layers,
              "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": width // 8,
              "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
              "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16"}
    write_model(folder, config,
                decoder_shapes(layers, width, ffn, width, width // 2, vocab,
                               ["input_layernorm", "post_attention_layernorm"]))


def write_gemma2(folder, layers, width, vocab):
    head = 64
    heads = width // head
    config = {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "vocab_size": vocab,
              "hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers,
              "num_attention_heads": heads, "num_key_value_heads": heads // 2, "head_dim": head,
              "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 32768,
              "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "query_pre_attn_scalar": head,
              "sliding_window": 4096, "attn_logit_softcapping": 50.0,
              "final_logit_softcapping": 30.0, "bos_token_id": 2, "eos_token_id": 1,
              "pad_token_id": 0, "torch_dtype": "bfloat16"}
    write_model(folder, config,
                decoder_shapes(layers, width, 4 * width, heads * head, heads * head // 2, vocab,
                               ["input_layernorm", "post_attention_layernorm",
                                "pre_feedforward_layernorm", "post_feedforward_layernorm"]))


MINIGPT = ["model.family=minigpt", "model.n_layers=4", "model.hidden_dim=256", "model.n_heads=8",
           "model.vocab_size=50257", "data.max_target_length=256", "per_device_batch_size=16",
           "model.dropout=0.1"]
LORA = ["lora.enable=true", "lora.rank=16", "data.max_target_length=512",
        "per_device_batch_size=4"]
LONG = ["lora.enable=true", "lora.rank=8", "data.max_target_length=32768",
        "per_device_batch_size=1", "data.packing=concat_then_split", "train.steps=1"]


class Folder:
    """A folder with models, a tokenizer and a text, and runs of them."""

    def __init__(self, path):
        self.path = path
        # Enough words to fill a row of 32,768 tokens.
        words = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in ("", "n", "r", "st")]
        text = " ".join(words[i * i % 7919 % len(words)] for i in range(60000))
        (path / "text.txt").write_text(text)
        self.tandem("tokenizer", "train", path / "text.txt", "--vocab-size", 300,
                    "--special", "<|endoftext|>", "--out", path / "tokenizer.json")
        self.runs = 0

    def tandem(self, *arguments):
        """(standard output, peak memory of the process)"""
        out = self.path / "out.txt"
        with open(out, "wb") as file, open(self.path / "err.txt", "wb") as errors:
            process = subprocess.Popen(
                [harness.BINARY, *map(str, arguments)], stdout=file, stderr=errors,
                env={**os.environ, "XDG_CACHE_HOME": str(self.path / "cache")})
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise AssertionError(out.read_text() + (self.path / "err.txt").read_text())
        return out.read_text(), usage.ru_maxrss * 1024

    def model(self, name, write, **shape):
        folder = self.path / name
        if not folder.exists():
            write(folder, **shape)
        return [f"load_parameters_path={folder}", f"model.tokenizer_path={self.path}"]

    def compare(self, words):
        """(the plan, the peak of a run of two steps)"""
        self.runs += 1
        spec = self.path / "spec.yaml"
        spec.write_text(
            f"base_output_directory: {self.path}\n"
            f"data: {{train: {self.path}/text.txt, eos_token: \"<|endoftext|>\"}}\n"
            "train: {steps: 2}\n")
        if not any(word.startswith("load_parameters_path") for word in words):
            words = [*words, f"model.tokenizer_path={self.path}/tokenizer.json"]
        words = [*words, f"run_name=run{self.runs}", "resources.threads=2"]
        plan = json.loads(self.tandem("plan", spec, *words, "--json", "--memory", "64G")[0])
        _, peak = self.tandem("train", spec, *words)
        return plan, peak


def cases(folder):
    llama = folder.model("llama", write_llama)
    yield "miniGPT, all weights", MINIGPT
    yield "miniGPT, 8-bit moments", [*MINIGPT, "train.optimizer.state=8bit"]
    yield "llama, adapters", [*llama, *LORA]
    yield "llama, adapters beside int8", [*llama, *LORA, "lora.base_dtype=int8"]
    yield "llama, adapters, remat full", [*llama, *LORA, "train.remat=full"]


def long_cases(folder):
    small = folder.model("gemma2", write_gemma2, layers=4, width=256, vocab=1024)
    large = folder.model("gemma2-256k", write_gemma2, layers=4, width=256, vocab=256000)
    yield "Gemma 2, 32K, adapters", [*small, *LONG]
    yield "… in chunks of 4,096", [*small, *LONG, "train.seq_chunk=4096"]
    yield "… and remat full", [*small, *LONG, "train.seq_chunk=4096", "train.remat=full"]
    yield "… vocabulary of 256,000", [*large, *LONG, "train.seq_chunk=4096", "train.remat=full"]


class Memory(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.folder = Folder(pathlib.Path(directory.name))

    def check(self, name, words):
        with self.subTest(name):
            plan, peak = self.folder.compare(words)
            self.assertLess(abs(peak / plan["total_bytes"] - 1), 0.1,
                            f"{name}: peak {peak / MIB:.0f} MiB, planned "
                            f"{plan['total_bytes'] / MIB:.0f} MiB: {plan['bytes']}")

    def test_a_run_takes_what_the_plan_says(self):
        for name, words in cases(self.folder):
            self.check(name, words)

    def test_a_row_of_32k_tokens_takes_what_the_plan_says(self):
        model = self.folder.model("gemma2", write_gemma2, layers=4, width=256, vocab=1024)
        self.check("32K", [*model, *LONG, "train.seq_chunk=4096"])


def print_table():
    with tempfile.TemporaryDirectory() as directory:
        folder = Folder(pathlib.Path(directory))
        for make in (cases, long_cases):
            for name, words in make(folder):
                plan, peak = folder.compare(words)
                planned = plan["total_bytes"]
                print(f"| {name} | {planned / MIB:.0f} | {peak / MIB:.0f} | "
                      f"{100 * (peak / planned - 1):+.1f} % |", flush=True)
                print("   ", {k: round(v / MIB, 1) for k, v in plan["bytes"].items()}, flush=True)


if __name__ == "__main__":
    if sys.argv[2:] == ["--table"]:
        harness.BINARY = sys.argv[1]
        print_table()
    else:
        harness.main()
