"""Shared by the tests of training on several ranks: a spec, and runs under mpirun on this machine."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import harness  # noqa: E402

SPEC = """
base_output_directory: {folder}
model: {{n_layers: 2, hidden_dim: 64, n_heads: 2, tokenizer_path: {folder}/tokenizer.json}}
data: {{train: {folder}/text.txt, max_target_length: 64}}
train:
  steps: {steps}
  learning_rate: 0.003
  per_device_batch_size: 4
  gradient_accumulation_steps: 2
checkpoint: {{period: 7}}
resources: {{threads: 1}}
"""
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]


def free_port():
    with socket.socket() as entry:
        entry.bind(("127.0.0.1", 0))
        return entry.getsockname()[1]


def processes_that_train(word):
    """The processes of this program with this word, in the order of their ids; a rank follows its waiting parent."""
    found = []
    program = pathlib.Path(harness.BINARY).resolve()
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            if b"train" in words and word.encode() in words and (path / "exe").resolve() == program:
                found.append(int(path.name))
        except OSError:
            continue
    return sorted(found)


class ClusterCase(unittest.TestCase):
    STEPS = 6

    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.folder = pathlib.Path(directory.name)
        cls.environment = {**os.environ, "XDG_CACHE_HOME": str(cls.folder / "cache"),
                           "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
        cls.spec = cls.folder / "spec.yaml"
        cls.spec.write_text(SPEC.format(folder=cls.folder, steps=cls.STEPS))
        (cls.folder / "text.txt").write_text(
            "\n<|endoftext|>\n".join(f"A dog saw {i} cats in the sky." for i in range(400)))
        subprocess.run([harness.BINARY, "tokenizer", "train", cls.folder / "text.txt",
                        "--vocab-size", "300", "--special", "<|endoftext|>",
                        "--out", cls.folder / "tokenizer.json"],
                       check=True, stdout=subprocess.DEVNULL)

    def command(self, name, *words):
        return [harness.BINARY, "train", str(self.spec), f"run_name={name}", *map(str, words)]

    def run_alone(self, name, *words, code=0, env=None):
        return self.finish(self.command(name, *words), code, env)

    def run_ranks(self, n, name, *words, code=0):
        return self.finish([*MPIRUN, "-n", str(n), *self.command(name, *words)], code)

    def finish(self, command, code=0, env=None):
        """Its output, standard error included."""
        done = subprocess.run(command, text=True, check=False, env={**self.environment, **(env or {})},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=harness.PATIENCE_S)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def start_ranks(self, n, name, *words):
        log = open(self.folder / f"{name}.log", "ab")
        self.addCleanup(log.close)
        process = subprocess.Popen([*MPIRUN, "-n", str(n), *self.command(name, *words)],
                                   env=self.environment, stdout=log, stderr=log)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
        process.wait()

    def workers(self, process, n):
        """The processes that train, by rank order of their start. Each has a waiting parent."""
        def children(pid):
            try:
                text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
            except OSError:
                return []
            return [int(word) for word in text.split()]

        deadline = time.monotonic() + harness.PATIENCE_S
        while time.monotonic() < deadline:
            self.assertIsNone(process.poll(), "the run has ended too early")
            found = [child for guard in children(process.pid) for child in children(guard)]
            if len(found) == n:
                return found
            time.sleep(0.01)
        self.fail(f"no {n} ranks")

    def rows(self, name):
        try:
            lines = (self.folder / name / "metrics.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def losses(self, name):
        """The last recorded loss of each step."""
        return {row["step"]: row["learning/loss"] for row in self.rows(name)
                if "learning/loss" in row}

    def weights(self, name):
        return (self.folder / name / "hf" / "model.safetensors").read_bytes()

    def wait_for_step(self, process, name, step):
        deadline = time.monotonic() + harness.PATIENCE_S
        while max(self.losses(name), default=-1) < step:
            if process.poll() is not None:
                return
            self.assertLess(time.monotonic(), deadline, f"step {step} is not reached")
            time.sleep(0.005)
