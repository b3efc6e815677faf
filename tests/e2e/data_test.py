#!/usr/bin/env python3
"""End-to-end tests of `tandem data`, and of a run on what it prepared.

`data_test.py BINARY [unittest arguments]`.
"""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import harness

SPEC = """
kind: train.sft
base_output_directory: {folder}
model: {{n_layers: 1, hidden_dim: 32, n_heads: 2, tokenizer_path: {folder}/tokenizer.json,
  chat_template: {folder}/chat.jinja}}
data: {{train: {folder}/rows.jsonl, max_target_length: 128, eos_token: "<|endoftext|>"}}
train: {{steps: 2, per_device_batch_size: 1}}
resources: {{threads: 1}}
"""
TEMPLATE = ("{% for m in messages %}<{{ m.role }}>{{ m.content }}<|endoftext|>{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}")


def row(question, answer):
    return json.dumps({"messages": [{"role": "user", "content": question},
                                    {"role": "assistant", "content": answer}]}) + "\n"


class Data(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "spec.yaml").write_text(SPEC.format(folder=self.folder))
        (self.folder / "chat.jinja").write_text(TEMPLATE)
        (self.folder / "text.txt").write_text("a sky, a dog, a cat\n" * 20)
        self.tandem("tokenizer", "train", self.folder / "text.txt", "--vocab-size", 300,
                    "--special", "<|endoftext|>",
                    "--out", self.folder / "tokenizer.json")
        self.write(*(row(f"Sky {i}?", f"Blue {i}.") for i in range(20)))

    def write(self, *rows):
        (self.folder / "rows.jsonl").write_text("".join(rows))

    def tandem(self, *arguments, code=0):
        done = subprocess.run(
            [harness.BINARY, *map(str, arguments)], text=True, check=False,
            env={**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache")},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout if code in (0, 65) else done.stderr

    def data(self, verb, *arguments, code=0):
        return self.tandem("data", verb, self.folder / "spec.yaml", *arguments, code=code)

    def test_check_counts_and_lists_what_is_bad(self):
        self.assertIn("20 samples of 20 rows (messages)", self.data("check"))
        self.write(row("a", "b"), "nonsense\n", row("c", "d"), '{"messages": []}\n')
        found = self.data("check", code=65)
        self.assertIn("2 of 4 rows are bad\n  line 2: JSON: ", found)
        self.assertIn("\n  line 4: messages has no message", found)
        self.assertIn("2 bad rows left out", self.data("check", "data.on_bad_row=skip"))
        self.tandem("train", self.folder / "spec.yaml", code=65)

    def test_show_marks_what_is_trained(self):
        self.assertEqual(
            self.data("show", "--index", 3).split("\n", 1)[1],
            "<user>Sky 3?<|endoftext|><assistant>[[Blue 3.<|endoftext|>]]\n")
        self.assertIn("+ control  <|endoftext|>\n", self.data("show", "--tokens"))
        self.assertIn("--index must be in [0, 19]", self.data("show", "--index", 20, code=2))

    def test_stats_are_of_lengths_and_duplicates(self):
        self.write(*(row("a", "b") for _ in range(4)), row("c", "d " * 30))
        stats = self.data("stats")
        self.assertRegex(stats, r"duplicates +3\n")
        self.assertRegex(stats, r"longest +\d+\n")
        self.assertIn("####", stats)

    def test_what_was_prepared_is_trained_and_goes_stale(self):
        tok = self.folder / "rows.tok"
        self.data("prepare", "--out", tok)
        for name, words in (("rows", []), ("tok", [f"data.train={tok}"])):
            self.tandem("train", self.folder / "spec.yaml", f"run_name={name}", *words)
        losses = [[json.loads(line)["learning/loss"] for line in
                   (self.folder / name / "metrics.jsonl").read_text().splitlines()
                   if "learning/loss" in line] for name in ("rows", "tok")]
        self.assertEqual(losses[0], losses[1])
        self.assertEqual(len(losses[0]), 2)
        (self.folder / "chat.jinja").write_text(TEMPLATE + "\n\n.")
        self.assertIn("was prepared with another chat template",
                      self.data("check", f"data.train={tok}", code=2))

    def test_pairs_are_shown_counted_and_trained(self):
        words = ["kind=train.dpo", "max_target_length=64"]
        self.write(*(json.dumps({
            "input": {"messages": [{"role": "user", "content": f"Sky {i}?"}]},
            "preferred_output": [{"role": "assistant", "content": "Blue."}],
            "non_preferred_output": [{"role": "assistant", "content": f"Red {i}."}]}) + "\n"
            for i in range(12)))
        self.assertIn("12 pairs of 12 rows (openai_preference)", self.data("check", *words))
        self.assertEqual(
            self.data("show", *words, "--index", 3).split("\n", 1)[1],
            "chosen:\n<user>Sky 3?<|endoftext|><assistant>[[Blue.<|endoftext|>]]\n"
            "rejected:\n<user>Sky 3?<|endoftext|><assistant>[[Red 3.<|endoftext|>]]\n")
        self.assertIn("rejected:\n     0 ", self.data("show", *words, "--tokens"))
        self.assertRegex(self.data("stats", *words), r"pairs +12\n")
        self.assertIn("cannot be prepared",
                      self.data("prepare", *words, "--out", self.folder / "x.tok", code=2))
        self.assertIn("after a reference of at most",
                      self.tandem("plan", self.folder / "spec.yaml", *words))
        self.tandem("train", self.folder / "spec.yaml", "run_name=pairs", *words)
        lines = [json.loads(line)
                 for line in (self.folder / "pairs" / "metrics.jsonl").read_text().splitlines()]
        self.assertAlmostEqual(lines[0]["learning/loss"], 0.6931471805599453, places=15)
        self.assertIn("rewards/margins", lines[1])
        self.write('{"chosen": "a b", "rejected": "a c"}\n' * 2, '{"chosen": "a b", "rejected": "a b"}\n')
        self.assertIn("line 3: 'rejected' is the same as 'chosen'",
                      self.data("check", *words, "data.format=preference", code=65))


if __name__ == "__main__":
    harness.main()
