"""`sft_losses.py TANDEM SEED [NAME]...`: see README.md. `run` starts it, with torch, transformers,
peft and trl.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile
import warnings

import datasets
import peft
import torch
import transformers as tf
import trl
from transformers.utils import logging

from compare import CASES, add_adapter, write_model

STEPS, BATCH, ACCUMULATION, ROW_LENGTH = 5, 2, 2, 192
TOLERANCE = 1e-4  # of a loss; f32 on both sides, with other orders of sums
LEARNING_RATE = {"full": 2e-3, "lora": 1e-2}
BETAS, EPS, DECAY = (0.9, 0.95), 1e-8, 0.1
TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
            "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}"
            "{% endgeneration %}{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")

# Trained: answers of chats, completions, or all of a text; with all weights or an adapter.
RUNS = [("llama", "messages", "full"), ("llama", "prompt_completion", "full"), ("llama", "text", "full"),
        ("llama", "messages", "lora"), ("gemma2", "messages", "full"), ("gemma2", "messages", "lora"),
        ("qwen3", "prompt_completion", "lora"), ("gpt2", "messages", "full"), ("gpt2", "messages", "lora")]


def words(rng, least, most):
    return "".join(rng.choice("abcdefghij klmn") for _ in range(rng.randrange(least, most))).strip() + "."


def rows(kind, seed):
    rng = random.Random(seed)
    count = STEPS * BATCH * ACCUMULATION
    if kind == "text":
        return [{"text": words(rng, 10, 120)} for _ in range(count)]
    if kind == "prompt_completion":
        return [{"prompt": words(rng, 5, 60), "completion": " " + words(rng, 3, 60)} for _ in range(count)]
    chats = []
    for _ in range(count):
        chat = [{"role": "system", "content": words(rng, 3, 20)}] if rng.random() < 0.3 else []
        for _ in range(rng.choice((1, 1, 2))):
            chat += [{"role": "user", "content": words(rng, 3, 20)},
                     {"role": "assistant", "content": words(rng, 3, 30)}]
        chats.append({"messages": chat})
    return chats


def write_tokenizer(folder):
    """Adds the two tokens of a chat's turns and the template to `write_model`'s tokenizer."""
    path = folder / "tokenizer.json"
    tokenizer = tf.PreTrainedTokenizerFast(tokenizer_file=str(path), eos_token="<|endoftext|>",
                                           pad_token="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return tokenizer


def train_here(binary, folder, learned):
    settings = {
        "kind": "train.sft", "model.load_parameters_path": folder / "model", "precision.compute": "f32",
        "base_output_directory": folder, "run_name": "run", "data.train": folder / "train.jsonl",
        "data.packing": "none", "data.shuffle": "false", "data.max_target_length": ROW_LENGTH,
        "data.eos_token": "<|endoftext|>", "train.steps": STEPS, "train.per_device_batch_size": BATCH,
        "train.gradient_accumulation_steps": ACCUMULATION, "train.learning_rate": LEARNING_RATE[learned],
        "train.schedule.type": "constant", "train.optimizer.b1": BETAS[0], "train.optimizer.b2": BETAS[1],
        "train.optimizer.eps": EPS, "train.optimizer.weight_decay": DECAY, "train.gradient_clipping_threshold": 1,
        "train.on_nan": "abort", "checkpoint.export": "false"}
    if learned == "lora":
        settings["lora.load_path"] = folder / "peft"
    (folder / "spec.yaml").write_text("version: 1\n")
    done = subprocess.run([binary, "train", str(folder / "spec.yaml")] + [f"{k}={v}" for k, v in settings.items()],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError("tandem train: " + done.stdout[-600:])
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return [(line["learning/loss"], line["learning/total_weights"]) for line in lines if "learning/loss" in line]


class Trainer(trl.SFTTrainer):
    """trl's own trainer, in the order of the rows; keeps losses before its log rounds them."""

    losses = None

    def _get_train_sampler(self, *_, **__):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        result = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        loss = result[0] if return_outputs else result
        if self.losses is None:
            self.losses = []
        # A micro-batch's part of the step's loss: the sum over its tokens divided by the step's
        # tokens.
        self.losses.append((loss.item(), int(num_items_in_batch)))
        return result


def train_in_trl(model, tokenizer, data, kind, learned, folder):
    arguments = trl.SFTConfig(
        output_dir=str(folder / "trl"), max_steps=STEPS, per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATION, learning_rate=LEARNING_RATE[learned],
        lr_scheduler_type="constant", warmup_steps=0, adam_beta1=BETAS[0], adam_beta2=BETAS[1], adam_epsilon=EPS,
        weight_decay=DECAY, max_grad_norm=1.0, max_length=ROW_LENGTH, packing=False, bf16=False, fp16=False,
        use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
        gradient_checkpointing=False, assistant_only_loss=kind == "messages",
        completion_only_loss=kind == "prompt_completion", eos_token="<|endoftext|>", optim="adamw_torch")
    trainer = Trainer(model=model, args=arguments, train_dataset=datasets.Dataset.from_list(data),
                      processing_class=tokenizer)
    trainer.remove_callback(tf.PrinterCallback)
    trainer.train()
    parts = [trainer.losses[i:i + ACCUMULATION] for i in range(0, len(trainer.losses), ACCUMULATION)]
    return [(sum(loss for loss, _ in step), step[0][1]) for step in parts]


def compare(binary, run, folder, seed):
    """Whether all losses agree; prints them."""
    name, kind, learned = run
    config = CASES[name]()
    config.max_position_embeddings = ROW_LENGTH
    base = write_model(config, folder / "model", seed)
    tokenizer = write_tokenizer(folder / "model")
    data = rows(kind, seed)
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data))
    model = base
    if learned == "lora":
        add_adapter(base, name, "", seed + 1).save_pretrained(folder / "peft")
        model = peft.PeftModel.from_pretrained(
            tf.AutoModelForCausalLM.from_pretrained(folder / "model", attn_implementation="eager").float(),
            folder / "peft", is_trainable=True)
    ours = train_here(binary, folder, learned)
    theirs = train_in_trl(model, tokenizer, data, kind, learned, folder)
    label = f"{name} {kind} {learned}"
    if [tokens for _, tokens in ours] != [tokens for _, tokens in theirs]:
        print(f"DIFFERS  {label}: tokens learned in each step {ours} and {theirs}", flush=True)
        return False
    worst = max(abs(a - b) / b for (a, _), (b, _) in zip(ours, theirs, strict=True))
    print(f"{'ok' if worst <= TOLERANCE else 'DIFFERS':8} {label}: {len(ours)} losses, {theirs[0][0]:.4f} to "
          f"{theirs[-1][0]:.4f}, of {sum(int(tokens) for _, tokens in theirs)} tokens: largest relative difference "
          f"{worst:.1e}", flush=True)
    if worst > TOLERANCE:
        print("         " + ", ".join(f"{a:.6f} {b:.6f}" for (a, _), (b, _) in zip(ours, theirs)), flush=True)
    return worst <= TOLERANCE and len(ours) == STEPS


def main():
    binary, seed, only = str(pathlib.Path(sys.argv[1]).resolve()), int(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(2)
    warnings.simplefilter("ignore", FutureWarning)
    logging.disable_progress_bar()
    datasets.disable_progress_bars()
    failed, compared = 0, 0
    for run in RUNS:
        if only and not any(part in " ".join(run) for part in only):
            continue
        compared += 1
        with tempfile.TemporaryDirectory() as scratch:
            try:
                failed += not compare(binary, run, pathlib.Path(scratch), seed)
            except RuntimeError as fault:
                print(f"FAILED   {' '.join(run)}: {fault}", flush=True)
                failed += 1
    print(f"{compared} fine-tunings: {failed} differ")
    return 1 if failed or compared == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
