#!/usr/bin/env python3
"""Compares `tandem bench train` with PyTorch on the same shapes.

    bench/train_peers.py TANDEM --python PYTHON [--row gpt2-f32 …] [--pairs 5] [--steps 3]

TANDEM is the program. PYTHON is an interpreter with torch and transformers. It runs this file as a worker that keeps
its model between rounds; only one of the two programs computes at a time, with the same number of threads. A pair runs
both once, and the order turns from pair to pair. A round is one uncounted step and `--steps` counted ones; it counts
the best of them on both sides. Prints one row for each shape: the medians in tokens/s, the ratio with its range, and
our share of the machine's peak (`tandem bench train` measures the peak after each round).

Both sides have random weights and tokens, AdamW over all trained parameters, no dropout, no clipping and no schedule.
PyTorch has transformers' GPT2LMHeadModel or LlamaForCausalLM with attention by scaled_dot_product_attention. `--adam`
chooses the fused or the foreach form of torch.optim.AdamW. Our step also computes the norm of all gradients. Rows:

    gpt2-f32   GPT-2 124M, all in f32
    gpt2-bf16  GPT-2 124M; ours has f32 masters and bf16 products. PyTorch has autocast, or with `--pure-bf16` weights,
               gradients and moments in bf16
    lora-1b    adapters of rank 16 on all linear layers of a frozen bf16 base of Llama-3.2-1B's shape. `--layers` makes
               fewer layers of it. PyTorch's adapters are those of LoraLinear below
    long       one row of `--long-tokens` of a narrow llama (width 256, 2 layers) in bf16, ours only
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

GPT2 = {"layers": 12, "width": 768, "ffn": 3072, "heads": 12, "vocab": 50257}
LLAMA_1B = {"layers": 16, "width": 2048, "ffn": 8192, "heads": 32, "kv_heads": 8, "vocab": 128256}
LONG = {"layers": 2, "width": 256, "ffn": 1024, "heads": 4, "vocab": 512}
OURS = re.compile(r": ([\d.]+) tokens/s, ([\d.]+) % of the peak")
RANK = 16


# --- the worker: everything below runs in PYTHON -------------------------------------------------------------------


def make_gpt2(torch, transformers, context):
    config = transformers.GPT2Config(
        vocab_size=GPT2["vocab"], n_positions=context, n_embd=GPT2["width"], n_layer=GPT2["layers"],
        n_head=GPT2["heads"], n_inner=GPT2["ffn"], resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False,
        attn_implementation="sdpa")
    return transformers.GPT2LMHeadModel(config)


def make_llama(torch, transformers, context, layers):
    config = transformers.LlamaConfig(
        vocab_size=LLAMA_1B["vocab"], hidden_size=LLAMA_1B["width"], intermediate_size=LLAMA_1B["ffn"],
        num_hidden_layers=layers, num_attention_heads=LLAMA_1B["heads"], num_key_value_heads=LLAMA_1B["kv_heads"],
        max_position_embeddings=context, tie_word_embeddings=True, use_cache=False, attn_implementation="sdpa")
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.requires_grad_(False)
    add_adapters(torch, model)
    return model


def add_adapters(torch, model):
    """Puts an adapter on every linear layer but the head."""

    class LoraLinear(torch.nn.Module):
        """y = W x + B (A x). A and B are trained in the base's dtype."""

        def __init__(self, base):
            super().__init__()
            self.base = base
            like = {"dtype": base.weight.dtype}
            self.a = torch.nn.Parameter(torch.randn(RANK, base.in_features, **like) * 0.02)
            self.b = torch.nn.Parameter(torch.zeros(base.out_features, RANK, **like))

        def forward(self, x):
            linear = torch.nn.functional.linear
            return self.base(x) + linear(linear(x, self.a), self.b)

    linears = [(name, module) for name, module in model.named_modules()
               if isinstance(module, torch.nn.Linear) and not name.endswith("lm_head")]
    for name, module in linears:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, LoraLinear(module))


def work(options):
    """Prints "N tokens/s" for each line of standard input: the best of some steps."""
    import torch
    import transformers

    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    is_lora = options.row[0] == "lora-1b"
    is_bf16 = options.row[0] == "gpt2-bf16"
    if is_lora:
        model = make_llama(torch, transformers, options.context, options.layers)
    else:
        model = make_gpt2(torch, transformers, options.context)
        if is_bf16 and options.pure_bf16:
            model = model.to(torch.bfloat16)
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, **{options.adam: True})
    vocab = model.config.vocab_size
    tokens = torch.randint(vocab, (options.batch, options.context))
    targets = torch.randint(vocab, (options.batch * options.context,))
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=is_bf16 and not options.pure_bf16)

    def step():
        with autocast:
            logits = model(input_ids=tokens).logits
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, vocab).float(), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    print(f"ready: torch {torch.__version__}, transformers {transformers.__version__}", flush=True)
    for _ in sys.stdin:
        step()
        best = 0.0
        for _ in range(options.steps):
            start = time.monotonic()
            step()
            best = max(best, options.batch * options.context / (time.monotonic() - start))
        print(f"{best:.3f} tokens/s", flush=True)


# --- the comparison ------------------------------------------------------------------------------------------------


class Peer:
    """A worker process. It computes only while `measure` waits for it."""

    def __init__(self, options, row):
        command = [options.python, __file__, options.tandem, "--worker", "--row", row]
        for name in ("threads", "steps", "batch", "context", "layers", "adam"):
            command += [f"--{name}", str(getattr(options, name))]
        if options.pure_bf16:
            command.append("--pure-bf16")
        self.process = subprocess.Popen([str(part) for part in command], text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.versions = self.read(r"ready: (.*)")

    def read(self, pattern):
        for line in self.process.stdout:
            found = re.match(pattern, line)
            if found:
                return found.group(1)
        sys.exit("the PyTorch worker ended; run it with --worker to see why")

    def measure(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self.read(r"([\d.]+) tokens/s"))

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def our_flags(options, row, model):
    """The flags of `tandem bench train`."""
    flags = ["--context", options.long_tokens if row == "long" else options.context,
             "--batch", 1 if row == "long" else options.batch]
    if row == "lora-1b":
        return flags + ["--model", model, "--lora-rank", RANK]
    shape = LONG if row == "long" else GPT2
    for name in ("layers", "width", "ffn", "heads", "vocab"):
        flags += [f"--{name}", shape[name]]
    return flags + ["--family", "llama" if row == "long" else "gpt2", "--f32" if row == "gpt2-f32" else "--bf16"]


def measure_ours(options, row, model):
    """Tokens/s, and the share of the peak in percent."""
    command = [options.tandem, "bench", "train", "--rounds", 1, "--steps", options.steps,
               "--threads", options.threads, *our_flags(options, row, model)]
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    found = OURS.search(done.stdout)
    if done.returncode != 0 or not found:
        sys.exit(f"tandem bench train failed:\n{done.stdout}{done.stderr[-2000:]}")
    return float(found.group(1)), float(found.group(2))


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def compare(options, row, model):
    peer = None if row == "long" else Peer(options, row)
    ours, theirs = [], []
    for number in range(options.pairs):
        sides = [lambda: ours.append(measure_ours(options, row, model))]
        if peer:
            sides.append(lambda: theirs.append(peer.measure()))
        for side in sides if number % 2 == 0 else reversed(sides):
            side()
        print(f"  {row} pair {number + 1}: {ours[-1][0]:.1f} {theirs[-1:] or ''}", file=sys.stderr)
    rates = [rate for rate, _ in ours]
    line = f"| {row} | {statistics.median(rates):.1f} |"
    if peer:
        peer.close()
        ratios = [a / b for a, b in zip(rates, theirs)]
        line += f" {statistics.median(theirs):.1f} | {spread(ratios)} |"
    else:
        line += " – | – |"
    print(f"{line} {statistics.median(share for _, share in ours):.0f} % |", flush=True)


def make_model(options, directory):
    """A directory of random weights of the 1B shape."""
    model = directory / f"llama-1b-{options.layers}"
    if not model.exists():
        subprocess.run([str(options.tandem), "bench", "make-model", "llama-1b", str(model), "--layers",
                        str(options.layers)], check=True, stdout=subprocess.DEVNULL)
    config = json.loads((model / "config.json").read_text())
    if config["vocab_size"] != LLAMA_1B["vocab"]:
        sys.exit(f"{model} has {config['vocab_size']} words, PyTorch's model {LLAMA_1B['vocab']}")
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tandem", type=pathlib.Path)
    parser.add_argument("--python", type=pathlib.Path, default=pathlib.Path(sys.executable))
    parser.add_argument("--row", action="append", choices=("gpt2-f32", "gpt2-bf16", "lora-1b", "long"))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="counted steps of a round")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--batch", type=int, default=2, help="rows of a step")
    parser.add_argument("--context", type=int, default=512, help="tokens of a row")
    parser.add_argument("--layers", type=int, default=LLAMA_1B["layers"], help="of lora-1b")
    parser.add_argument("--long-tokens", type=int, default=8192, help="tokens of the row of `long`")
    parser.add_argument("--adam", choices=("fused", "foreach"), default="fused")
    parser.add_argument("--pure-bf16", action="store_true", help="PyTorch's gpt2-bf16 without autocast")
    parser.add_argument("--dir", type=pathlib.Path, help="keeps the 1B model there")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.row = options.row or ["gpt2-f32", "gpt2-bf16", "lora-1b", "long"]
    if options.worker:
        return work(options)

    print(f"{options.threads} threads, {options.pairs} pairs, {options.batch} x {options.context} tokens; tokens/s\n")
    print("| row | tandem | PyTorch | ratio (range) | our share of the peak |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=options.dir) as scratch:
        directory = options.dir or pathlib.Path(scratch)
        for row in options.row:
            compare(options, row, make_model(options, directory) if row == "lora-1b" else None)


if __name__ == "__main__":
    main()
