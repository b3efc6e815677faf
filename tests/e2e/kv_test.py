#!/usr/bin/env python3
"""End-to-end tests of keys and values on disk and in int8, and of draft models.

`kv_test.py BINARY [unittest arguments]`.
"""

import pathlib
import subprocess

import harness
from harness import GOLDEN, story

LONG = "Once there was a dog named Max. " * 12


class CacheDir(harness.Case):
    def ask(self, server):
        answer = server.post("/v1/completions", {"model": "tandem-stories", "prompt": LONG, "temperature": 0,
                                                 "max_tokens": 30})
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return answer["choices"][0]["text"], cached

    def written(self, server):
        text = server.request("GET", "/metrics")[2]
        return sum(float(line.split()[-1]) for line in text.splitlines()
                   if line.startswith("tandem:prefix_cache_disk_blocks_written_total{"))

    def test_prefixes_survive_a_kill(self):
        folder = self.path / "prefixes"
        first = self.serve("--cache-dir", str(folder))
        text, cached = self.ask(first)
        self.assertEqual(cached, 0)
        self.wait_until("blocks on disk", lambda: self.written(first) >= 4)
        first.kill()
        again = self.serve("--cache-dir", str(folder))
        text_again, cached = self.ask(again)
        self.assertEqual(text_again, text)
        self.assertGreater(cached, 40)
        self.assertEqual(folder.stat().st_mode & 0o777 & 0o022, 0)
        self.assertEqual(again.stop(), 0)
        # Damage every file: the answers stay, and one line tells.
        files = [path for path in folder.rglob("*") if path.is_file()]
        self.assertGreater(len(files), 4)
        for path in files:
            path.write_bytes(path.read_bytes()[:-3] + b"bad")
        third = self.serve("--cache-dir", str(folder))
        self.assertEqual(self.ask(third), (text, 0))
        self.assertEqual(third.stop(), 0)
        log = (self.path / "server.log").read_text()
        self.assertEqual(log.count("prefix_cache_file_unusable"), 1)

    def test_a_directory_that_cannot_be_used_costs_the_cache_only(self):
        blocked = self.path / "file"
        blocked.write_text("not a directory")
        server = self.serve("--cache-dir", str(blocked))
        self.assertTrue(self.ask(server)[0])
        self.assertIn("prefix_cache_not_on_disk", (self.path / "server.log").read_text())


class DraftModel(harness.Case):
    def test_the_model_itself_guesses_right_and_changes_nothing(self):
        plain = self.serve()
        requests = [story(temperature=0), story(temperature=0.9, seed=7, logprobs=True)]
        wanted = [plain.post("/v1/chat/completions", request) for request in requests]
        self.assertEqual(plain.stop(), 0)
        server = self.serve("--draft-model", "tandem-stories")
        for request, want in zip(requests, wanted):
            answer = server.post("/v1/chat/completions", request)
            self.assertEqual(answer["choices"], want["choices"])
            details = answer["usage"]["completion_tokens_details"]
            self.assertGreater(details["accepted_prediction_tokens"], 0)
        metrics = server.request("GET", "/metrics")[2]
        self.assertIn("spec_decode_draft_passes_total", metrics)

    def refusal(self, *arguments):
        done = subprocess.run([harness.BINARY, "serve", "--port", "0", "--data-dir", str(self.path / "data"), *arguments],
                              capture_output=True, text=True, check=False, timeout=harness.PATIENCE_S)
        self.assertNotEqual(done.returncode, 0)
        return done.stderr

    def test_another_vocabulary_and_an_unknown_name_are_refused_by_name(self):
        other = GOLDEN / "llama2-tiny-two-shards"
        message = self.refusal("--draft-model", str(other))
        self.assertIn("tandem-stories", message)
        self.assertIn(pathlib.Path(other).name, message)
        message = self.refusal("--draft-model", f"elsewhere={other}")
        self.assertIn("no --model has the name 'elsewhere'", message)


class Int8(harness.Case):
    def test_keys_in_int8_answer_and_say_so(self):
        server = self.serve("--kv-dtype", "int8")
        answer = server.post("/v1/chat/completions", story(temperature=0))
        self.assertGreater(answer["usage"]["completion_tokens"], 5)
        again = server.post("/v1/chat/completions", story(temperature=0))
        self.assertEqual(again["choices"], answer["choices"])
        self.assertIn('cache_dtype="int8"', server.request("GET", "/metrics")[2])


if __name__ == "__main__":
    harness.main()
