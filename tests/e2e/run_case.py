"""Shared by the tests of verbs around training: a run of a tiny model, made once by the program."""

import os
import pathlib
import subprocess
import tempfile
import unittest

import harness

SPEC = """
base_output_directory: {folder}
model: {{n_layers: 1, hidden_dim: 32, n_heads: 2, tokenizer_path: {folder}/tokenizer.json}}
data: {{train: {folder}/text.txt, eval: {folder}/text.txt, max_target_length: 32}}
train:
  steps: {steps}
  per_device_batch_size: 2
resources: {{threads: 1}}
"""


class RunCase(unittest.TestCase):
    STEPS = 4
    MORE = ""  # more lines of the spec

    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.directory.cleanup)
        cls.folder = pathlib.Path(cls.directory.name)
        cls.run_dir = cls.folder / "run"
        cls.spec = cls.folder / "spec.yaml"
        cls.spec.write_text(SPEC.format(folder=cls.folder, steps=cls.STEPS) + cls.MORE)
        (cls.folder / "text.txt").write_text(
            "\n<|endoftext|>\n".join(f"A dog saw {i} cats in the sky." for i in range(40)))
        cls.tandem("tokenizer", "train", cls.folder / "text.txt", "--vocab-size", 300,
                   "--special", "<|endoftext|>", "--out", cls.folder / "tokenizer.json")
        cls.tandem("train", cls.spec)

    @classmethod
    def tandem(cls, *arguments, code=0):
        """The output; if it is to fail, standard error too."""
        done = subprocess.run(
            [harness.BINARY, *map(str, arguments)], text=True, check=False,
            env={**os.environ, "XDG_CACHE_HOME": str(cls.folder / "cache")},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if done.returncode != code:
            raise AssertionError(f"exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + (done.stderr if code else "")
