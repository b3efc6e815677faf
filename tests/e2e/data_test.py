#!/usr/bin/env python3
"""End-to-end tests of `tandem data`, and of a run on prepared data.

`data_test.py BINARY [unittest arguments]`.
"""

import gzip
import json
import os
import pathlib
import resource
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

    def test_array_records_are_rows(self):
        fixtures = harness.ROOT / "tests/training/data/array_record/fixtures"
        for name in ("zstd", "transposed"):
            packed = (fixtures / f"{name}.array_record.gz").read_bytes()
            (self.folder / f"{name}.array_record").write_bytes(gzip.decompress(packed))
        words = ["kind=train.pretrain", f"data.train={self.folder}/zstd.array_record", "data.max_target_length=512"]
        self.assertIn("40 samples of 40 rows (text)",
                      self.tandem("data", "check", self.folder / "spec.yaml", *words))
        self.assertIn("record 3 abcabcabc", self.tandem("data", "show", self.folder / "spec.yaml", *words, "--index", 3))
        self.tandem("train", self.folder / "spec.yaml", *words, "run_name=records")
        self.assertIn("write it without the option transpose", self.tandem(
            "data", "check", self.folder / "spec.yaml", *words, f"data.train={self.folder}/transposed.array_record",
            code=1))

    def write(self, *rows):
        (self.folder / "rows.jsonl").write_text("".join(rows))

    def tandem(self, *arguments, code=0, preexec_fn=None):
        done = subprocess.run(
            [harness.BINARY, *map(str, arguments)], text=True, check=False,
            env={**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache"),
                 "HF_HUB_CACHE": str(self.folder / "hub"), "HF_HUB_OFFLINE": "1"},
            preexec_fn=preexec_fn, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout if code == 0 else done.stdout + done.stderr

    def data(self, verb, *arguments, **options):
        return self.tandem("data", verb, self.folder / "spec.yaml", *arguments, **options)

    def test_check_counts_and_lists_what_is_bad(self):
        self.assertIn("20 samples of 20 rows (messages)", self.data("check"))
        self.write(row("a", "b"), "nonsense\n", row("c", "d"), '{"messages": []}\n')
        found = self.data("check", code=65)
        self.assertIn("2 of 4 rows are bad\n  line 2: JSON: ", found)
        self.assertIn("\n  line 4: messages must have at least one message", found)
        self.assertIn("2 bad rows skipped", self.data("check", "data.on_bad_row=skip"))
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

    def test_what_the_server_renders_is_what_is_trained(self):
        template = ("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls %}"
                    "[call]{{ c.function | tojson }}[/call]{% endfor %}<|endoftext|>{% endfor %}"
                    "{% if add_generation_prompt %}<assistant>{% endif %}")
        (self.folder / "chat.jinja").write_text(template)
        call = {"type": "function", "id": "c",
                "function": {"name": "look", "arguments": '{"at": "sky"}'}}
        messages = [{"role": "user", "content": "Sky?"},
                    {"role": "assistant", "content": "", "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "c", "content": "blue"},
                    {"role": "assistant", "content": "It is blue.", "weight": 0},
                    {"role": "user", "content": "Sure?"},
                    {"role": "assistant", "content": "Yes."}]
        self.write(json.dumps({"messages": messages}) + "\n")
        self.tandem("train", self.folder / "spec.yaml", "train.steps=1",
                    "data.max_target_length=256")
        shown = [(int(line[7:15]), line[16] == "+") for line in
                 self.data("show", "--tokens").splitlines()[1:]]

        server = harness.Server(self.folder, "--model", str(self.folder / "run/hf"))
        self.addCleanup(server.kill)
        answer = server.post("/v1/render", {"messages": messages, "train": True})
        self.assertEqual([(t["id"], t["loss"]) for t in answer["tokens"]], shown)
        learned = b"".join(bytes(t["bytes"]) for t in answer["tokens"] if t["loss"]).decode()
        self.assertIn('[call]{"name": "look"', learned)
        self.assertNotIn("It is blue.", learned)

    def test_a_line_of_a_gigabyte_takes_no_memory(self):
        path = self.folder / "rows.jsonl"
        good = row("a", "b" * 5000)
        with path.open("wb") as file:
            file.write(good.encode() + b'{"messages":"')
            file.seek(1 << 30, os.SEEK_CUR)
            file.write(b'"}\n' + row("c", "d").encode())

        def bounded():
            resource.setrlimit(resource.RLIMIT_DATA, (512 << 20, 512 << 20))

        found = self.data("check", code=65, preexec_fn=bounded)
        self.assertIn("1 of 3 rows are bad\n  line 2: has 1073741839 bytes, the limit is 16777216", found)

    def test_data_that_are_none(self):
        for contents, fault in ((b"", "is empty"), (b"\n \n", "is empty"),
                                (b"\x00\x01\x02", "is binary"), (b"PK\x03\x04", "zip"),
                                (b"[]", "has no rows")):
            (self.folder / "rows.jsonl").write_bytes(contents)
            self.assertIn(fault, self.data("check", code=65))
        (self.folder / "rows.jsonl").unlink()
        self.assertIn("rows.jsonl", self.data("check", code=1))

    def test_splits_of_a_directory(self):
        data = self.folder / "set" / "data"
        data.mkdir(parents=True)
        for i in range(2):
            (data / f"train_sft-0000{i}-of-00002.jsonl").write_text(row(f"Sky {i}?", "Blue."))
        (data / "test_sft-00000-of-00001.jsonl").write_text(row("Sky?", "Grey."))
        words = ["data.train=" + str(self.folder / "set")]
        self.assertIn("set data.train_split or data.eval_split to one of 'test_sft, train_sft'",
                      self.data("check", *words, code=2))
        words.append("train_split=train_sft")
        self.assertIn("2 samples of 2 rows", self.data("check", *words))
        self.assertIn("train_sft-00001-of-00002.jsonl, line 1",
                      self.data("show", "--index", 1, *words))
        self.assertIn("no split 'dev'", self.data("check", *words[:1], "train_split=dev", code=2))
        self.assertIn("hf download ORG/NAME --repo-type dataset",
                      self.data("check", "data.train=ORG/NAME", code=1))
        cached = self.folder / "hub" / "datasets--ORG--NAME"
        (cached / "snapshots").mkdir(parents=True)
        (self.folder / "set").rename(cached / "snapshots" / ("0" * 40))
        self.assertIn("2 samples of 2 rows",
                      self.data("check", "data.train=ORG/NAME", "train_split=train_sft"))

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
        self.assertIn("was prepared with a different chat template",
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
