"""`golden.py CASE FOLDER [SEED]`: writes a golden folder from a model of transformers; see README.md.

CASE is a key of cases.GOLDEN. The reference runs in f64: where a model of transformers asks for f32,
it gets f64.
"""

import copy
import json
import pathlib
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode
from transformers.utils import logging

import cases

GREEDY_TOKENS = 32
CANDIDATES = 256  # prompts tried for each length
CHECKED = 24      # of those with the clearest leads
SEEDS = 20
NOISE = 2.0 ** -8
LIMITS = {"float32": 3e-5, "bfloat16": 0.1}  # of a gradient's relative error; the tests allow 1e-4 and 0.15
LR, BETAS, EPS, DECAY, CLIP = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
OPTIMIZER = {"name": "AdamW", "lr": LR, "betas": list(BETAS), "eps": EPS, "weight_decay": DECAY,
             "clip_global_norm": CLIP}


class Doubles(TorchFunctionMode):
    """Gives f64 where f32 is asked for."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        def double(value):
            return torch.float64 if value is torch.float32 else value

        if func is torch.Tensor.float:
            func = torch.Tensor.double
        return func(*[double(value) for value in args],
                    **{key: double(value) for key, value in (kwargs or {}).items()})


def reference(config, state):
    """The model in f64, with frequencies in f64."""
    torch.set_default_dtype(torch.float64)
    try:
        with Doubles():
            kind = cases.kind_of(config)
            model = (kind.from_config(config, dtype=torch.float64)
                     if hasattr(kind, "from_config") else kind(config)).double()
    finally:
        torch.set_default_dtype(torch.float32)
    model.load_state_dict({name: tensor.double() for name, tensor in state.items()})
    return model.eval()


def logits_of(model, rows):
    """[rows, tokens, vocab] in f64."""
    if next(model.parameters()).dtype == torch.float64:
        with Doubles():
            return model(torch.tensor(rows), use_cache=False).logits
    return model(torch.tensor(rows), use_cache=False).logits.double()


def greedy(model, rows):
    """Continues rows: (ids [rows, tokens], the smallest lead of the best id in each row)."""
    rows, lead = [list(row) for row in rows], torch.full((len(rows),), float("inf"), dtype=torch.float64)
    with torch.no_grad():
        for _ in range(GREEDY_TOKENS):
            best = logits_of(model, rows)[:, -1].topk(2)
            lead = torch.minimum(lead, best.values[:, 0] - best.values[:, 1])
            for row, token in zip(rows, best.indices[:, 0].tolist()):
                row.append(token)
    return rows, lead


def with_noise(model, seed):
    """A copy whose layers' results are off by random parts of NOISE, as in lower precision."""
    noisy, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)

    def disturb(module, inputs, output):
        if not torch.is_tensor(output) or not output.is_floating_point():
            return output
        factors = torch.rand(output.shape, generator=generator).to(output.dtype) - 0.5
        return output * (1 + NOISE * factors)

    for module in noisy.modules():
        if not list(module.children()):
            module.register_forward_hook(disturb)
    return noisy


def cosine(a, b):
    return torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0).item()


def find_prompt(doubled, coarse, length, vocab, generator):
    """A prompt whose greedy ids lower precision does not change, or None."""
    rows = torch.randint(3, vocab, (CANDIDATES, length), generator=generator).tolist()
    continued, lead = greedy(coarse["float32"], rows)
    for at in lead.argsort(descending=True)[:CHECKED].tolist():
        row = continued[at]
        with torch.no_grad():
            exact = logits_of(doubled, [row])[0]
            if exact[length - 1:-1].argmax(dim=-1).tolist() != row[length:]:
                continue
            good = True
            for model in coarse.values():
                found = logits_of(model, [row])[0]
                good = (good and found[length - 1:-1].argmax(dim=-1).tolist() == row[length:]
                        and cosine(found[:length], exact[:length]) >= 0.9995)
            if good:
                return row, lead[at].item(), exact
    return None


def loss_of(model, batch):
    """The mean cross-entropy over counted labels of unpadded rows."""
    total, counted = 0, 0
    for row, labels in batch:
        logits = logits_of(model, [row])[0]
        targets = torch.tensor(labels[1:])
        counted += int((targets != -100).sum())
        total = total + torch.nn.functional.cross_entropy(logits[:-1], targets, ignore_index=-100,
                                                          reduction="sum")
    return total / counted, counted


def gradients_of(model, batch):
    model.zero_grad()
    loss, counted = loss_of(model, batch)
    loss.backward()
    gradients = {name: torch.zeros_like(weight) if weight.grad is None else weight.grad.detach().clone()
                 for name, weight in model.named_parameters()}
    return loss.item(), counted, gradients


def saved(model, values, case):
    """Tensors that replace the model's parameters, by the names that checkpoints have."""
    holder = copy.deepcopy(model)
    with torch.no_grad():
        for name, weight in holder.named_parameters():
            weight.copy_(values[name])
        for name, buffer in holder.named_buffers():
            if name not in values:
                buffer.zero_()
            else:
                buffer.copy_(values[name])
    with tempfile.TemporaryDirectory() as folder:
        holder.save_pretrained(folder, max_shard_size="1GB")
        tensors = load_file(pathlib.Path(folder) / "model.safetensors")
    return case.publish(tensors)


def labels_for(row, generator):
    """Labels that leave out the beginning and a tenth of the rest."""
    left_out = (torch.rand(len(row), generator=generator) < 0.1).tolist()
    return [-100 if at < len(row) // 4 or out else token
            for at, (token, out) in enumerate(zip(row, left_out))]


def norm_of(gradients):
    return torch.sqrt(sum((each ** 2).sum() for each in gradients.values())).item()


def train(model, case, batch):
    """Three steps of AdamW: (losses, norms, gradients of the first step)."""
    weights = dict(model.named_parameters())
    decays = {}
    for name, weight in weights.items():
        decays[name] = case.decays(name, weight)
    first, second = ({name: torch.zeros_like(weight) for name, weight in weights.items()} for _ in range(2))
    losses, norms, start = [], [], None
    for step in (1, 2, 3):
        loss, _, gradients = gradients_of(model, batch)
        start = start or gradients
        losses.append(loss)
        norms.append(norm_of(gradients))
        scale = min(1.0, CLIP / (norms[-1] + 1e-6))
        with torch.no_grad():
            for name, weight in weights.items():
                gradient = gradients[name] * scale
                first[name] = BETAS[0] * first[name] + (1 - BETAS[0]) * gradient
                second[name] = BETAS[1] * second[name] + (1 - BETAS[1]) * gradient ** 2
                mean = first[name] / (1 - BETAS[0] ** step)
                root = (second[name] / (1 - BETAS[1] ** step)).sqrt()
                weight.sub_(LR * (mean / (root + EPS) + (DECAY * weight if decays[name] else 0)))
    losses.append(gradients_of(model, batch)[0])
    return losses, norms, start


def batch_of(rows, generator):
    return [(row, labels_for(row, generator)) for row in rows]


def rounding(doubled, coarse, batch, seed):
    """Relative errors of gradients in lower precision, or None where they are too large for the tests."""
    _, _, exact = gradients_of(doubled, batch)
    least = 1e-7 * norm_of(exact)
    report = {}
    for name, each in coarse.items():
        _, _, gradients = gradients_of(each, batch)
        report[name] = max(((gradients[key].double() - exact[key]).norm() / exact[key].norm()).item()
                           for key in exact if exact[key].norm() > least)
        if report[name] > LIMITS.get(name, 0.06):
            print(f"seed {seed}: gradients in {name} are off by {report[name]:.1e}", flush=True)
            return None
    return report


def attempt(case, seed):
    """(model with stored values, reference, prompts), or None: lower precision changes too much."""
    model = cases.build(case.make(), seed, case.spread)
    storage = getattr(torch, case.storage)
    state = {name: tensor.to(storage).float() if tensor.is_floating_point() else tensor
             for name, tensor in model.state_dict().items()}
    model.load_state_dict(state)
    doubled = reference(model.config, state)
    coarse = {"float32": model, "bfloat16": copy.deepcopy(model).bfloat16()}
    coarse.update({f"noise {number}": with_noise(model, number) for number in range(3)})
    generator = torch.Generator().manual_seed(seed)
    vocab = (getattr(model.config, "text_config", None) or model.config).vocab_size
    rows = [torch.randint(3, vocab, (length,), generator=generator).tolist() for length in case.prompts]
    if rounding(doubled, coarse, batch_of(rows, generator), seed) is None:
        return None
    prompts = []
    for length in case.prompts:
        found = find_prompt(doubled, coarse, length, vocab, generator)
        if found is None:
            print(f"seed {seed}: no prompt of {length} tokens has clear leads", flush=True)
            return None
        prompts.append(found)
    batch = batch_of([row[:length] for (row, _, _), length in zip(prompts, case.prompts)], generator)
    report = rounding(doubled, coarse, batch, seed)
    if report is None:
        return None
    return model, doubled, prompts, batch, report


def published_config(model, case):
    with tempfile.TemporaryDirectory() as folder:
        model.config.save_pretrained(folder)
        config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    config["architectures"] = [type(model).__name__]
    config["dtype"] = case.storage
    config.pop("transformers_version", None)
    config.pop("_experts_implementation", None)
    return case.config(cases.older(config))


def write(case, folder, model, doubled, prompts, batch, report):
    golden = folder / "golden"
    golden.mkdir(parents=True, exist_ok=True)
    config = published_config(model, case)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokens = {key: config[key] for key in ("bos_token_id", "eos_token_id") if key in config}
    (folder / "generation_config.json").write_text(json.dumps({"_from_model_config": True, **tokens}, indent=2) + "\n")
    storage = getattr(torch, case.storage)
    stored = saved(model, {**dict(model.named_buffers()), **dict(model.named_parameters())}, case)
    save_file({name: tensor.to(storage).contiguous() for name, tensor in stored.items()},
              folder / "model.safetensors", metadata={"format": "pt"})
    buffers = dict(doubled.named_buffers())

    forward, sequences = {}, []
    for at, ((row, lead, logits), length) in enumerate(zip(prompts, case.prompts)):
        steps = logits[length - 1:-1].log_softmax(dim=-1)
        forward[f"input_ids.{at}"] = torch.tensor(row[:length])
        forward[f"logits.{at}"] = logits[:length].float().contiguous()
        sequences.append({
            "length": length, "input_ids": row[:length], "greedy_ids": row[length:],
            "greedy_logprobs": [round(steps[i, token].item(), 7) for i, token in enumerate(row[length:])],
            "min_top2_gap_over_logit_std": round(lead / logits.std().item(), 5),
            "logits_max_abs": logits[:length].abs().max().item(), "logits_std": logits[:length].std().item()})
    save_file(forward, golden / "forward.safetensors")

    counted = gradients_of(doubled, batch)[1]
    before = copy.deepcopy(doubled)
    losses, norms, start = train(doubled, case, batch)
    gradients = case.listed(saved(before, start, case))
    after = case.listed(saved(doubled, {**buffers, **dict(doubled.named_parameters())}, case))
    zero = sorted(name for name, each in gradients.items() if each.norm().item() <= 1e-9 * norms[0])
    for name, tensors in (("gradients", gradients), ("adamw_3steps", after)):
        save_file({key: tensor.float().contiguous() for key, tensor in tensors.items()},
                  golden / f"{name}.safetensors")
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)
    longest = max(case.prompts)

    def padded(row, value):
        return row + [value] * (longest - len(row))

    (golden / "golden.json").write_text(json.dumps({
        "model_type": config.get("model_type"),
        "sequences": sequences,
        "relative_l2_of_the_worst_gradient": report,
        "training": {
            "input_ids": [padded(row, 0) for row, _ in batch],
            "attention_mask": [padded([1] * len(row), 0) for row, _ in batch],
            "labels": [padded(labels, -100) for _, labels in batch],
            "loss": losses[0], "counted_label_tokens": counted,
            "losses_before_steps_1_2_3_and_after_3": losses,
            "gradient_norms_before_clipping_steps_1_2_3": norms,
            "optimizer": OPTIMIZER,
            "decayed_parameters": sorted(name for name, each in after.items() if case.decays(name, each)),
            "parameters_with_zero_gradient_by_symmetry": zero,
        }}, indent=1) + "\n")


def main():
    case, folder = cases.GOLDEN[sys.argv[1]], pathlib.Path(sys.argv[2])
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    for seed in range(first, first + SEEDS):
        found = attempt(case, seed)
        if found is None:
            continue
        write(case, folder, *found)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        print(f"{folder}: seed {seed}, {size // 1000} KB, {found[4]}")
        return 0
    print(f"no seed from {first} to {first + SEEDS - 1} gives a model with clear leads: set `spread` lower")
    return 1


if __name__ == "__main__":
    sys.exit(main())
