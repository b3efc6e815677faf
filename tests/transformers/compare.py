"""`compare.py TANDEM SEED [NAME]...`: see README.md. `run` starts it, with torch and transformers."""

import http.client
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import torch
from transformers.utils import logging

import cases
import golden

TOLERANCE = 2e-5  # of a log-probability; f32 on both sides, with other orders of sums
DOUBTFUL = 1e-4  # below it, transformers in f32 may be as far from f64
HALF_UNIT = 2.0 ** -24  # of an f32 number: the largest relative error of a rounding
MOVES = 3  # random ones
ROUNDINGS = 4  # times the effect of one rounding of each weight
PROMPT_TOKENS = 60
TOP = 20


def ask(binary, folder, prompts, flags):
    """(the served model's reply to each prompt of ids, the server's log)"""
    scratch = folder / "server"
    scratch.mkdir(exist_ok=True)
    with open(scratch / "log", "wb") as log:
        process = subprocess.Popen(
            [binary, "serve", "--port", "0", "--data-dir", str(scratch), "--model", str(folder / "model"),
             "--dtype", "f32", "--memory", "512M", *flags], stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            match = re.fullmatch(r"listening on http://([\d.]+):(\d+)\n", process.stdout.readline())
            if not match:
                raise RuntimeError("it does not start: " + (scratch / "log").read_text()[-600:])
            answers = []
            for prompt in prompts:
                connection = http.client.HTTPConnection(match[1], int(match[2]), timeout=120)
                connection.request("POST", "/v1/completions", json.dumps(
                    {"model": "model", "prompt": prompt, "max_tokens": 1, "temperature": 0,
                     "prompt_logprobs": TOP}), {"Content-Type": "application/json"})
                answer = json.loads(connection.getresponse().read())
                if "choices" not in answer:
                    raise RuntimeError(json.dumps(answer)[:600])
                answers.append(answer["choices"][0]["prompt_logprobs"])
            return answers, (scratch / "log").read_text()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def moved(state, draw):
    """Weights in f64, each off by a random part of half a unit in its last place."""
    generator = torch.Generator().manual_seed(draw)
    return {name: tensor.double() * (1 + HALF_UNIT * (2 * torch.rand(tensor.shape, generator=generator,
                                                                     dtype=torch.float64) - 1))
            for name, tensor in state.items()}


def against_doubles(answers, prompts, model):
    """Largest differences of a log-probability from the model in f64: (the answers', those of the model in f32,
    those of the model in f64 with moved weights)."""
    def of(some, prompt):
        with torch.no_grad():
            return torch.log_softmax(golden.logits_of(some, [prompt])[0], dim=-1)

    doubled = golden.reference(model.config, model.state_dict())
    shaken = [golden.reference(model.config, moved(model.state_dict(), draw)) for draw in range(MOVES)]
    served, own, shake = 0.0, 0.0, 0.0
    for prompt, positions in zip(prompts, answers):
        exact = of(doubled, prompt)
        own = max(own, (of(model, prompt) - exact).abs().max().item())
        shake = max([shake] + [(of(some, prompt) - exact).abs().max().item() for some in shaken])
        for at, given in enumerate(positions[1:]):
            served = max([served] + [abs(entry["logprob"] - exact[at][int(token)].item())
                                     for token, entry in given.items()])
    return served, own, shake


def differences(answers, prompts, model):
    """(largest difference of a log-probability, positions with another likeliest token)"""
    worst, wrong = 0.0, 0
    for prompt, positions in zip(prompts, answers):
        with torch.no_grad():
            expected = torch.log_softmax(model(torch.tensor([prompt])).logits[0].double(), dim=-1)
        assert len(positions) == len(prompt) and positions[0] is None
        for at, given in enumerate(positions[1:]):
            row = expected[at]
            assert str(prompt[at + 1]) in given and len(given) >= TOP
            for token, entry in given.items():
                worst = max(worst, abs(entry["logprob"] - row[int(token)].item()))
                if entry["rank"] == 1 and row.max().item() - row[int(token)].item() > TOLERANCE:
                    wrong += 1
    return worst, wrong


def has_more(config):
    """Whether the model has eyes or ears."""
    return any(key in config for key in ("vision_config", "audio_config", "encoder_config"))


def main():
    binary, seed, only = str(pathlib.Path(sys.argv[1]).resolve()), int(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    failed, shaken, compared = [], [], 0
    for index, (name, make) in enumerate(cases.CASES.items()):
        if only and not any(part in name for part in only):
            continue
        compared += 1
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            model = cases.build(make(), cases.seed_of(name, seed))
            # Every second model has several weight files.
            current, older = cases.save(name, model, folder / "model", "200KB" if index % 2 else "1GB")
            path = folder / "model" / "config.json"
            vocab_size = (current.get("text_config") or current)["vocab_size"]
            rng = random.Random(seed)
            # Smaller ids may stand for images.
            prompts = [[rng.randrange(10, vocab_size) for _ in range(PROMPT_TOKENS)] for _ in range(2)]
            for style, config in (("as saved", current), ("older keys", older)):
                path.write_text(json.dumps(config))
                try:
                    answers, log = ask(binary, folder, prompts, cases.SERVE.get(name, []))
                    worst, wrong = differences(answers, prompts, model)
                    told = log.count("serving only the text part of a multimodal model")
                    if told != int(has_more(current)):
                        raise RuntimeError(f"{told} lines of the log say that only the text part is served")
                    more = ""
                    if TOLERANCE <= worst < DOUBTFUL:
                        served, own, shake = against_doubles(answers, prompts, model)
                        more = (f"; {served:.1e} from f64, from which transformers is {own:.1e} off"
                                f" and half a unit of each weight {shake:.1e}")
                    exact = worst < TOLERANCE or (bool(more) and served <= max(own, TOLERANCE))
                    near = exact or (bool(more) and served <= ROUNDINGS * shake)
                    good = wrong == 0 and near
                    if good and not exact:
                        shaken.append(name)
                    print(f"{('ok' if exact else 'ROUNDED') if good else 'DIFFERS':8} {name}, {style}: largest difference {worst:.1e}{more}"
                          + (f", another likeliest token at {wrong} positions" if wrong else ""), flush=True)
                except RuntimeError as fault:
                    good = False
                    print(f"FAILED   {name}, {style}: {fault}", flush=True)
                if not good:
                    failed.append(name)
                    print("  " + json.dumps(config))
    print(f"{compared} models, each with two config.json: {len(failed)} differ; "
          f"{len(set(shaken))} are near by the wider bound of roundings {sorted(set(shaken))}")
    return 1 if failed or compared == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
