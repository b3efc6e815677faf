#!/usr/bin/env python3
"""The demo's five steps on a tiny Gemma 2: run, killed, changed, refused, and as a server's job.

`pipeline_test.py BINARY [unittest arguments]`
"""

import http.client
import json
import os
import signal
import time

import harness
from harness import ADMIN_KEY, PATIENCE_S, ROOT
from pipeline_case import JOBS, PipelineCase

PRESET = ROOT / "config" / "presets" / "pipelines" / "gemma2-demo.yaml"
STEPS = 40
# The preset's training at a small size.
SMALL = [f"jobs.finetune.{word}" for word in (
    f"steps={STEPS}", "max_target_length=64", "per_device_batch_size=4", "checkpoint_period=5",
    "log_period=1", "learning_rate=3.0e-3", "max_num_checkpoints_to_keep=50")]
QUESTION = "what does the dog love to do?"


class Pipeline(PipelineCase):
    def variables(self, name="demo"):
        """The demo's variables for a directory of this name."""
        base = self.root / name
        return {"MODEL_NAME": f"tiny-{name}", "CHECKPOINT_ID": "20260101-000000",
                "MODEL_PATH": str(self.model), "TOKENIZER_PATH": str(self.model),
                "DATASET_PATH": str(self.chats), "OUTPUT_DIR": str(base / "finetuned"),
                "SCANNED_CKPT_BASE_DIR": str(base / "scanned"),
                "HF_OUTPUT_BASE_DIR": str(base / "hf"), "PIPELINE_DIR": str(base / "pipeline"),
                "TANDEM_MODEL_ROOT": str(self.root)}

    def words(self):
        return [*SMALL, f"jobs.serve.chat={QUESTION}", "jobs.serve.max_tokens=16"]

    def made(self, name="demo"):
        """The exported weights of a pipeline, and the texts of its jobs test and serve."""
        base = self.root / name
        return ((base / "hf" / f"tiny-{name}" / "model.safetensors").read_bytes(),
                (base / "pipeline" / "jobs" / "test" / "text.txt").read_bytes(),
                (base / "pipeline" / "jobs" / "serve" / "text.txt").read_bytes())

    def chat(self, model):
        events, is_done = self.servers[-1].stream("/v1/chat/completions", {
            "model": model, "max_tokens": 16, "temperature": 0,
            "messages": [{"role": "user", "content": QUESTION}]})
        self.assertTrue(is_done)
        return "".join(choice["delta"].get("content") or "" for event in events
                       for choice in event["choices"])

    def start_server(self):
        return self.serve("--model-root", str(self.root))

    def test_runs_the_demo_and_goes_on_after_a_kill_at_every_step(self):
        server = self.start_server()
        begin = time.monotonic()
        out, _ = self.run_it(PRESET, "--json", *self.words(), **self.variables())
        print(f"the demo took {time.monotonic() - begin:.1f} s", flush=True)
        summary = json.loads(out)
        self.assertEqual([(name, job["state"]) for name, job in summary["jobs"].items()],
                         [(name, "done") for name in JOBS])
        # The test's text equals the reply to any client.
        said = self.made()[2].decode().rstrip("\n")
        self.assertTrue(said)
        self.assertEqual(self.chat("tiny-demo"), said)
        self.assertEqual(summary["jobs"]["serve"]["result"]["text"], said)
        self.assertIn("I love to", said)  # the training had an effect

        # Kills every step in turn; every second time the step's own process continues alone.
        where = self.variables("killed")
        for i, job in enumerate(JOBS):
            runner = self.runner(PRESET, *self.words(), **where)
            seen = []
            for line in runner.stdout:
                seen.append(line)
                if line.startswith(f"{job}: starts") and job != "finetune":
                    break
                if line.startswith(f"{job}: completed step: 12"):
                    break
            else:
                self.fail("".join(seen) + runner.stderr.read())
            runner.kill()
            if i % 2 == 1:
                for pid in self.job_processes():
                    os.kill(pid, signal.SIGKILL)
            runner.communicate()
            with self.subTest(killed_at=job):
                for done in JOBS[:max(i - 1, 0)]:
                    self.assertIn(f"{done}: unchanged, already done\n", seen)
        out, _ = self.run_it(PRESET, *self.words(), **where)
        self.assertIn("serve: done", out)
        self.assertEqual(self.made("killed"), self.made())
        self.assertEqual(self.chat("tiny-killed"), said)
        self.assertEqual(self.job_processes(), [])
        litter = [str(path) for path in (self.root / "killed").rglob("*")
                  if any(mark in path.name for mark in (".tmp", ".part", ".next-", ".trash-"))]
        self.assertEqual(litter, [])
        self.assertEqual(server.stop(), 0)

    def test_does_again_only_what_has_changed(self):
        self.start_server()
        where = self.variables()
        states = lambda *words: self.states(PRESET, *self.words(), *words, **where)
        self.assertEqual(set(states().values()), {"done"})
        before = self.made()
        self.assertEqual(set(states().values()), {"unchanged"})

        changed = states("jobs.export.dtype=f32")
        self.assertEqual(changed, {**dict.fromkeys(JOBS, "unchanged"), "export": "done",
                                   "serve": "done"})
        self.assertGreater(len(self.made()[0]), 1.5 * len(before[0]))
        # The spec decides, not the last output: the old spec gives the old output.
        self.assertEqual(states()["export"], "done")
        self.assertEqual(self.made(), before)
        # Resources do not affect results, so a change of them runs nothing again.
        self.assertEqual(set(states("jobs.finetune.resources.threads=1").values()), {"unchanged"})
        # A missing output is made again, with everything that depends on it.
        (self.root / "demo" / "pipeline" / "jobs" / "test" / "text.txt").unlink()
        self.assertEqual(states(), {**dict.fromkeys(JOBS, "unchanged"), "test": "done"})
        (self.root / "demo" / "hf" / "tiny-demo" / "model.safetensors").unlink()
        self.assertEqual(states(), {**dict.fromkeys(JOBS, "unchanged"), "export": "done",
                                    "serve": "done"})
        # Changed data: every step but the first runs again.
        self.chats.write_text(self.chats.read_text().replace("the dog", "the dogs"))
        plan, _ = self.run_it(PRESET, "--dry-run", *self.words(), **where)
        self.assertIn("scan (convert): unchanged", plan)
        self.assertIn("finetune (train.sft) after scan: has changed, runs again", plan)
        self.assertEqual(states("--only", "scan"),
                         {**dict.fromkeys(JOBS, "not_run"), "scan": "unchanged"})
        self.assertEqual(states(), {**dict.fromkeys(JOBS, "done"), "scan": "unchanged"})
        self.assertNotEqual(self.made()[0], before[0])
        self.assertTrue((self.root / "demo" / "finetuned" / "20260101-000000" / "run.old").is_dir())
        # A new server without the model gets it loaded.
        self.servers[-1].stop()
        self.start_server()
        self.assertEqual(states(), {**dict.fromkeys(JOBS, "unchanged"), "serve": "done"})

    def test_stops_when_told_and_says_what_failed(self):
        where = self.variables()
        words = [*self.words(), "jobs.finetune.steps=4000", "jobs.finetune.log_period=100"]
        runner = self.runner(PRESET, *words, **where)
        for line in runner.stdout:
            if line.startswith("finetune: completed step: 100"):
                break
        runner.send_signal(signal.SIGTERM)
        out, error = runner.communicate(timeout=PATIENCE_S)
        self.assertEqual(runner.returncode, 75, out + error)
        self.assertIn("the same command resumes it", out)
        self.assertEqual(self.job_processes(), [])
        plan, _ = self.run_it(PRESET, "--dry-run", *words, **where)
        self.assertIn("finetune (train.sft) after scan: resumes", plan)

        # Other words mean another training. No server runs.
        out, error = self.run_it(PRESET, *self.words(), code=1, TANDEM_SERVER="http://127.0.0.1:9",
                                 **where)
        self.assertIn("finetune: has changed and runs again", out)
        self.assertIn("job serve failed: ", error)
        self.assertIn("start a server there", error)
        # A server that may not read the model.
        elsewhere = self.path / "elsewhere"
        elsewhere.mkdir()
        self.serve("--model-root", str(elsewhere))
        _, error = self.run_it(PRESET, *self.words(), code=2, **where)
        self.assertIn("--model-root", error)
        _, error = self.run_it(PRESET, *self.words(), code=2,
                               **{**where, "TANDEM_MODEL_ROOT": str(elsewhere)})
        self.assertIn("model_root", error)
        _, error = self.run_it(PRESET, *self.words(), code=1,
                               **{**where, "TANDEM_ADMIN_KEY": "another"})
        self.assertIn("TANDEM_ADMIN_KEY", error)

        # A folder that the pipeline did not create is not overwritten.
        where = self.variables("taken")
        (self.root / "taken" / "scanned" / "tiny-taken").mkdir(parents=True)
        _, error = self.run_it(PRESET, *self.words(), code=1, **where)
        self.assertIn("this pipeline did not create it", error)
        # The job's own error and exit code.
        self.chats.write_text("{}\n")
        where = self.variables("bad")
        _, error = self.run_it(PRESET, *self.words(), code=2, **where)
        self.assertIn("job finetune failed: ", error)
        self.assertIn("chats.jsonl", error)
        os.truncate(self.model / "model.safetensors", 1000)
        _, error = self.run_it(PRESET, *self.words(), code=65, **where)
        self.assertIn("job scan failed: ", error)
        self.assertIn("model.safetensors", error)
        _, error = self.run_it(PRESET, "--only", "export", *self.words(), code=1, **where)
        self.assertIn("needs finetune, which is not done", error)

    def test_refuses_specs_with_what_is_wrong_and_where(self):
        spec = self.path / "p.yaml"

        def refused(text, *wanted, words=(), code=2):
            spec.write_text(text)
            _, error = self.run_it(spec, *words, code=code)
            for part in wanted:
                self.assertIn(part, error)

        refused("jobs:\n  a: {kind: generate, model: m, prompt: p, needs: [b]}\n"
                "  b: {kind: generate, model: m, prompt: p, needs: [a]}\n",
                "p.yaml:2", "circle: a needs b needs a")
        refused("jobs:\n  train: {kind: generate, model: m, prompt: p}\n"
                "  b:\n    kind: generate\n    model: m\n    prompt: p\n    needs: [trian]\n",
                "p.yaml:7: jobs.b.needs: the pipeline has no job 'trian'", "did you mean train?")
        refused("jobs:\n  a:\n    kind: convert\n    form: x\n    to: hf\n",
                "p.yaml:4: jobs.a.form: unknown key of a convert; did you mean from?",
                "jobs.a.from: must be given")
        refused("jobs:\n  a: {kind: convret}\n", "jobs.a.kind: must be one of",
                "got 'convret'", "train.sft")
        refused("jobs:\n  a:\n    kind: convert\n    from: ${NOBODY_SET_THIS}\n    to: hf\n",
                "p.yaml:4: jobs.a.from: environment variable NOBODY_SET_THIS is not set")
        refused("jobs:\n  a:\n    kind: convert\n    from: ${jobs.b.out}\n    to: hf\n",
                "${jobs.b.out}: the pipeline has no job 'b'")
        refused(f"jobs:\n  a: {{kind: convert, from: {self.model}, to: hf}}\n"
                "  b:\n    kind: convert\n    from: ${jobs.a.oud}\n    to: hf\n",
                "p.yaml:5", "did you mean ${jobs.a.out}?")
        refused(f"jobs:\n  a: {{kind: convert, from: {self.model}, to: hff}}\n", "p.yaml:2", "hff")
        refused("jobs:\n  a: {kind: convert, from: nowhere, to: hf}\n", "nowhere", code=1)
        refused("jobs:\n  a: {kind: train.sft, stepz: 3}\n", "stepz: unknown key", "steps")
        refused("jobs:\n  a: {kind: load, model: m}\n  a: {kind: load, model: m}\n",
                "p.yaml:3: jobs.a: two jobs have this name")
        refused("job:\n  a: {kind: load}\n", "'job': unknown key; did you mean jobs?")
        refused("jobs: {a: {kind: load, model: m}}", "the pipeline has no job 'b'; did you mean a?",
                words=["jobs.b.model=x"])
        refused("jobs: [", "p.yaml:1")
        self.assertFalse((self.path / "pipelines").exists())


class ServersJob(PipelineCase):
    def setUp(self):
        super().setUp()
        self.server = self.serve("--model-root", str(self.root))

    def spec(self, steps=STEPS):
        return {"name": "tiny", "jobs": {
            "finetune": {"kind": "train.sft", "load_parameters_path": "gemma-2-tiny",
                         "data": {"train": "chats.jsonl", "max_target_length": 64},
                         "steps": steps, "per_device_batch_size": 4, "checkpoint_period": 50,
                         "learning_rate": 3e-3},
            "test": {"kind": "generate", "model": "${jobs.finetune.out}", "prompt": "I love to"},
            "export": {"kind": "convert", "from": "${jobs.finetune.out}", "to": "hf",
                       "out": "exported"},
            "serve": {"kind": "load", "model": "${jobs.export.out}", "needs": ["test"],
                      "alias": "newest"}}}

    def post(self, spec, status=202, **more):
        got, headers, answer = self.server.request(
            "POST", "/admin/jobs", {"type": "pipeline", "spec": spec, **more}, admin=True)
        self.assertEqual(got, status, answer)
        return answer

    def job(self, job_id):
        return self.server.request("GET", f"/admin/jobs/{job_id}", admin=True)[2]

    def log(self, job_id):
        return self.server.request("GET", f"/admin/jobs/{job_id}/log", admin=True)[2]

    def ended(self, job_id, *wanted):
        wanted = wanted or ("succeeded", "failed", "cancelled")
        self.wait_until(f"{job_id} {wanted}", lambda: self.job(job_id)["status"] in wanted)
        return self.job(job_id)

    def act(self, job_id, action):
        status, _, answer = self.server.request("POST", f"/admin/jobs/{job_id}/{action}", {},
                                                admin=True)
        self.assertEqual(status, 200, answer)

    def follow(self, job_id):
        connection = http.client.HTTPConnection(*self.server.address, timeout=PATIENCE_S)
        connection.request("GET", f"/admin/jobs/{job_id}/log?follow=true",
                           headers={"Authorization": f"Bearer {ADMIN_KEY}"})
        text = connection.getresponse().read().decode()
        connection.close()
        return text

    def test_trains_exports_and_serves(self):
        plan = self.post(self.spec(), status=200, dry_run=True)
        self.assertEqual([job["name"] for job in plan["jobs"]],
                         ["finetune", "test", "export", "serve"])
        self.assertEqual(plan["jobs"][2]["needs"], ["finetune"])
        job_id = self.post(self.spec())["id"]
        log = self.follow(job_id)
        self.assertIn("finetune: completed step: 10", log)
        self.assertIn("export: done in", log)
        job = self.ended(job_id)
        self.assertEqual((job["status"], job["progress"], job["type"]), ("succeeded", 1, "pipeline"),
                         job)
        self.assertEqual(job["result"]["models"], ["tiny"])
        self.assertEqual(job["result"]["jobs"]["export"]["state"], "done")
        self.assertTrue((self.root / "exported" / "model.safetensors").is_file())
        for model in ("tiny", "newest"):
            events, is_done = self.server.stream("/v1/chat/completions", {
                "model": model, "max_tokens": 16, "temperature": 0,
                "messages": [{"role": "user", "content": "what does the dog love to do?"}]})
            self.assertTrue(is_done)
            text = "".join(choice["delta"].get("content") or "" for event in events
                           for choice in event["choices"])
            self.assertIn("I love to", text)
        # The name is taken, unless overwriting is allowed.
        answer = self.post(self.spec(), status=409)
        self.assertEqual(answer["error"]["param"], "spec.jobs.serve.id")
        again = self.spec()
        again["jobs"]["serve"]["replace"] = True
        answer = self.post(again, status=409)
        self.assertEqual(answer["error"]["param"], "spec.jobs.export.out")
        again["jobs"]["export"].pop("out")
        self.assertEqual(self.ended(self.post(again)["id"])["status"], "succeeded")
        self.assertEqual(self.job_processes(), [])

    def test_pauses_goes_on_after_kills_and_is_cancelled(self):
        spec = self.spec(steps=1500)
        job_id = self.post(spec)["id"]
        step = lambda: self.log(job_id).rfind("finetune: completed step: ")
        self.wait_until("steps", lambda: step() >= 0)
        self.act(job_id, "pause")
        self.ended(job_id, "paused")
        self.assertEqual(self.job_processes(), [])
        self.act(job_id, "resume")
        self.wait_until("processes", lambda: len(self.job_processes()) == 2)
        for pid in self.job_processes():
            os.kill(pid, signal.SIGKILL)
        self.wait_until("processes", lambda: len(self.job_processes()) == 2)
        # The server ends; its job continues.
        self.server.kill()
        self.server = self.serve("--model-root", str(self.root))
        job = self.ended(job_id)
        self.assertEqual(job["status"], "succeeded", job)
        self.assertIn("resumes", self.log(job_id))
        self.assertIn("tiny", [model["id"] for model in
                               self.server.request("GET", "/v1/models")[2]["data"]])

        spec["jobs"]["serve"]["id"] = "other"
        spec["jobs"]["export"]["out"] = "other"
        job_id = self.post(spec)["id"]
        self.wait_until("steps", lambda: step() >= 0)
        self.act(job_id, "cancel")
        self.assertEqual(self.ended(job_id)["status"], "cancelled")
        self.wait_until("no process", lambda: not self.job_processes())
        self.assertFalse((self.root / "other").exists())

    def test_refuses_what_is_wrong_or_leaves_the_root(self):
        def refused(param, change, status=400):
            spec = self.spec()
            change(spec, spec["jobs"])
            answer = self.post(spec, status=status)
            self.assertEqual(answer["error"]["param"], param, answer)
            return answer["error"]["message"]

        def put(job, **keys):
            return lambda spec, jobs: jobs[job].update(keys)

        self.assertIn("did you mean from", refused("spec.jobs.export.form",
                                                   put("export", form="x")))
        refused("spec.jobs.export.from", put("export", **{"from": "../x"}))
        refused("spec.jobs.export.from", put("export", **{"from": "/etc"}))
        refused("spec.jobs.export.from", put("export", **{"from": "nowhere"}), status=404)
        refused("spec.jobs.export.out", put("export", out="../x"))
        refused("spec.jobs.finetune.load_parameters_path",
                put("finetune", load_parameters_path="/etc"))
        refused("spec.jobs.finetune.data.train", put("finetune", data={"train": "../../x"}))
        refused("spec.jobs.finetune.spec", put("finetune", spec="x.yaml"))
        refused("spec.jobs.finetune.base_config", put("finetune", base_config="x.yaml"))
        refused("spec.jobs.test.prompt", put("test", prompt="${HOME}"))
        refused("spec.jobs.serve.server", put("serve", server="http://127.0.0.1:1"))
        refused("spec.jobs.more.needs", lambda spec, jobs: jobs.update(
            more={"kind": "generate", "model": "gemma-2-tiny", "prompt": "p", "needs": ["serve"]}))
        refused("spec", put("test", needs=["serve"]))  # and serve needs test
        refused("spec.dir", lambda spec, jobs: spec.update(dir="x"))
        refused("spec.jobs.more.model.chat_template", lambda spec, jobs: jobs.update(
            more={"kind": "eval", "model": "gemma-2-tiny", "data": "chats.jsonl",
                  "model.chat_template": "/etc/passwd"}))
        self.assertIn("stepz", refused("spec.jobs.finetune.stepz", put("finetune", stepz=1)))
        _, _, page = self.server.request("GET", "/admin/jobs?type=pipeline", admin=True)
        self.assertEqual(page["data"], [])


if __name__ == "__main__":
    harness.main()
