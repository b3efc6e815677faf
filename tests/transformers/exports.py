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
from safetensors import safe_open
from transformers.utils import logging

import cases

PROMPT_TOKENS = 60
MAXTEXT = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "qwen3_next", "gemma", "gemma2", "gemma3_text",
           "gemma4_text", "deepseek_v2", "deepseek_v3", "gpt_oss", "olmo3")
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
    ("gguf", ""): "has no architecture in GGUF",
    ("maxtext", "gemma-3 text, full layers first, scaled rope"): "in MaxText's order of layers it is the other way",
    ("maxtext", "llama tied, 5:1 heads of 14, biases"): "the parameter tree has no counterpart for",
    ("gguf", "qwen2 untied, window 19 from layer 2"): "a sliding window, which architecture 'qwen2' of GGUF cannot",
    ("gguf", "gemma-2, 4:2 heads of 26, caps, window 13"): "'query_pre_attn_scalar' other than 26, which",
    ("gguf", "gemma-2 without caps"): "no 'attn_logit_softcapping', which architecture 'gemma2' of GGUF cannot",
    ("gguf", "gemma-3 text, 4:1 heads of 24, 7 layers, window 11"): "'query_pre_attn_scalar' other than 24, which",
}
BLOCK = 32  # numbers
# Models whose experts transformers stacks; native-params has them one by one.
STACKED = ("gpt_oss", "granitemoe", "granitemoehybrid", "qwen3_5_moe_text", "qwen3_vl_moe", "llama4", "llama4_text")
# Models whose norms GGUF stores plus 1.
STORED_PLUS_1 = ("gemma", "gemma2", "gemma3_text", "nemotron")
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
            raise Refused(done.stderr.strip()[-4000:])
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


def as_stored(name, weight, gguf_type, inputs_first, plus_1):
    """A weight as a GGUF file stores it; norms, biases, positions, single rows and rows of partial blocks are
    not rounded.
    """
    if plus_1 and name.endswith("norm.weight"):
        return (weight + 1) - 1  # the file stores it plus 1
    if weight.dim() < 2 or weight.shape[0] == 1 or "wpe" in name or name.endswith("bias") or gguf_type == "f32":
        return weight
    rows = weight.mT.contiguous() if inputs_first else weight  # a row has the inputs of one output
    if gguf_type == "q8_0":
        stored = in_blocks(rows) if rows.shape[-1] % BLOCK == 0 else rows
    else:
        stored = rows.to({"f16": torch.float16, "bf16": torch.bfloat16}[gguf_type]).float()
    return stored.mT.contiguous() if inputs_first else stored


def rounded(model, gguf_type):
    """The values of all weights in the file."""
    state = {}
    plus_1 = model.config.model_type in STORED_PLUS_1
    for name, weight in model.state_dict().items():
        inputs_first = (model.config.model_type == "gpt2" and ".c_" in name and weight.dim() == 2
                        or model.config.model_type == "gpt_oss" and weight.dim() == 3)
        state[name] = as_stored(name, weight, gguf_type, inputs_first, plus_1)
    return state


def layout(folder):
    """{name: shape} of all tensors of a directory."""
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as tensors:
            # Published GPT-2 has the names of the model without a head; transformers reads both.
            found.update((name.removeprefix("transformer."), tuple(tensors.get_slice(name).get_shape()))
                         for name in tensors.keys())
    return found


def expect_layout(expected, found):
    """Raises Refused for another name or shape. transformers also reads forms that it does not write."""
    for what, left, right in (("lacks", expected, found), ("also has", found, expected)):
        other = sorted(name for name in left if left[name] != right.get(name))
        if other:
            raise Refused(f"{what} {[(name, left[name]) for name in other[:3]]}, {len(other)} in all")


def logits(folder, prompts, kind):
    """The logits of transformers, which must load every weight of the directory and no other."""
    model, report = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                         output_loading_info=True)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[what]:
            raise Refused(f"{what}: {report[what]}")
    for config in (model.config, model.config.get_text_config()):
        config._experts_implementation = "eager"
    with torch.no_grad():
        return [model(torch.tensor([prompt])).logits for prompt in prompts]


def main():
    binary, seed, only = str(pathlib.Path(sys.argv[1]).resolve()), int(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    compared, failed = 0, 0
    for index, (name, make) in enumerate(cases.CASES.items()):
        if (only and not any(part in name for part in only)) or name in cases.PUBLISH:
            continue
        model = cases.build(make(), cases.seed_of(name, seed))
        kind = cases.kind_of(model.config)
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            source = folder / "model"
            # Every second model has several weight files.
            model.save_pretrained(source, max_shard_size="200KB" if index % 2 else "1GB")
            config = json.loads((source / "config.json").read_text())
            vocab_size = (config.get("text_config") or config)["vocab_size"]
            rng = random.Random(seed)
            prompts = [[rng.randrange(10, vocab_size) for _ in range(PROMPT_TOKENS)] for _ in range(2)]
            original, tensors = logits(source, prompts, kind), layout(source)
            for chain_name, chain in CHAINS.items():
                if "maxtext" in chain_name and config["model_type"] not in MAXTEXT:
                    continue
                stacked = config["model_type"] in STACKED or (config.get("text_config") or config).get(
                    "enable_moe_block")
                if chain_name == "native-params" and stacked:
                    continue
                if "gguf" in chain_name and "text_config" in config:
                    continue  # a file has only the text
                if "gguf" in chain_name and "falcon-h1, expanded" in name:
                    continue  # the weights have the multipliers
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
                    exported = convert(binary, source, steps, chain)
                    found = logits(exported, prompts, kind)
                    if chain[-1][1] == "hf":
                        expect_layout(tensors, layout(exported))
                    good = all(torch.allclose(a, b, rtol=0, atol=2e-6) for a, b in zip(expected, found))
                    print(f"{'ok' if good else 'DIFFERS':8} {name}: {chain_name}", flush=True)
                except Refused as fault:
                    good = any(form in chain_name and name.startswith(who) and words in str(fault)
                               for (form, who), words in {**REFUSALS, **cases.REFUSALS}.items())
                    print(f"{'refused' if good else 'FAILED':8} {name}: {chain_name}: {fault}", flush=True)
                failed += not good
    print(f"{compared} exports: {failed} differ")
    return 1 if failed or compared == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
