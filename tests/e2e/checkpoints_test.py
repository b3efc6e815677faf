#!/usr/bin/env python3
"""Checkpoints of fine-tuning jobs, long rows and large files, end to end.

`checkpoints_test.py BINARY [unittest arguments]`.
"""

import json
import math
import re
import time

import harness
from fine_tuning_test import ANIMALS, MODEL, FineTuningCase, chats

LARGE = 5 << 20  # beyond the part that is validated during a request


def large(rows):
    """The same rows with so many bytes that the job validates them."""
    padding = " " * (LARGE // len(rows))
    return "".join((row if isinstance(row, str) else json.dumps(row)) + padding + "\n"
                   for row in rows)


class CheckpointCase(FineTuningCase):
    def checkpoints(self, server, job_id, query=""):
        status, _, page = server.request("GET",
                                         f"/v1/fine_tuning/jobs/{job_id}/checkpoints{query}")
        self.assertEqual(status, 200, page)
        return page["data"]

    def events(self, server, job_id):
        _, _, page = server.request("GET", f"/v1/fine_tuning/jobs/{job_id}/events?limit=1000")
        return page["data"][::-1]

    def asks(self, model):
        return {"model": model, "max_tokens": 12, "temperature": 0, "seed": 1, "logprobs": True,
                "messages": [{"role": "user", "content": "Tell me a story about a dog."}]}

    def exports(self, job_id):
        return self.path / "data" / "jobs" / job_id / "exports"


class Checkpoints(CheckpointCase):
    def test_every_epoch_answers(self):
        server = self.serve()
        file = self.upload(server, chats())
        valid = self.upload(server, chats(("horse", "goat")))
        job = self.create(server, file, validation_file=valid, suffix="tales", seed=7,
                          method=self.supervised(n_epochs=3, batch_size=4,
                                                 learning_rate_multiplier=50))["id"]
        # The first one is served while the job runs, or just after.
        self.wait_until("a checkpoint", lambda: self.checkpoints(server, job))
        first = self.checkpoints(server, job)[-1]
        early = server.post("/v1/chat/completions", self.asks(first["fine_tuned_model_checkpoint"]))
        done = self.ended(server, job)
        self.assertEqual(done["status"], "succeeded", done)
        name = done["fine_tuned_model"]

        listed = self.checkpoints(server, job)
        self.assertEqual([one["step_number"] for one in listed], [9, 6, 3])
        self.assertEqual([one["fine_tuned_model_checkpoint"] for one in listed],
                         [name, name + ":ckpt-step-6", name + ":ckpt-step-3"])
        metrics = {event["data"]["step"]: event["data"] for event in self.events(server, job)
                   if event["type"] == "metrics" and "train_loss" in event["data"]}
        for one in listed:
            self.assertEqual((one["object"], one["fine_tuning_job_id"]),
                             ("fine_tuning.job.checkpoint", job))
            step = one["step_number"]
            self.assertEqual(one["metrics"]["step"], step)
            for figure in ("train_loss", "train_mean_token_accuracy"):
                self.assertEqual(one["metrics"][figure], metrics[step][figure])
            self.assertTrue(0 <= one["metrics"]["train_mean_token_accuracy"] <= 1)
            self.assertTrue(0 <= one["metrics"]["valid_mean_token_accuracy"] <= 1)
            self.assertTrue(math.isfinite(one["metrics"]["valid_loss"]))
            self.assertEqual(one["metrics"]["full_valid_loss"], one["metrics"]["valid_loss"])
        self.assertEqual(len({one["id"] for one in listed}), 3)
        self.assertEqual([one["step_number"] for one in self.checkpoints(
            server, job, "?limit=1&after=" + listed[0]["id"])], [6])
        self.assertIn("Checkpoint created at step 3: " + name + ":ckpt-step-3",
                      [event["message"] for event in self.events(server, job)])
        _, _, table = server.request("GET", f"/v1/files/{done['result_files'][0]}/content")
        rows = [row.split(",") for row in table.splitlines()[1:]]
        trained = [row for row in rows if row[1]]
        self.assertEqual([row[0] for row in trained], [str(step) for step in range(1, 10)])
        for row in trained:
            self.assertEqual(float(row[2]), metrics[int(row[0])]["train_mean_token_accuracy"])
        self.assertEqual([row[0] for row in rows if row[3]], ["3", "6", "9"])

        answers = {}
        for one in listed:
            model = one["fine_tuned_model_checkpoint"]
            answer = server.post("/v1/chat/completions", self.asks(model))
            self.assertEqual(answer["model"], model)
            answers[model] = answer["choices"]
        self.assertEqual(answers[name + ":ckpt-step-3"], early["choices"])
        self.assertNotEqual(answers[name + ":ckpt-step-3"], answers[name])
        _, _, model = server.request("GET", f"/v1/models/{name}:ckpt-step-6")
        self.assertEqual((model["parent"], model["owned_by"]), (MODEL, "user"))

        # After a restart they are listed, although nothing has loaded them.
        self.assertEqual(server.stop(), 0)
        server = self.serve()
        self.assertEqual(self.checkpoints(server, job), listed)
        for model, choices in answers.items():
            self.assertEqual(server.post("/v1/chat/completions", self.asks(model))["choices"],
                             choices)

        # One checkpoint is deleted alone, loaded or not; the others with the result.
        self.assertEqual(server.request("DELETE", f"/v1/models/{name}:ckpt-step-3")[0], 200)
        self.assertEqual(server.request("POST", "/v1/chat/completions",
                                        self.asks(name + ":ckpt-step-3"))[0], 404)
        self.assertEqual(server.request("DELETE", f"/v1/models/{name}:ckpt-step-3")[0], 404)
        self.assertEqual([one["step_number"] for one in self.checkpoints(server, job)], [9, 6])
        self.assertTrue(self.exports(job).exists())
        self.assertEqual(server.request("DELETE", f"/v1/models/{name}")[0], 200)
        self.assertFalse(self.exports(job).exists())
        self.assertEqual(self.checkpoints(server, job), [])
        for model in (name, name + ":ckpt-step-6", name + ":ckpt-step-4"):
            self.assertEqual(server.request("POST", "/v1/chat/completions",
                                            self.asks(model))[0], 404)

    def test_whole_models_load_when_they_are_asked_for(self):
        server = self.serve()
        file = self.upload(server, chats())
        job = self.create(server, file, method=self.supervised(
            n_epochs=2, batch_size=6, lora=False, checkpoint_every=1))["id"]
        done = self.ended(server, job)
        self.assertEqual(done["status"], "succeeded", done)
        listed = self.checkpoints(server, job)
        self.assertEqual([one["step_number"] for one in listed], [4, 3, 2, 1])
        name = listed[1]["fine_tuned_model_checkpoint"]

        def answers():
            status, headers, answer = server.request("POST", "/v1/chat/completions",
                                                     self.asks(name))
            if status == 503:
                self.assertEqual(answer["error"]["code"], "model_loading", answer)
                self.assertIn("retry-after", {key.lower() for key in dict(headers)})
            return status == 200
        self.wait_until("loaded", answers)
        _, _, model = server.request("GET", f"/v1/models/{name}")
        self.assertEqual((model["parent"], model["owned_by"]), (MODEL, "user"))
        self.assertEqual(server.request("DELETE", f"/v1/models/{name}")[0], 200)
        self.assertEqual(server.request("POST", "/v1/chat/completions", self.asks(name))[0], 404)

    def test_a_checkpoint_is_a_beginning(self):
        server = self.serve()
        file = self.upload(server, chats())
        job = self.create(server, file, method=self.supervised(n_epochs=2, batch_size=12))["id"]
        done = self.ended(server, job)
        name = done["fine_tuned_model"] + ":ckpt-step-1"
        again = self.create(server, file, model=name, suffix="again",
                            method=self.supervised(n_epochs=50, batch_size=1))["id"]
        # The starting model of a job stays as long as the job may restart.
        for model in (name, done["fine_tuned_model"]):
            status, _, answer = server.request("DELETE", f"/v1/models/{model}")
            self.assertEqual((status, answer["error"]["code"]), (409, "in_use"), answer)
        self.chat(server, done["fine_tuned_model"])
        server.request("POST", f"/v1/fine_tuning/jobs/{again}/cancel", {})
        self.assertEqual(self.ended(server, again)["status"], "cancelled")
        self.assertEqual(server.request("DELETE", f"/v1/models/{done['fine_tuned_model']}")[0], 200)

    def test_a_stopped_server_loses_none(self):
        server = self.serve()
        file = self.upload(server, chats())
        job = self.create(server, file, seed=3,
                          method=self.supervised(n_epochs=8, batch_size=2))["id"]
        for count in (1, 3):
            self.wait_until("checkpoints", lambda: len(self.checkpoints(server, job)) >= count)
            if count == 1:
                self.assertEqual(server.stop(), 0)
            else:
                server.kill()
            server = self.serve()
        done = self.ended(server, job)
        self.assertEqual(done["status"], "succeeded", done)
        self.assertEqual([one["step_number"] for one in self.checkpoints(server, job)],
                         list(range(48, 0, -6)))
        steps = [event["data"]["step"] for event in self.events(server, job)
                 if event["type"] == "metrics" and "train_loss" in event["data"]]
        self.assertEqual(steps, list(range(1, 49)))


class Files(CheckpointCase):
    def test_what_becomes_of_long_rows_is_an_event(self):
        server = self.serve()
        rows = chats()
        rows[3]["messages"][1]["content"] += " The frog ran home." * 40
        file = self.upload(server, rows)
        for over_length, fate in (("truncate_left", "truncated to their ends"),
                                  ("drop", "skipped"), ("split", "split")):
            job = self.create(server, file, method=self.supervised(
                max_steps=1, batch_size=1, seq_len=64, over_length=over_length))
            self.assertEqual(job["hyperparameters"]["over_length"], over_length)
            self.assertEqual(self.ended(server, job["id"])["status"], "succeeded")
            warnings = [event["message"] for event in self.events(server, job["id"])
                        if event["level"] == "warn" and "longer than" in event["message"]]
            self.assertEqual(len(warnings), 1, warnings)
            self.assertIn(f"1 of {len(rows)} rows longer than 64 tokens: {fate}", warnings[0])
        default = self.create(server, file, method=self.supervised(max_steps=1, seq_len=64))
        self.assertEqual(default["hyperparameters"]["over_length"], "truncate_left")
        server.request("POST", f"/v1/fine_tuning/jobs/{default['id']}/cancel", {})
        place = "method.supervised.hyperparameters.over_length"
        message = self.refused(server, {"model": MODEL, "training_file": file,
                                        "method": self.supervised(over_length="error", seq_len=64)},
                               "training_file", "invalid_training_file")
        self.assertIn("line 4:", message)
        self.refused(server, {"model": MODEL, "training_file": file,
                              "method": self.supervised(over_length="cut")}, place)

    def test_large_files_are_validated_by_the_job(self):
        server = self.serve()
        good = self.upload(server, large(chats()))
        job = self.create(server, good, method=self.supervised(max_steps=1, seq_len=128))
        self.assertEqual(job["status"], "validating_files")
        seen = set()
        deadline = time.monotonic() + harness.PATIENCE_S
        while "succeeded" not in seen and time.monotonic() < deadline:
            seen.add(self.job(server, job["id"])["status"])
            self.assertLessEqual(seen, {"validating_files", "running", "succeeded"})
            time.sleep(0.02)
        self.assertIn("succeeded", seen)

        rows = [json.dumps(row) for row in chats(ANIMALS * 2)]
        for i in range(6, 20):
            rows[i] = '{"messages": []}'
        bad = self.upload(server, large(rows))
        job = self.create(server, bad, method=self.supervised(max_steps=1, seq_len=128))
        self.assertEqual(job["status"], "validating_files")
        failed = self.ended(server, job["id"])
        self.assertEqual(failed["status"], "failed")
        error = failed["error"]
        self.assertEqual((error["code"], error["param"]), ("invalid_training_file", "training_file"))
        self.assertTrue(error["message"].startswith("line 7: "), error)
        self.assertEqual(len(re.findall(r"(?:^|; )line \d+: ", error["message"])), 10, error)
        self.assertTrue(error["message"].endswith("; and 4 more"), error)
        self.assertNotIn(str(self.path), error["message"])
        self.assertEqual(self.events(server, job["id"])[-1]["message"], error["message"])

        job = self.create(server, good, validation_file=bad,
                          method=self.supervised(max_steps=1, seq_len=128))
        error = self.ended(server, job["id"])["error"]
        self.assertEqual((error["code"], error["param"]),
                         ("invalid_training_file", "validation_file"))


if __name__ == "__main__":
    harness.main()
