"""`exports.py TANDEM SEED [NAME]...`: see README.md. `run --exports` starts it, with torch and
transformers.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

import torch
import transformers as tf
from transformers.utils import logging

import cases

PROMPT_TOKENS = 60
MAXTEXT = ("llama", "qwen3", "gemma2", "gemma3_text")
# Chains of conversions that end in a Hugging Face directory; every value survives.
CHAINS = {
    "hf": [["--to", "hf"]],
    "native-params": [["--to", "native-params"]],
    "native, hf": [["--to", "native"], ["--to", "hf"]],
    "maxtext scanned, hf": [["--to", "maxtext", "--scan", "--dtype", "f32"], ["--to", "hf"]],
    "maxtext unrolled, hf": [["--to", "maxtext", "--unroll", "--dtype", "f32"], ["--to", "hf"]],
}
# Through a GGUF file of this type. The result equals the original with matrices rounded to this
# type, by torch or by the blocks' definition; logits agree bit for bit.
GGUF_TYPES = ("f32", "f16", "bf16", "q8_0")
# Messages for models that MaxText's tree or GGUF's readers cannot hold.
REFUSALS = {
    ("maxtext", "gemma-3 text, full layers first, scaled rope"): "in MaxText's order of layers it is the other way",
    ("maxtext", "llama tied, 5:1 heads of 14, biases"): "the parameter tree has no counterpart for",
    ("gguf", "qwen2 untied, window 19 from layer 2"): "a sliding window, which architecture 'qwen2' of GGUF cannot",
    ("gguf", "gemma-2, 4:2 heads of 26, caps, window 13"): "'query_pre_attn_scalar' other than 26, which",
    ("gguf", "gemma-2 without caps"): "no 'attn_logit_softcapping', which architecture 'gemma2' of GGUF cannot",
    ("gguf", "gemma-3 text, 4:1 heads of 24, 7 layers, window 11"): "'query_pre_attn_scalar' other than 24, which",
}
BLOCK = 32  # numbers
CHAINS.update({f"gguf {kind}, hf": [["--to", "gguf", "--dtype", kind], ["--to", "hf", "--dtype", "f32"]]
               for kind in GGUF_TYPES})


class Refused(RuntimeError):
    pass


def convert(binary, source, folder, chain):
    for number, flags in enumerate(chain):
        target = folder / (f"step-{number}.gguf" if "gguf" in flags else f"step-{number}")
        done = subprocess.run([binary, "convert", source, target, *flags], capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            raise Refused(done.stderr.strip()[-400:])
        source = target
    return source


def in_blocks(rows):
    """Q8_0 of rows of whole blocks: an f16 scale and 32 integers, halves rounded away from zero."""
    blocks = rows.reshape(-1, BLOCK)
    scale = blocks.abs().amax(dim=1, keepdim=True) / 127
    inverse = torch.where(scale == 0, torch.zeros_like(scale), 1 / scale)
    scaled = blocks * inverse
    whole = torch.sign(scaled) * torch.floor(scaled.abs() + 0.5)
    return (whole * scale.half().float()).reshape(rows.shape)


def as_stored(name, weight, gguf_type, is_conv1d, is_gemma):
    """A weight as a GGUF file stores it; norms, biases, positions and rows of partial blocks are
    not rounded.
    """
    if is_gemma and name.endswith("norm.weight"):
        return (weight + 1) - 1  # the file stores it plus 1
    if weight.dim() < 2 or "wpe" in name or gguf_type == "f32":
        return weight
    rows = weight.T.contiguous() if is_conv1d else weight  # a row has the inputs of one output
    if gguf_type == "q8_0":
        stored = in_blocks(rows) if rows.shape[1] % BLOCK == 0 else rows
    else:
        stored = rows.to({"f16": torch.float16, "bf16": torch.bfloat16}[gguf_type]).float()
    return stored.T.contiguous() if is_conv1d else stored


def rounded(model, gguf_type):
    """The values of all weights in the file."""
    state = {}
    is_gemma = model.config.model_type.startswith("gemma")
    for name, weight in model.state_dict().items():
        is_conv1d = model.config.model_type == "gpt2" and ".c_" in name and weight.dim() == 2
        state[name] = as_stored(name, weight, gguf_type, is_conv1d, is_gemma)
    return state


def logits(folder, prompts, kind):
    """The logits of transformers, which must load every weight of the directory and no other."""
    model, report = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                         output_loading_info=True)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[what]:
            raise Refused(f"{what}: {report[what]}")
    with torch.no_grad():
        return [model(torch.tensor([prompt])).logits for prompt in prompts]


def main():
    binary, seed, only = str(pathlib.Path(sys.argv[1]).resolve()), int(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(2)
    logging.disable_progress_bar()
    compared, failed = 0, 0
    for index, (name, make) in enumerate(cases.CASES.items()):
        if only and not any(part in name for part in only):
            continue
        model = cases.build(make(), seed + index)
        kind = tf.Gemma3ForConditionalGeneration if model.config.model_type == "gemma3" else tf.AutoModelForCausalLM
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            source = folder / "model"
            # Every second model has several weight files.
            model.save_pretrained(source, max_shard_size="200KB" if index % 2 else "1GB")
            config = json.loads((source / "config.json").read_text())
            vocab_size = (config.get("text_config") or config)["vocab_size"]
            rng = random.Random(seed)
            prompts = [[rng.randrange(vocab_size) for _ in range(PROMPT_TOKENS)] for _ in range(2)]
            original = logits(source, prompts, kind)
            for chain_name, chain in CHAINS.items():
                if "maxtext" in chain_name and config["model_type"] not in MAXTEXT:
                    continue
                if "gguf" in chain_name and config["model_type"] == "gemma3":
                    continue  # a file has only the text
                expected = original
                if "gguf" in chain_name:
                    model.load_state_dict(rounded(kind.from_pretrained(source, dtype=torch.float32),
                                                  chain_name.split()[1].rstrip(",")))
                    with torch.no_grad():
                        expected = [model(torch.tensor([prompt])).logits for prompt in prompts]
                compared += 1
                steps = folder / chain_name.replace(", ", "-").replace(" ", "-")
                steps.mkdir()
                try:
                    found = logits(convert(binary, source, steps, chain), prompts, kind)
                    good = all(torch.equal(a, b) for a, b in zip(expected, found))
                    print(f"{'ok' if good else 'DIFFERS':8} {name}: {chain_name}", flush=True)
                except Refused as fault:
                    good = any(form in chain_name and who == name and words in str(fault)
                               for (form, who), words in REFUSALS.items())
                    print(f"{'refused' if good else 'FAILED':8} {name}: {chain_name}: {fault}", flush=True)
                failed += not good
    print(f"{compared} exports: {failed} differ")
    return 1 if failed or compared == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
