#!/usr/bin/env python3
"""`preferences.py TANDEM [NAME]...`: preference optimisation (DPO) here and in torch; see README.md.

Run with an interpreter that has torch, transformers and peft.
"""

import copy
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional as F

from compare import CASES, write_model

STEPS, PAIRS, LENGTH, END = 5, 2, 64, 256
BETA, SMOOTHING, RATE = 0.3, 0.1, 0.02
TOLERANCE = 1e-4  # relative to a figure's size; f32 on both sides, with other orders of sums


def make_pairs(seed):
    rng = random.Random(seed)

    def text(low, high):
        return "".join(rng.choice("abcdefgh ij") for _ in range(rng.randrange(low, high))).strip() + "."
    return [{"prompt": text(5, 20), "chosen": " " + text(4, 30), "rejected": " " + text(4, 30)}
            for _ in range(STEPS * PAIRS)]


def train_here(binary, folder, pairs):
    """The figures of every step."""
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    (folder / "spec.yaml").write_text("kind: train.dpo\n")
    words = {"model.load_parameters_path": folder / "model", "base_output_directory": folder, "run_name": "run",
             "precision.compute": "f32", "data.train": folder / "pairs.jsonl", "data.packing": "none",
             "data.shuffle": "false", "data.max_target_length": LENGTH, "data.eos_token": "<|endoftext|>",
             "dpo.beta": BETA, "dpo.label_smoothing": SMOOTHING, "train.steps": STEPS,
             "train.per_device_batch_size": PAIRS, "train.learning_rate": RATE, "train.schedule.type": "constant",
             "train.optimizer.type": "sgd", "train.gradient_clipping_threshold": 0, "checkpoint.export": "false"}
    done = subprocess.run([binary, "train", str(folder / "spec.yaml")] + [f"{k}={v}" for k, v in words.items()],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stdout[-2000:])
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "learning/loss" in row]


def log_probability(model, prompt, answer):
    """The log-probability of the answer's tokens and the end token."""
    ids = list(prompt.encode()) + list(answer.encode()) + [END]
    logits = model(torch.tensor([ids])).logits[0, :-1]
    each = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(ids[1:]).unsqueeze(1))
    return each[len(prompt.encode()) - 1:].sum()


def train_there(model, pairs):
    reference = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    rows = []
    for step in range(STEPS):
        losses, chosen, rejected = [], [], []
        for pair in pairs[step * PAIRS:(step + 1) * PAIRS]:
            policy = [log_probability(model, pair["prompt"], pair[key]) for key in ("chosen", "rejected")]
            with torch.no_grad():
                before = [log_probability(reference, pair["prompt"], pair[key]) for key in ("chosen", "rejected")]
            logits = BETA * ((policy[0] - policy[1]) - (before[0] - before[1]))
            losses.append(-F.logsigmoid(logits) * (1 - SMOOTHING) - F.logsigmoid(-logits) * SMOOTHING)
            chosen.append((BETA * (policy[0] - before[0])).item())
            rejected.append((BETA * (policy[1] - before[1])).item())
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in model.parameters() if p.grad is not None))
        optimizer.step()
        rows.append({"learning/loss": loss.item(), "learning/raw_grad_norm": norm.item(),
                     "rewards/chosen": sum(chosen) / PAIRS, "rewards/rejected": sum(rejected) / PAIRS,
                     "rewards/accuracies": sum(a > b for a, b in zip(chosen, rejected)) / PAIRS})
    return rows


def compare(binary, name):
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        model = write_model(CASES[name](), folder / "model", 1)
        pairs = make_pairs(7)
        ours, theirs = train_here(binary, folder, pairs), train_there(model, pairs)
    worst = 0
    for mine, other in zip(ours, theirs, strict=True):
        for key, value in other.items():
            if key == "rewards/accuracies" and other["rewards/chosen"] == 0:
                continue  # before any training: a tie, which rounding decides in torch
            worst = max(worst, abs(mine[key] - value) / max(1, abs(value)))
    last = ours[-1]
    print(f"{name}: loss {last['learning/loss']:.6f}, norm {last['learning/raw_grad_norm']:.4f}; "
          f"largest difference {worst:.1e}")
    return worst <= TOLERANCE


def main():
    binary, *names = sys.argv[1:]
    torch.set_num_threads(1)
    results = [compare(binary, name) for name in names or CASES]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
