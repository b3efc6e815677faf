#!/usr/bin/env python3
"""A served adapter is merged into its base while the server runs, then served as its own model.

`conversion_test.py BINARY [unittest arguments]`
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import harness
from harness import GOLDEN, ROOT, Case

CONVERT = "/admin/convert"
PROMPTS = [s["input_ids"] for s in json.loads(
    (GOLDEN / "gemma2-tiny" / "lora" / "golden" / "golden.json").read_text())["sequences"]]


class Manual(Case):
    def test_its_conversions_do_what_it_says(self):
        text = (ROOT / "config" / "manual" / "convert.md").read_text()
        script = re.search(r"```sh\n(.*?)```", text, re.S)[1]
        (self.path / "bin").mkdir()
        (self.path / "bin" / "tandem").symlink_to(pathlib.Path(harness.BINARY).resolve())
        (self.path / "config").symlink_to(ROOT / "config")
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=self.path, check=False,
                              capture_output=True, text=True,
                              env={"PATH": f"{self.path / 'bin'}:{os.environ['PATH']}",
                                   "XDG_CACHE_HOME": str(self.path / "cache")})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        means = []
        for record in ("stories.gguf.convert.json", "stories-native/convert.json"):
            certificate = json.loads((self.path / record).read_text())["certificate"]
            self.assertEqual(certificate["state"], "measured")
            means.append(certificate["mean_kl"])
        # Instruction sets round differently.
        self.assertAlmostEqual(means[0], 0.0006, delta=0.0002)
        self.assertEqual(means[1], 0)
        self.assertIn("For the GGUF file the mean KL divergence is 0.0006 nats, for the other one 0",
                      " ".join(text.split()))


class ConversionCase(Case):
    def setUp(self):
        super().setUp()
        self.root = self.path / "root"
        shutil.copytree(GOLDEN / "gemma2-tiny", self.root / "base")
        self.start()

    def start(self):
        self.server = self.serve("--model", str(self.root / "base"), "--model-root",
                                 str(self.root), "--dtype", "f32")

    def admin(self, path, body=None, status=200):
        got, headers, answer = self.server.request("GET" if body is None else "POST", path, body,
                                                   admin=True)
        self.assertEqual(got, status, answer)
        return answer, headers

    def convert(self, source, name="merged", status=202, **more):
        target = {"format": "hf", "name": name, **more.pop("target", {})}
        return self.admin(CONVERT, dict({"source": source, "target": target}, **more), status)

    def ended(self, job_id):
        job = {}

        def has_ended():
            job.update(self.admin(f"/admin/jobs/{job_id}")[0])
            return job["status"] in ("succeeded", "failed", "cancelled")

        self.wait_until(f"{job_id} ended", has_ended)
        return job

    def greedy(self, model):
        return [self.server.post("/v1/completions", {
            "model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True})["choices"][0]["token_ids"]
            for prompt in PROMPTS]

    def tandem(self, *arguments):
        return subprocess.run([harness.BINARY, "convert", *map(str, arguments)],
                              capture_output=True, text=True,
                              env={"XDG_CACHE_HOME": str(self.path / "cache")})


class Convert(ConversionCase):
    def test_an_adapter_becomes_a_model_of_the_same_text(self):
        self.admin("/admin/adapters/load", {"name": "tuned", "path": "base/lora"})
        said = self.greedy("tuned")
        self.assertNotEqual(said, self.greedy("base"))

        job, headers = self.convert({"model": "tuned"})

        self.assertEqual(job["type"], "convert")
        self.assertEqual(headers["Location"], f"/admin/jobs/{job['id']}")
        job = self.ended(job["id"])
        self.assertEqual(job["status"], "succeeded", job)
        result = job["result"]
        self.assertEqual((result["path"], result["format"], result["dtype"]),
                         ("merged", "hf", "bf16"))
        self.assertGreater(result["bytes"], 0)
        self.assertGreater(result["tensors"], 0)
        self.assertLessEqual(result["merge"]["max_abs_difference"], result["merge"]["bound"])
        self.assertEqual(job["progress"], 1)
        self.admin("/admin/models/load", {"path": result["path"], "id": "merged", "wait": True})
        self.assertEqual(self.greedy("merged"), said)
        # The name is taken unless overwrite is set; the running model is unaffected.
        answer, _ = self.convert({"model": "tuned"}, status=409)
        self.assertEqual(answer["error"]["code"], "already_exists")
        job, _ = self.convert({"model": "tuned"}, overwrite=True, target={"dtype": "f32"})
        job = self.ended(job["id"])
        self.assertEqual(job["result"]["dtype"], "f32", job)
        self.assertEqual(self.greedy("merged"), said)
        self.admin("/admin/models/load", {"path": "merged", "id": "merged-f32", "wait": True})
        self.assertEqual(self.greedy("merged-f32"), said)
        self.assertEqual(sorted(p.name for p in self.root.iterdir()), ["base", "merged"])

        # The command line writes the same files.
        done = self.tandem(self.root / "base" / "lora", self.path / "by-hand", "--to", "hf",
                           "--base", self.root / "base", "--dtype", "f32")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["tensors"], result["tensors"])
        self.assertEqual((self.path / "by-hand" / "model.safetensors").read_bytes(),
                         (self.root / "merged" / "model.safetensors").read_bytes())

    def test_a_model_is_copied_and_what_is_not_served_is_refused(self):
        job, _ = self.convert({"model": "base"}, name="copy")
        self.assertEqual(self.ended(job["id"])["status"], "succeeded")
        self.admin("/admin/models/load", {"path": "copy", "wait": True})
        self.assertEqual(self.greedy("copy"), self.greedy("base"))
        answer, _ = self.convert({"model": "nobody"}, status=404)
        self.assertEqual(answer["error"]["code"], "model_not_found")
        answer, _ = self.convert({"model": "base"}, target={"format": "tarball"}, status=400)
        self.assertEqual(answer["error"]["code"], "unsupported_value")

        for arguments, code, word in [
                ([self.root / "base", self.root / "copy"], 2, "already exists"),
                ([self.root / "base" / "lora", self.path / "x"], 2, "base"),
                ([self.root / "base", self.path / "x", "--to", "tarball"], 2, "hf, native, native-params, gguf, maxtext"),
                ([self.path / "nowhere", self.path / "x"], 2, "nowhere"),
                ([self.root / "base"], 2, "TARGET")]:
            done = self.tandem(*arguments)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(word, done.stderr)
        self.assertFalse((self.path / "x").exists())

    def test_a_served_model_is_told_apart_from_another_and_the_adapter_says_the_same(self):
        self.admin("/admin/adapters/load", {"name": "tuned", "path": "base/lora"})
        said = self.greedy("tuned")
        job, _ = self.convert({"model": "tuned"}, target={"dtype": "f32"})
        self.assertEqual(self.ended(job["id"])["status"], "succeeded")
        self.admin("/admin/models/load", {"path": "merged", "id": "full", "wait": True})

        job, _ = self.convert({"model": "full", "base": "base"}, name="lora",
                              target={"format": "peft", "rank": 4}, max_kl=1e-6)
        job = self.ended(job["id"])
        self.assertEqual(job["status"], "succeeded", job)
        self.assertLess(job["result"]["peft"]["worst_relative_error"], 1e-5)
        self.admin("/admin/adapters/load", {"name": "again", "path": "lora", "base": "base"})
        self.assertEqual(self.greedy("again"), said)
        # Merged into its base, the adapter gives the model again.
        job, _ = self.convert({"model": "again", "base": "base"}, name="back", target={"dtype": "f32"})
        self.assertEqual(self.ended(job["id"])["status"], "succeeded", job)
        self.admin("/admin/models/load", {"path": "back", "wait": True})
        self.assertEqual(self.greedy("back"), said)
        answer, _ = self.convert({"model": "full", "base": "nobody"}, status=404)
        self.assertEqual((answer["error"]["code"], answer["error"]["param"]),
                         ("model_not_found", "source.base"))
        self.assertIn("nobody", answer["error"]["message"])

    def test_a_stacked_checkpoint_is_served_and_comes_back_the_same_bytes(self):
        job, _ = self.convert({"model": "base"}, name="stacked", target={"format": "native"})
        job = self.ended(job["id"])
        self.assertEqual(job["status"], "succeeded", job)
        self.assertEqual(job["result"]["format"], "native")
        manifest = json.loads((self.root / "stacked" / "manifest.json").read_text())
        self.assertEqual((manifest["kind"], manifest["layout"]), ("params", "stacked"))
        self.admin("/admin/models/load", {"path": "stacked", "wait": True})
        self.assertEqual(self.greedy("stacked"), self.greedy("base"))
        answer, _ = self.convert({"model": "base"}, target={"layout": "scanned"}, status=400)
        self.assertEqual(answer["error"]["param"], "target.layout")

        self.tandem(self.root / "base", self.path / "straight")
        for arguments in (["--unroll", "--to", "native"], ["--to", "params"], ["--to", "hf"]):
            done = self.tandem(self.root / "stacked", self.path / "back", "--overwrite", *arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual((self.path / "back" / "model.safetensors").read_bytes(),
                             (self.path / "straight" / "model.safetensors").read_bytes())
        done = self.tandem(self.root / "base", self.path / "x", "--scan", "--to", "hf")
        self.assertIn("no choice of layout", done.stderr)

    def test_a_model_becomes_one_file_and_a_directory_again(self):
        job, _ = self.convert({"model": "base"}, name="one", target={"format": "gguf", "dtype": "bf16"})
        job = self.ended(job["id"])
        self.assertEqual(job["status"], "succeeded", job)
        result = job["result"]
        self.assertEqual((result["path"], result["format"], result["dtype"]), ("one.gguf", "gguf", "bf16"))
        self.assertEqual(result["gguf"]["relative_rms"], 0)
        self.admin("/admin/models/load", {"path": "one.gguf", "id": "one", "wait": True})
        self.assertEqual(self.greedy("one"), self.greedy("base"))

        done = self.tandem(self.root / "one.gguf", self.root / "again", "--to", "hf", "--dtype", "bf16")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.admin("/admin/models/load", {"path": "again", "wait": True})
        self.assertEqual(self.greedy("again"), self.greedy("base"))
        # Without a tokenizer, the file and the command line say so.
        done = self.tandem(self.root / "base", self.path / "small.gguf", "--to", "gguf", "--dtype", "q8_0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("warning: the model has no tokenizer", done.stderr)
        self.assertGreater(json.loads(done.stdout)["gguf"]["relative_rms"], 0)

    def test_a_cancelled_job_leaves_nothing(self):
        self.admin("/admin/adapters/load", {"name": "tuned", "path": "base/lora"})
        jobs = [self.convert({"model": "tuned"}, name=f"m{i}")[0]["id"] for i in range(4)]
        cancelled = []
        for job in jobs[1:]:
            status, _, _ = self.server.request("POST", f"/admin/jobs/{job}/cancel", {}, admin=True)
            if status == 200:
                cancelled.append(job)
        made = []
        for i, job in enumerate(jobs):
            status = self.ended(job)["status"]
            self.assertIn(status, ("succeeded", "cancelled") if job in cancelled else
                          ("succeeded",))
            if status == "succeeded":
                made.append(f"m{i}")
        self.assertGreater(len(cancelled), 0)
        self.assertEqual(sorted(p.name for p in self.root.iterdir()), ["base", *made])


class Interrupted(ConversionCase):
    """Conversions that are stopped after some writes and before their end."""

    def setUp(self):
        super().setUp()
        self.large = self.root / "large"
        subprocess.run([harness.BINARY, "bench", "make-model", "llama-15m", self.large], check=True,
                       capture_output=True)
        self.part = self.root / "out.part"
        self.held = None

    def tearDown(self):
        for pid in harness.job_processes(self.path):
            os.kill(pid, signal.SIGKILL)
        super().tearDown()

    @staticmethod
    def states(pid):
        try:
            return {(task / "stat").read_text().rsplit(")", 1)[1].split()[0]
                    for task in pathlib.Path(f"/proc/{pid}/task").iterdir()}
        except OSError:
            return set()  # a thread has ended meanwhile

    def hold(self, processes):
        """Stops the process of the conversion into `out`; returns the names of the written tensors."""
        journal = self.part / "journal"
        end = time.monotonic() + harness.PATIENCE_S
        while not (journal.exists() and journal.stat().st_size > 0):
            self.assertLess(time.monotonic(), end, "nothing is written")
            time.sleep(0.001)
        self.held, = processes()
        os.kill(self.held, signal.SIGSTOP)
        # Before all its threads have stopped, a later signal might be handled first.
        self.wait_until("standing still", lambda: self.states(self.held) == {"T"})
        return journal.read_text()  # fails if the conversion had already ended

    def begin(self):
        job, _ = self.convert({"path": "large"}, name="out", target={"format": "native", "dtype": "f32"})
        folder = self.path / "data" / "jobs" / job["id"]
        return job["id"], self.hold(lambda: harness.job_processes(folder))

    def release_when_asked_to_end(self):
        def is_asked():
            status = pathlib.Path(f"/proc/{self.held}/status").read_text()
            pending = int(re.search(r"ShdPnd:\s+(\w+)", status)[1], 16)
            return pending >> (signal.SIGTERM - 1) & 1

        self.wait_until("asked to end", is_asked)
        os.kill(self.held, signal.SIGCONT)

    def act(self, job_id, action):
        return self.admin(f"/admin/jobs/{job_id}/{action}", {})[0]

    def wait_for_status(self, job_id, wanted):
        self.wait_until(wanted, lambda: self.admin(f"/admin/jobs/{job_id}")[0]["status"] == wanted)

    def names(self):
        return sorted(p.name for p in self.root.iterdir())

    def log(self, job_id):
        return (self.path / "data" / "jobs" / job_id / "log.txt").read_text()

    def test_a_server_that_stops_leaves_it_to_the_next(self):
        job_id, written = self.begin()
        self.server.process.send_signal(signal.SIGTERM)
        self.release_when_asked_to_end()
        self.server.process.wait(harness.PATIENCE_S)
        self.server.close()
        self.assertTrue((self.part / "journal").read_text().startswith(written))
        self.assertEqual(self.names(), ["base", "large", "out.part"])

        self.start()
        job = self.ended(job_id)

        self.assertEqual(job["status"], "succeeded", job)
        self.assertEqual(self.log(job_id).count("resuming an interrupted conversion"), 1)
        self.assertNotIn("restart", self.log(job_id))
        self.assertEqual(self.names(), ["base", "large", "out"])
        done = self.tandem(self.large, self.path / "straight", "--to", "native", "--dtype", "f32")
        self.assertEqual(done.returncode, 0, done.stderr)
        file = "model-00001-of-00001.safetensors"
        self.assertEqual((self.root / "out" / file).read_bytes(),
                         (self.path / "straight" / file).read_bytes())

    def test_cancelled_it_leaves_nothing(self):
        job_id, _ = self.begin()
        self.act(job_id, "cancel")
        self.release_when_asked_to_end()
        self.assertEqual(self.ended(job_id)["status"], "cancelled")
        self.assertEqual(self.names(), ["base", "large"])

        # A cancelled conversion without a running process leaves nothing either.
        job_id, _ = self.begin()
        self.act(job_id, "pause")
        self.release_when_asked_to_end()
        self.wait_for_status(job_id, "paused")
        self.assertEqual(self.names(), ["base", "large", "out.part"])
        self.assertEqual(self.act(job_id, "cancel")["status"], "cancelled")
        self.assertEqual(self.names(), ["base", "large"])

    def test_paused_it_goes_on(self):
        job_id, _ = self.begin()
        self.act(job_id, "pause")
        self.release_when_asked_to_end()
        self.wait_for_status(job_id, "paused")
        self.act(job_id, "resume")
        self.assertEqual(self.ended(job_id)["status"], "succeeded")
        self.assertIn("resuming an interrupted conversion", self.log(job_id))
        self.assertEqual(self.names(), ["base", "large", "out"])

    def test_a_cancelled_pipeline_leaves_nothing_of_it(self):
        job, _ = self.admin("/admin/jobs", {"type": "pipeline", "spec": {"name": "small", "jobs": {
            "export": {"kind": "convert", "from": "large", "to": "native", "dtype": "f32",
                       "out": "out"}}}}, status=202)
        folder = self.path / "data" / "jobs" / job["id"] / "jobs" / "export"
        self.hold(lambda: harness.job_processes(folder))
        self.act(job["id"], "cancel")
        self.release_when_asked_to_end()
        self.assertEqual(self.ended(job["id"])["status"], "cancelled")
        self.assertEqual(self.names(), ["base", "large"])

    def test_by_hand_a_stop_leaves_nothing(self):
        process = subprocess.Popen(
            [harness.BINARY, "convert", self.large, self.root / "out", "--to", "native", "--dtype", "f32"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={"XDG_CACHE_HOME": str(self.path / "cache")})
        self.hold(lambda: [process.pid])
        process.send_signal(signal.SIGTERM)
        self.release_when_asked_to_end()
        _, error = process.communicate(timeout=harness.PATIENCE_S)
        self.assertEqual(process.returncode, 130, error)
        self.assertEqual(self.names(), ["base", "large"])


if __name__ == "__main__":
    harness.main()
