#!/usr/bin/env python3
"""End-to-end tests of the verbs eval, profile and config, and of specs with a base_config.

`verbs_test.py BINARY [unittest arguments]`.
"""

import fcntl
import json
import os
import re
import subprocess

import harness
from run_case import RunCase


class Training(RunCase):
    def evaluated(self, *arguments):
        return json.loads(self.tandem("eval", *arguments, "--json"))

    def test_eval_of_a_run_is_what_the_run_found(self):
        rows = [json.loads(line) for line in
                (self.folder / "run/metrics.jsonl").read_text().splitlines()]
        last = [row for row in rows if "eval/avg_loss" in row][-1]
        found = self.evaluated(self.spec)
        self.assertEqual(set(found), {"loss", "perplexity", "accuracy", "bits_per_byte", "tokens"})
        self.assertEqual(found["loss"], last["eval/avg_loss"])
        self.assertEqual(found["tokens"], last["eval/total_weights"])
        # The exported model and a text, both named explicitly.
        self.assertEqual(self.evaluated(self.folder / "run/hf", "--data", self.folder / "text.txt",
                                        "data.max_target_length=32"), found)
        text = self.tandem("eval", self.spec)
        self.assertRegex(text, r"^loss \d+\.\d{6}\nperplexity [\d.]+\naccuracy [\d.]+\n"
                               r"bits/byte [\d.]+\ntokens \d+\n$")

    def test_eval_says_what_it_misses(self):
        self.assertIn("--data is required", self.tandem("eval", self.folder / "run/hf", code=2))
        self.assertIn("has exported nothing yet",
                      self.tandem("eval", self.spec, "run_name=never", code=1))
        self.assertIn("nowhere.txt", self.tandem("eval", self.folder / "run/hf", "--data",
                                                 self.folder / "nowhere.txt", code=1))

    def test_config_explains_keys(self):
        keys = self.tandem("config", "explain")
        self.assertRegex(keys, r"(?m)^train\.steps +optimiser steps")
        steps = self.tandem("config", "explain", "steps", self.spec)
        self.assertIn("train.steps: optimiser steps\n", steps)
        self.assertIn(f"  value    4 ({self.spec}:6)\n", steps)
        self.assertIn("  value    9 (command line)\n",
                      self.tandem("config", "explain", "steps", self.spec, "steps=9"))
        self.assertIn("did you mean train.steps?",
                      self.tandem("config", "explain", "train.step", code=2))
        self.assertIn("without effect here", self.tandem("config", "explain", "hardware"))

    def test_config_shows_where_values_come_from(self):
        child = self.folder / "child.yaml"
        child.write_text("base_config: spec.yaml\nlearning_rate: 1e-3\n")
        shown = self.tandem("config", "show", child, "data.seed=7")
        for key, value, origin in (("train.steps", "4", f"{self.spec}:6"),
                                   ("train.learning_rate", "0.001", f"{child}:2"),
                                   ("data.seed", "7", "command line"),
                                   ("train.optimizer.b1", "0.9", "default")):
            self.assertRegex(shown, rf"(?m)^{re.escape(key)}: +{value} +# {re.escape(origin)}$")
        # The run uses the same values.
        self.assertIn("\n  steps: must be in [1",
                      self.tandem("train", child, "steps=0", code=2))
        (self.folder / "circle.yaml").write_text("base_config: circle.yaml\n")
        self.assertIn("is its own base", self.tandem("train", self.folder / "circle.yaml", code=2))

    def test_every_verb_is_in_the_readme(self):
        listed = self.tandem("--help").split("Subcommands:\n", 1)[1]
        verbs = re.findall(r"(?m)^  (\w+) ", listed)
        self.assertIn("profile", verbs)
        table = (harness.ROOT / "server" / "README.md").read_text()
        for verb in verbs:
            self.assertRegex(table, rf"(?m)^\| (?:`[^`]*`, )*`{verb}[ `]")

    def test_models_lists_the_families_of_the_readme(self):
        listed = json.loads(self.tandem("models", "--families", "--json"))["data"]
        readme = (harness.ROOT / "README.md").read_text()
        for family in listed:
            self.assertIn(f"| {family['models']} | {family['architectures'][0]} |", readme)
        table = self.tandem("models", "--families")
        self.assertRegex(table, r"^MODELS +CLASS +serve +train +LoRA +GGUF in +GGUF out +MaxText in +MaxText out\n")
        self.assertEqual(len(table.splitlines()), len(listed) + 1)
        for words in (["--families", "--url", "http://x"], ["model", "--url", "http://x"], ["--memory", "1G"],
                      ["model", "--families"]):
            self.tandem("models", *words, code=2)

    def test_checkpoint_ls_lists_tensors_of_any_format(self):
        of_run = json.loads(self.tandem("checkpoint", "ls", self.folder / "run/hf", "--json"))
        self.assertEqual(of_run["format"], "hf")
        self.assertIn("model.embed_tokens.weight", {leaf["name"] for leaf in of_run["leaves"]})
        fixtures = harness.ROOT / "tests/convert/orbax/fixtures"
        of_jax = json.loads(self.tandem("checkpoint", "ls", fixtures / "steps", "--json"))
        self.assertTrue(of_jax["path"].endswith("steps/10/items"), of_jax["path"])
        self.assertIn({"name": "params.params.decoder.layers.self_attention.query.kernel",
                       "type": "bf16", "shape": [8, 2, 2, 4], "bytes": 256}, of_jax["leaves"])
        text = self.tandem("checkpoint", "ls", fixtures / "ocdbt_zarr3")
        self.assertIn("[24, 8]                  params.params.token_embedder.embedding", text)
        self.assertIn("orbax, ocdbt", text)
        self.assertIn("no such model directory or file",
                      self.tandem("checkpoint", "ls", self.folder / "nothing", code=1))

    def test_a_second_trainer_gets_one_line_and_a_kill_frees_the_directory(self):
        words = [str(self.spec), "run_name=shared"]
        first = subprocess.Popen([harness.BINARY, "train", *words, "steps=100000000"], text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            next(line for line in first.stdout if "completed step" in line)
            refused = self.tandem("train", *words, code=69).splitlines()
        finally:
            first.kill()
            first.communicate()
        self.assertEqual(len(refused), 1, refused)
        self.assertIn(str(self.folder / "shared"), refused[0])
        self.assertIn(f"process {first.pid}", refused[0])
        self.tandem("train", *words)

    def test_a_job_whose_directory_is_in_use_changes_nothing_there(self):
        job = self.folder / "job"
        job.mkdir()
        (job / "spec.json").write_text("{}")
        (job / "result.json").write_text("of the first")
        (job / "work.lock").write_text("4242\n")
        with open(job / "work.lock", "r+", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.assertIn("process 4242", self.tandem("train", "--job", job, code=69))
        self.assertEqual(sorted(os.listdir(job)), ["result.json", "spec.json", "work.lock"])
        self.assertEqual((job / "result.json").read_text(), "of the first")

    def test_a_token_of_the_hub_is_written_nowhere(self):
        words = [self.spec, "run_name=secret", "hf_access_token=hf_verysecret"]
        said = self.tandem("config", "show", *words) + self.tandem("train", *words)
        self.assertNotIn("hf_verysecret", said)
        for path in (self.folder / "secret").rglob("*"):
            if path.is_file():
                self.assertNotIn(b"hf_verysecret", path.read_bytes(), path)

    def test_a_batch_beyond_the_machine_is_refused_with_the_plans_figures(self):
        said = self.tandem("train", self.spec, "run_name=huge", "per_device_batch_size=1000000",
                           code=1)
        self.assertIn("Changes that would fit", said)
        self.assertFalse((self.folder / "huge" / "checkpoints").exists())

    def test_a_preset_works_from_another_working_directory(self):
        preset = harness.ROOT / "config" / "presets" / "continue-stories.yaml"
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        done = subprocess.run(
            [os.path.abspath(harness.BINARY), "train", os.path.relpath(preset, elsewhere),
             f"data.train={self.folder}/text.txt", "steps=1"], text=True, check=False,
            cwd=elsewhere, capture_output=True,
            env={**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache")})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((elsewhere / "runs/my-stories/hf/model.safetensors").exists())

    def test_profile_has_a_row_for_every_value(self):
        table = self.tandem("profile", self.spec, "--sweep", "per_device_batch_size=1,2",
                            "--steps", 2, "--warmup", 1).splitlines()
        rows = [re.split(r" {2,}", line.strip()) for line in table if "batch_size=" in line]
        self.assertEqual([row[0] for row in rows],
                         ["per_device_batch_size=1", "per_device_batch_size=2"])
        for row in rows:
            self.assertTrue(all(float(cell.rstrip("%")) >= 0 for cell in row[1:]), row)
        self.assertIn("must be in [1",
                      self.tandem("profile", self.spec, "--sweep", "per_device_batch_size=1,0",
                                  code=2))
        self.assertIn("a sweep must be key=value",
                      self.tandem("profile", self.spec, "--sweep", "steps", code=2))


if __name__ == "__main__":
    harness.main()
