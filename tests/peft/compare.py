"""`compare.py TANDEM SEED [NAME]...`: see README.md. `run` starts it, with torch, transformers and
peft.
"""

import http.client
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import peft
import tokenizers
import torch
import transformers as tf
from safetensors.torch import load_file
from transformers.utils import logging

TOLERANCE = 1e-4  # of a log-probability; f32 on both sides, with other orders of sums
TOP = 20
STEPS, ROWS, ROW_LENGTH = 5, 2, 48
ADAMW = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
SIZES = {"vocab_size": 259, "max_position_embeddings": 128, "bos_token_id": 256, "eos_token_id": 256,
         "pad_token_id": None}

CASES = {
    "llama": lambda: tf.LlamaConfig(
        **SIZES, num_hidden_layers=3, hidden_size=48, intermediate_size=100, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=False),
    "gemma2": lambda: tf.Gemma2Config(
        **SIZES, num_hidden_layers=4, hidden_size=48, intermediate_size=90, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=16, sliding_window=13),
    "mistral": lambda: tf.MistralConfig(
        **SIZES, num_hidden_layers=3, hidden_size=48, intermediate_size=90, num_attention_heads=4,
        num_key_value_heads=1, sliding_window=17),
    "qwen2": lambda: tf.Qwen2Config(
        **SIZES, num_hidden_layers=3, hidden_size=48, intermediate_size=100, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True),
    "gemma1": lambda: tf.GemmaConfig(
        **SIZES, num_hidden_layers=3, hidden_size=48, intermediate_size=90, num_attention_heads=4,
        num_key_value_heads=1, head_dim=16),
    "gemma3": lambda: tf.Gemma3TextConfig(
        **SIZES, num_hidden_layers=7, hidden_size=48, intermediate_size=90, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=16, sliding_window=13),
    "qwen3": lambda: tf.Qwen3Config(
        **SIZES, num_hidden_layers=3, hidden_size=48, intermediate_size=100, num_attention_heads=4,
        num_key_value_heads=2, head_dim=14, tie_word_embeddings=True),
    "gpt2": lambda: tf.GPT2Config(
        vocab_size=259, n_positions=128, n_embd=48, n_layer=3, n_head=4, bos_token_id=256,
        eos_token_id=256, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
}
# Further adapters of a case: "llama+dora".
FORMS = {
    "dora": {"use_dora": True},
    "embeddings": {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
    "copies": {"modules_to_save": ["embed_tokens", "lm_head", "norm"]},
}
FORM_CASES = ["llama+dora", "qwen2+dora", "gpt2+dora", "llama+embeddings", "gemma2+embeddings", "qwen2+embeddings",
              "gemma3+embeddings", "llama+copies", "gemma2+copies", "qwen2+copies"]
# GPT-2 has Conv1D layers, stored [in, out]; c_attn is query, key and value in one.
TARGETS = {"gpt2": ["c_attn", "c_fc", "c_proj"]}
ALL_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def write_model(config, folder, seed):
    """Writes a random model with a tokenizer whose ids are the bytes, and 256 for the end of text."""
    torch.manual_seed(seed)
    config._attn_implementation = "eager"  # the fused implementations lack Gemma 2's caps
    model = tf.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    model.tie_weights()
    model.save_pretrained(folder)
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    order = sorted(letters, key=lambda letter: byte_of(letter))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(order)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return model


def byte_of(letter):
    """The byte of a letter in GPT-2's alphabet."""
    hidden = [b for b in range(256) if not (33 <= b <= 126 or 161 <= b <= 172 or b >= 174)]
    return ord(letter) if ord(letter) < 256 else hidden[ord(letter) - 256]


def add_adapter(model, name, form, seed):
    torch.manual_seed(seed)
    words = {"target_modules": TARGETS.get(name, ALL_TARGETS), **FORMS.get(form, {})}
    config = peft.LoraConfig(r=4, lora_alpha=6, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
                             fan_in_fan_out=name == "gpt2", use_rslora=name == "qwen3", **words)
    adapted = peft.get_peft_model(model, config)
    with torch.no_grad():
        for key, parameter in adapted.named_parameters():
            if "lora_B" in key or "lora_embedding_A" in key:
                parameter.normal_(0, 0.1)
            elif "magnitude" in key:
                parameter.mul_(1 + 0.1 * torch.randn_like(parameter))
            elif "modules_to_save" in key:
                parameter.add_(0.05 * torch.randn_like(parameter))
    return adapted.float()


def ask(binary, folder, adapter, prompt):
    """Log-probabilities of the prompt's ids and of the likeliest ids, by `tandem serve` with the
    adapter.
    """
    scratch = folder / "server"
    scratch.mkdir(exist_ok=True)
    with open(scratch / "log", "wb") as log:
        process = subprocess.Popen(
            [binary, "serve", "--port", "0", "--data-dir", str(scratch), "--model", str(folder / "model"),
             "--adapter", f"tuned={adapter}", "--dtype", "f32", "--memory", "512M"],
            stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            match = re.fullmatch(r"listening on http://([\d.]+):(\d+)\n", process.stdout.readline())
            if not match:
                raise RuntimeError("it does not start: " + (scratch / "log").read_text()[-600:])
            connection = http.client.HTTPConnection(match[1], int(match[2]), timeout=120)
            connection.request("POST", "/v1/completions", json.dumps(
                {"model": "tuned", "prompt": prompt, "max_tokens": 1, "temperature": 0,
                 "prompt_logprobs": TOP}), {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())
            if "choices" not in answer:
                raise RuntimeError(json.dumps(answer)[:600])
            return answer["choices"][0]["prompt_logprobs"]
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def difference(answers, prompt, model):
    """The largest difference of a log-probability."""
    with torch.no_grad():
        expected = torch.log_softmax(model(torch.tensor([prompt])).logits[0].double(), dim=-1)
    return max(abs(entry["logprob"] - expected[at, int(token)].item())
               for at, given in enumerate(answers[1:]) for token, entry in given.items())


def samples(seed):
    rng = random.Random(seed)
    return ["".join(rng.choice("abcdefghij klmn") for _ in range(rng.randrange(12, ROW_LENGTH - 4))).strip() + "."
            for _ in range(STEPS * ROWS)]


def train_here(binary, folder, texts, export):
    """(losses, the exported adapter)"""
    (folder / "train.txt").write_text("".join(text + "\n<|endoftext|>\n" for text in texts))
    beta1, beta2 = ADAMW["betas"]
    words = {"model.load_parameters_path": folder / "model", "lora.load_path": folder / "peft",
             "lora.export": export, "train.optimizer.decay_exclude": "[]", "base_output_directory": folder, "run_name": "run", "precision.compute": "f32",
             "data.train": folder / "train.txt", "data.packing": "none", "data.shuffle": "false",
             "data.max_target_length": ROW_LENGTH, "data.eos_token": "<|endoftext|>",
             "train.steps": STEPS, "train.per_device_batch_size": ROWS, "train.learning_rate": ADAMW["lr"],
             "train.schedule.type": "constant", "train.optimizer.b1": beta1, "train.optimizer.b2": beta2,
             "train.optimizer.eps": ADAMW["eps"], "train.optimizer.weight_decay": ADAMW["weight_decay"],
             "train.gradient_clipping_threshold": 1}
    (folder / "spec.yaml").write_text("version: 1\n")
    done = subprocess.run([binary, "train", str(folder / "spec.yaml")] + [f"{k}={v}" for k, v in words.items()],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError("tandem train: " + done.stdout[-600:])
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return [line["learning/loss"] for line in lines if "learning/loss" in line], folder / "run" / "adapter"


def train_in_torch(model, texts):
    """The losses of the same steps; the adapter stays trained."""
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, **ADAMW)
    losses = []
    for step in range(STEPS):
        total, count = 0.0, 0
        for text in texts[step * ROWS:(step + 1) * ROWS]:
            ids = torch.tensor([list(text.encode()) + [256]])
            logits = model(ids[:, :-1]).logits
            total = total + torch.nn.functional.cross_entropy(logits[0], ids[0, 1:], reduction="sum")
            count += ids.shape[1] - 1
        loss = total / count
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    return losses


def compare(binary, name, folder, seed):
    """The faults, one line each; prints the comparisons."""
    faults = []

    def check(what, value, limit):
        print(f"{'ok' if value <= limit else 'DIFFERS':8} {name}: {what} {value:.1e}", flush=True)
        if value > limit:
            faults.append(what)

    case, _, form = name.partition("+")
    base = write_model(CASES[case](), folder / "model", seed)
    merges = form not in ("embeddings", "copies") or not base.config.tie_word_embeddings
    adapted = add_adapter(base, case, form, seed + 1)
    adapted.save_pretrained(folder / "peft")
    rng = random.Random(seed)
    prompt = [rng.randrange(256) for _ in range(60)]
    check("an adapter of PEFT's, served: largest difference",
          difference(ask(binary, folder, folder / "peft", prompt), prompt, adapted.eval()), TOLERANCE)

    texts = samples(seed)
    start = load_file(folder / "peft" / "adapter_model.safetensors")
    ours, exported = train_here(binary, folder, texts, "merged" if merges else "adapter")
    theirs = train_in_torch(adapted, texts)
    check(f"losses of {len(ours)} steps, {theirs[0]:.3f} to {theirs[-1]:.3f}: largest relative difference",
          max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True)), 1e-4)

    again = peft.PeftModel.from_pretrained(
        tf.AutoModelForCausalLM.from_pretrained(folder / "model", attn_implementation="eager").float(),
        exported).eval()
    check("our export in PEFT: largest difference",
          difference(ask(binary, folder, exported, prompt), prompt, again), TOLERANCE)
    adapted.save_pretrained(folder / "torch", save_embedding_layers=False)
    end = load_file(folder / "torch" / "adapter_model.safetensors")
    mine = load_file(exported / "adapter_model.safetensors")
    if set(mine) != set(end):
        faults.append("names")
        print(f"DIFFERS  {name}: names {sorted(set(mine) ^ set(end))[:4]}")
        return faults
    if merges:
        check("our merged model beside PEFT's", merged_difference(folder / "run" / "hf", again), 1e-5)
    check("matrices after training: largest difference of their way",
          max(((mine[k].float() - end[k]).norm() / (end[k] - start[k]).norm()).item() for k in end), 1e-2)
    return faults


def merged_difference(merged, adapted):
    """The largest relative difference of our merged weights, loaded by transformers, from PEFT's."""
    ours = tf.AutoModelForCausalLM.from_pretrained(merged, attn_implementation="eager").float().state_dict()
    theirs = adapted.merge_and_unload().state_dict()
    if set(ours) != set(theirs):
        return float("inf")
    return max(((ours[k] - theirs[k]).abs().max() / theirs[k].abs().max()).item() for k in theirs)


def main():
    binary, seed, only = str(pathlib.Path(sys.argv[1]).resolve()), int(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(2)
    logging.disable_progress_bar()
    failed, compared = [], 0
    for name in [*CASES, *FORM_CASES]:
        if only and not any(part in name for part in only):
            continue
        compared += 1
        with tempfile.TemporaryDirectory() as scratch:
            try:
                if compare(binary, name, pathlib.Path(scratch), seed):
                    failed.append(name)
            except RuntimeError as fault:
                print(f"FAILED   {name}: {fault}", flush=True)
                failed.append(name)
    print(f"{compared} models: {len(failed)} differ")
    return 1 if failed or compared == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
