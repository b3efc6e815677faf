"""Shared by the tests of pipelines: a tiny Gemma 2 with a tokenizer, chats, and the program as
runner.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess

import harness
from harness import ADMIN_KEY, GOLDEN, Case, job_processes

ANIMALS = "dog cat bird frog fox hen cow pig ant bee owl bat".split()
DEEDS = "run jump sing swim eat sleep play dance read dig".split()
SPECIAL = ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>")
TEMPLATE = ("{{ bos_token }}{% for message in messages %}<start_of_turn>"
            "{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
            "{{ message['content'] }}<end_of_turn>\n{% endfor %}"
            "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}")
JOBS = ("scan", "finetune", "params", "test", "export", "serve")


def chats():
    return [{"messages": [{"role": "user", "content": f"what does the {animal} love to do?"},
                          {"role": "assistant", "content": f"I love to {deed}, said the {animal}."}]}
            for animal in ANIMALS for deed in DEEDS]


class PipelineCase(Case):
    def setUp(self):
        super().setUp()
        self.root = self.path / "root"
        self.model = self.root / "gemma-2-tiny"
        self.model.mkdir(parents=True)
        for name in ("config.json", "generation_config.json", "model.safetensors"):
            shutil.copy(GOLDEN / "gemma2-tiny" / name, self.model / name)
        self.chats = self.root / "chats.jsonl"
        self.chats.write_text("".join(json.dumps(row) + "\n" for row in chats()))
        corpus = self.path / "corpus.txt"
        corpus.write_text("\n".join(message["content"] for row in chats()
                                    for message in row["messages"]))
        special = [word for token in SPECIAL for word in ("--special", token)]
        subprocess.run([harness.BINARY, "tokenizer", "train", corpus, "--vocab-size", "300",
                        *special, "-o", self.model / "tokenizer.json"],
                       check=True, capture_output=True)
        (self.model / "tokenizer_config.json").write_text(json.dumps(
            {"bos_token": "<bos>", "eos_token": "<eos>", "add_bos_token": True,
             "chat_template": TEMPLATE}))

    def tearDown(self):
        # A runner's job outlives it by design.
        for pid in self.job_processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        super().tearDown()

    def job_processes(self):
        return job_processes(self.path)

    def environment(self, **more):
        variables = {"TANDEM_ADMIN_KEY": ADMIN_KEY, "XDG_CACHE_HOME": str(self.path / "cache")}
        if self.servers:
            host, port = self.servers[-1].address
            variables["TANDEM_SERVER"] = f"http://{host}:{port}"
        return {**os.environ, **variables, **more}

    def runner(self, spec, *words, **variables):
        """A running `tandem pipeline run`."""
        program = str(pathlib.Path(harness.BINARY).resolve())  # the runner has another working directory
        return subprocess.Popen([program, "pipeline", "run", str(spec), *map(str, words)],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                cwd=self.path, env=self.environment(**variables))

    def run_it(self, spec, *words, code=0, **variables):
        """(standard output, standard error) of a finished runner."""
        runner = self.runner(spec, *words, **variables)
        out, error = runner.communicate(timeout=harness.PATIENCE_S)
        self.assertEqual(runner.returncode, code, out + error)
        return out, error

    def states(self, spec, *words, **variables):
        """The final state of each job."""
        out, _ = self.run_it(spec, "--json", *words, **variables)
        return {name: job["state"] for name, job in json.loads(out)["jobs"].items()}
