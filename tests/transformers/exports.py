"""`exports.py TANDEM SEED [NAME]...`: see README.md. Run by `run --exports`, with torch and transformers."""

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
# A chain of conversions, the last one into a Hugging Face directory; every value comes back.
CHAINS = {
    "hf": [["--to", "hf"]],
    "native-params": [["--to", "native-params"]],
    "native, hf": [["--to", "native"], ["--to", "hf"]],
    "maxtext scanned, hf": [["--to", "maxtext", "--scan", "--dtype", "f32"], ["--to", "hf"]],
    "maxtext unrolled, hf": [["--to", "maxtext", "--unroll", "--dtype", "f32"], ["--to", "hf"]],
}
# What MaxText's tree cannot hold is refused, in these words.
REFUSALS = {
    "gemma-3 text, full layers first, scaled rope": "in MaxText's order of layers it is the other way",
    "llama tied, 5:1 heads of 14, biases": "its tree has no place for",
}


class Refused(RuntimeError):
    pass


def convert(binary, source, folder, chain):
    for number, flags in enumerate(chain):
        target = folder / f"step-{number}"
        done = subprocess.run([binary, "convert", source, target, *flags], capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            raise Refused(done.stderr.strip()[-400:])
        source = target
    return source


def logits(folder, prompts, kind):
    """As transformers computes them, having loaded every weight of the directory and no other."""
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
            # Every other one in several files.
            model.save_pretrained(source, max_shard_size="200KB" if index % 2 else "1GB")
            config = json.loads((source / "config.json").read_text())
            vocab_size = (config.get("text_config") or config)["vocab_size"]
            rng = random.Random(seed)
            prompts = [[rng.randrange(vocab_size) for _ in range(PROMPT_TOKENS)] for _ in range(2)]
            expected = logits(source, prompts, kind)
            for chain_name, chain in CHAINS.items():
                if "maxtext" in chain_name and config["model_type"] not in MAXTEXT:
                    continue
                compared += 1
                steps = folder / chain_name.replace(", ", "-").replace(" ", "-")
                steps.mkdir()
                try:
                    found = logits(convert(binary, source, steps, chain), prompts, kind)
                    good = all(torch.equal(a, b) for a, b in zip(expected, found))
                    print(f"{'ok' if good else 'DIFFERS':8} {name}: {chain_name}", flush=True)
                except Refused as fault:
                    good = "maxtext" in chain_name and name in REFUSALS and REFUSALS[name] in str(fault)
                    print(f"{'refused' if good else 'FAILED':8} {name}: {chain_name}: {fault}", flush=True)
                failed += not good
    print(f"{compared} exports: {failed} differ")
    return 1 if failed or compared == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
