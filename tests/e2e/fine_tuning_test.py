#!/usr/bin/env python3
"""The fine-tuning API, end to end on the embedded model.

`fine_tuning_test.py BINARY [unittest arguments]`.
"""

import hashlib
import http.client
import json
import pathlib

import harness
from harness import PATIENCE_S, Case

MODEL = "tandem-stories"
ANIMALS = ("dog", "cat", "bird", "frog", "fox", "hen", "cow", "pig", "ant", "bee", "owl", "bat")
REQUIRED = {"id", "object", "created_at", "finished_at", "model", "fine_tuned_model",
            "organization_id", "status", "hyperparameters", "method", "training_file",
            "validation_file", "result_files", "trained_tokens", "error", "seed",
            "estimated_finish", "integrations", "metadata"}


def chats(animals=ANIMALS):
    return [{"messages": [{"role": "user", "content": f"Tell me a story about a {animal}."},
                          {"role": "assistant", "content": f"Once there was a {animal}."}]}
            for animal in animals]


class FineTuningCase(Case):
    def upload(self, server, rows, purpose="fine-tune", name="x.jsonl"):
        text = rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows)
        body = ('--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n' + purpose +
                '\r\n--b\r\nContent-Disposition: form-data; name="file"; filename="' + name +
                '"\r\n\r\n' + text + "\r\n--b--\r\n").encode()
        connection = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
        connection.request("POST", "/v1/files", body,
                           {"Content-Type": "multipart/form-data; boundary=b"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        self.assertEqual(response.status, 200, answer)
        return answer["id"]

    def create(self, server, file, **more):
        return server.post("/v1/fine_tuning/jobs", dict({"model": MODEL, "training_file": file},
                                                        **more))

    def supervised(self, **hyperparameters):
        return {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}

    def job(self, server, job_id):
        status, _, job = server.request("GET", f"/v1/fine_tuning/jobs/{job_id}")
        self.assertEqual(status, 200, job)
        return job

    def ended(self, server, job_id):
        self.wait_until("ended", lambda: self.job(server, job_id)["status"] in
                        ("succeeded", "failed", "cancelled"))
        return self.job(server, job_id)

    def refused(self, server, body, param, code="invalid_value", status=400,
                path="/v1/fine_tuning/jobs"):
        got, _, answer = server.request("POST", path, body)
        self.assertEqual(got, status, answer)
        self.assertEqual((answer["error"]["param"], answer["error"]["code"]), (param, code), answer)
        return answer["error"]["message"]

    def chat(self, server, model):
        return server.post("/v1/chat/completions", {
            "model": model, "max_tokens": 12, "temperature": 0, "seed": 1,
            "messages": [{"role": "user", "content": "Tell me a story about a dog."}]})


class Jobs(FineTuningCase):
    def test_a_job_becomes_a_model_that_stays(self):
        server = self.serve()
        file = self.upload(server, chats())
        valid = self.upload(server, chats(("horse", "goat")))
        job = self.create(server, file, validation_file=valid, suffix="tales", seed=7,
                          metadata={"who": "me"},
                          method=self.supervised(n_epochs=3, batch_size=4))
        self.assertEqual(set(job), REQUIRED)
        self.assertRegex(job["id"], r"^ftjob-[0-9a-f]{24}$")
        self.assertEqual((job["object"], job["model"], job["training_file"], job["validation_file"],
                          job["seed"], job["metadata"], job["fine_tuned_model"], job["error"],
                          job["integrations"]),
                         ("fine_tuning.job", MODEL, file, valid, 7, {"who": "me"}, None, None, []))
        self.assertIn(job["status"], ("queued", "running"))
        self.assertEqual(job["hyperparameters"]["n_epochs"], 3)
        self.assertEqual(job["method"]["supervised"]["hyperparameters"]["batch_size"], 4)
        self.assertEqual(job["hyperparameters"]["learning_rate_multiplier"], 1)
        status, _, answer = server.request("DELETE", f"/v1/files/{file}")
        self.assertEqual((status, answer["error"]["code"]), (409, "in_use"), answer)

        # Events from start to end.
        connection = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
        connection.request("GET", f"/v1/fine_tuning/jobs/{job['id']}/events?stream=true")
        text = connection.getresponse().read().decode()
        connection.close()
        data = [line[len("data: "):] for line in text.split("\n") if line.startswith("data: ")]
        self.assertEqual(data[-1], "[DONE]")
        events = [json.loads(entry) for entry in data[:-1]]
        self.assertEqual(len({event["id"] for event in events}), len(events))
        steps = [event["data"] for event in events
                 if event["type"] == "metrics" and "train_loss" in event["data"]]
        self.assertEqual([step["step"] for step in steps], list(range(1, 10)))
        for step in steps:
            self.assertEqual(step["total_steps"], 9)
            self.assertGreater(step["tokens_per_second"], 0)
        self.assertTrue(any("valid_loss" in event["data"] for event in events
                            if event["type"] == "metrics"))

        done = self.ended(server, job["id"])
        self.assertEqual(done["status"], "succeeded", done)
        name = done["fine_tuned_model"]
        self.assertRegex(name, r"^ft:tandem-stories:local:tales:[0-9a-f]{6}$")
        self.assertGreater(done["trained_tokens"], 0)
        self.assertIsNotNone(done["finished_at"])
        self.assertEqual(self.chat(server, name)["model"], name)
        base = self.chat(server, MODEL)["choices"][0]
        listed = {m["id"]: m for m in server.request("GET", "/v1/models")[2]["data"]}
        self.assertEqual((listed[name]["parent"], listed[name]["owned_by"]), (MODEL, "user"))
        provenance = listed[name]["provenance"]
        self.assertEqual(provenance["job"], job["id"])
        parents = {parent["role"]: parent for parent in provenance["parents"]}
        self.assertEqual(parents["base"]["name"], MODEL)
        self.assertRegex(parents["base"]["content_sha256"], "^[0-9a-f]{64}$")
        self.assertEqual(parents["training_file"]["name"], file)
        self.assertEqual(parents["training_file"]["file_sha256"], hashlib.sha256(
            server.request("GET", f"/v1/files/{file}/content")[2].encode()).hexdigest())
        _, _, table = server.request("GET", f"/v1/files/{done['result_files'][0]}/content")
        rows = table.splitlines()
        self.assertEqual(rows[0],
                         "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy")
        self.assertGreaterEqual(len(rows), 10)
        _, _, page = server.request("GET", f"/v1/fine_tuning/jobs/{job['id']}/events?limit=2")
        self.assertEqual((len(page["data"]), page["has_more"]), (2, True))
        self.assertIn("completed", page["data"][0]["message"])
        _, _, rest = server.request(
            "GET", f"/v1/fine_tuning/jobs/{job['id']}/events?limit=1000&after="
            + page["data"][1]["id"])
        self.assertEqual(len(rest["data"]), len(events) - 2)
        _, _, checkpoints = server.request("GET", f"/v1/fine_tuning/jobs/{job['id']}/checkpoints")
        checkpoint = checkpoints["data"][0]
        self.assertEqual((checkpoint["fine_tuned_model_checkpoint"], checkpoint["step_number"]),
                         (name, 9))
        self.assertIn("valid_loss", checkpoint["metrics"])
        for action in ("cancel", "pause", "resume"):
            self.refused(server, {}, None, "job_not_active",
                         path=f"/v1/fine_tuning/jobs/{job['id']}/{action}")

        # The file is free again; the model survives a restart, until it is deleted.
        self.assertEqual(server.request("DELETE", f"/v1/files/{file}")[0], 200)
        tuned = self.chat(server, name)["choices"]
        self.assertEqual(server.stop(), 0)
        server = self.serve()
        self.assertEqual(self.chat(server, name)["choices"], tuned)
        self.assertEqual(self.chat(server, MODEL)["choices"][0], base)
        self.assertEqual(self.job(server, job["id"])["fine_tuned_model"], name)
        self.assertEqual(server.request("DELETE", f"/v1/models/{name}")[0], 200)
        self.assertEqual(server.stop(), 0)
        server = self.serve()
        self.assertEqual(server.request("GET", f"/v1/models/{name}")[0], 404)

    def test_all_weights_and_tuning_what_was_tuned(self):
        server = self.serve()
        file = self.upload(server, chats())
        full = self.ended(server, self.create(
            server, file, method=self.supervised(max_steps=2, lora=False))["id"])
        self.assertEqual(full["status"], "succeeded", full)
        self.assertEqual(full["hyperparameters"]["lora"], False)
        self.chat(server, full["fine_tuned_model"])
        adapter = self.ended(server, self.create(
            server, file, suffix="a",
            method=self.supervised(max_steps=2, lora={"rank": 4, "alpha": 8,
                                                      "target_modules": ["q", "v"]}))["id"])
        self.assertEqual(adapter["status"], "succeeded", adapter)
        again = self.ended(server, self.create(server, file, model=adapter["fine_tuned_model"],
                                               suffix="b",
                                               method=self.supervised(max_steps=2))["id"])
        self.assertEqual(again["status"], "succeeded", again)
        self.assertRegex(again["fine_tuned_model"], "^ft:tandem-stories:local:b:")
        self.chat(server, again["fine_tuned_model"])

    def test_pairs_of_answers(self):
        server = self.serve()
        file = self.upload(server, [
            {"input": {"messages": [{"role": "user", "content": f"Tell me a story about a {animal}."}]},
             "preferred_output": [{"role": "assistant", "content": f"The {animal} was happy."}],
             "non_preferred_output": [{"role": "assistant", "content": f"The {animal} was sad."}]}
            for animal in ANIMALS])
        job = self.create(server, file, method={"type": "dpo", "dpo": {"hyperparameters": {
            "beta": 0.2, "max_steps": 2}}})
        self.assertEqual(job["method"]["dpo"]["hyperparameters"]["beta"], 0.2)
        done = self.ended(server, job["id"])
        self.assertEqual(done["status"], "succeeded", done)
        self.chat(server, done["fine_tuned_model"])

    def test_pause_resume_and_cancel(self):
        server = self.serve()
        file = self.upload(server, chats())
        first = self.create(server, file, metadata={"n": "1"},
                            method=self.supervised(n_epochs=50, batch_size=1))
        second = self.create(server, file, metadata={"n": "2"}, method=self.supervised(max_steps=2))
        _, _, paused = server.request("POST", f"/v1/fine_tuning/jobs/{second['id']}/pause", {})
        self.assertEqual(paused["status"], "paused")
        self.wait_until("running", lambda: self.job(server, first["id"])["status"] == "running")
        self.assertEqual(
            server.request("POST", f"/v1/fine_tuning/jobs/{first['id']}/pause", {})[0], 200)
        self.wait_until("paused", lambda: self.job(server, first["id"])["status"] == "paused")
        self.assertEqual(server.request("DELETE", f"/v1/files/{file}")[0], 409)

        # A paused job stays paused, even after a restart.
        self.assertEqual(server.stop(), 0)
        server = self.serve()
        for job in (first, second):
            self.assertEqual(self.job(server, job["id"])["status"], "paused")
        _, _, found = server.request("GET", "/v1/fine_tuning/jobs?metadata[n]=2")
        self.assertEqual([job["id"] for job in found["data"]], [second["id"]])
        _, _, page = server.request("GET", "/v1/fine_tuning/jobs?limit=1")
        self.assertEqual((page["data"][0]["id"], page["has_more"]), (second["id"], True))

        self.assertEqual(
            server.request("POST", f"/v1/fine_tuning/jobs/{second['id']}/resume", {})[0], 200)
        self.assertEqual(self.ended(server, second["id"])["status"], "succeeded")
        _, _, cancelled = server.request("POST", f"/v1/fine_tuning/jobs/{first['id']}/cancel", {})
        self.assertEqual(cancelled["status"], "cancelled")
        self.assertEqual(server.request("DELETE", f"/v1/files/{file}")[0], 200)


class Checks(FineTuningCase):
    def test_fields(self):
        server = self.serve()
        file = self.upload(server, chats())
        other = self.upload(server, chats(), "batch")
        good = {"model": MODEL, "training_file": file}
        missing = "missing_required_parameter"
        self.refused(server, {"training_file": file}, "model", missing)
        self.refused(server, {"model": "nobody", "training_file": 5}, "model", "model_not_found",
                     404)
        self.refused(server, {"model": MODEL}, "training_file", missing)
        self.refused(server, dict(good, training_file="file-x"), "training_file", "file_not_found",
                     404)
        self.refused(server, dict(good, training_file=other), "training_file")
        self.refused(server, dict(good, validation_file="file-x"), "validation_file",
                     "file_not_found", 404)
        self.refused(server, dict(good, method={"type": "reinforcement"}), "method",
                     "unsupported_value")
        self.refused(server, dict(good, integrations=[{"type": "wandb"}]), "integrations",
                     "unsupported_parameter")
        for field, bad in (("suffix", ""), ("suffix", "a b"), ("suffix", "x" * 65), ("seed", -1),
                           ("seed", 2147483648), ("metadata", {str(i): "" for i in range(17)})):
            self.refused(server, dict(good, **{field: bad}), field)
        place = "method.supervised.hyperparameters."
        for name, bad in (("n_epochs", 0), ("n_epochs", 51), ("batch_size", 0), ("batch_size", 257),
                          ("learning_rate_multiplier", 0), ("learning_rate_multiplier", 1001),
                          ("max_steps", 0), ("seq_len", 15), ("schedule", "wild"),
                          ("over_length", "x"), ("warmup_ratio", 2), ("epochs", 3), ("beta", 1)):
            self.refused(server, dict(good, method=self.supervised(**{name: bad})), place + name)
        self.refused(server, dict(good, hyperparameters={"n_epochs": 51}),
                     "hyperparameters.n_epochs")
        self.refused(server, dict(good, hyperparameters={"n_epochs": "many"}),
                     "hyperparameters.n_epochs", "invalid_type")
        for lora in ({"rank": 0}, {"rank": 257}, {"dropout": 1}, {"target_modules": ["x"]},
                     {"r": 8}):
            self.refused(server, dict(good, method=self.supervised(lora=lora)),
                         place + "lora." + next(iter(lora)))
        for job in ("ftjob-x", "job-x"):
            status, _, answer = server.request("GET", f"/v1/fine_tuning/jobs/{job}")
            self.assertEqual((status, answer["error"]["code"]), (404, "job_not_found"))
        for query, param in (("limit=0", "limit"), ("limit=101", "limit")):
            status, _, answer = server.request("GET", "/v1/fine_tuning/jobs?" + query)
            self.assertEqual((status, answer["error"]["param"]), (400, param))
        self.assertEqual(server.request("GET", "/v1/fine_tuning/jobs")[2]["data"], [])

    def test_bad_lines_are_named(self):
        server = self.serve()
        rows = [json.dumps(row) for row in chats()]
        rows[6] = '{"messages": []}'
        rows[8] = "no json"
        file = self.upload(server, "\n".join(rows) + "\n\n")
        message = self.refused(server, {"model": MODEL, "training_file": file}, "training_file",
                               "invalid_training_file")
        self.assertIn("line 7:", message)
        self.assertIn("line 9:", message)
        few = self.upload(server, chats(ANIMALS[:9]))
        self.assertIn("10", self.refused(server, {"model": MODEL, "training_file": few},
                                         "training_file", "invalid_training_file"))

        verdict = server.post("/v1/fine_tuning/validate", {"model": MODEL, "training_file": file})
        self.assertFalse(verdict["valid"])
        self.assertEqual([error["line"] for error in verdict["errors"]], [7, 9])
        good = self.upload(server, chats())
        verdict = server.post("/v1/fine_tuning/validate", {"model": MODEL, "training_file": good})
        self.assertEqual((verdict["valid"], verdict["examples"], verdict["errors"]),
                         (True, len(ANIMALS), []))
        self.assertGreater(verdict["tokens"]["total"], 0)
        self.assertEqual(sum(bin["examples"] for bin in verdict["tokens"]["histogram"]),
                         len(ANIMALS))
        long_line = self.upload(server, "\n".join(rows[:6] + ['{"a": "' + "x" * (5 << 20) + '"}']))
        status, _, answer = server.request(
            "POST", "/v1/fine_tuning/validate", {"model": MODEL, "training_file": long_line})
        self.assertEqual((status, answer["error"]["param"]), (400, "training_file"))
        self.assertIn("lines of at most 4 MiB", answer["error"]["message"])
        verdict = server.post("/v1/fine_tuning/validate", {"model": MODEL, "training_file": good})
        learned = [token for token in verdict["sample"]["tokens"] if token["loss"]]
        self.assertIn("Once there was a", "".join(token["text"] for token in learned))

    def test_a_csv_is_examined_planned_and_trained_with_samples(self):
        server = self.serve()
        rows = [f'Tell me a story about a {animal}.,"Once, there was a ""{animal}""."'
                for animal in ANIMALS]
        bad = self.upload(server, "\n".join(["prompt,completion", *rows, "a,b,c"]), name="x.csv")
        found = server.post(f"/v1/files/{bad}/examine", {"model": MODEL})
        self.assertEqual([error["line"] for error in found["errors"]], [len(ANIMALS) + 2])
        self.assertEqual((found["samples"], found["complete"]), (len(ANIMALS), True))
        learned = [token for token in found["examples"][0]["tokens"] if token["loss"]]
        self.assertIn('Once, there was a "dog".', "".join(token["text"] for token in learned))

        file = self.upload(server, "\n".join(["prompt,completion", *rows]), name="x.csv")
        body = {"model": MODEL, "training_file": file, "method": self.supervised(
            n_epochs=1, batch_size=4, samples={"every": 1, "prompts": ["A dog."], "max_tokens": 8})}
        self.assertEqual(server.request("GET", "/v1/fine_tuning/jobs")[2]["data"], [])
        plan = server.post("/v1/fine_tuning/plan", body)
        self.assertEqual((plan["would_start"], plan["steps"]), (True, 3))
        self.assertEqual(server.request("GET", "/v1/fine_tuning/jobs")[2]["data"], [])
        job = self.ended(server, server.post("/v1/fine_tuning/jobs", body)["id"])
        self.assertEqual(job["status"], "succeeded", job["error"])
        _, _, events = server.request("GET", f"/v1/fine_tuning/jobs/{job['id']}/events?limit=100")
        samples = [event["data"] for event in events["data"] if "sample" in event["data"]]
        # One after each step; the run ends with one of its own.
        self.assertGreaterEqual(len(samples), 3)
        self.assertIn("dog", samples[0]["sample"])

    def test_a_client_that_leaves_ends_the_examination(self):
        server = self.serve()
        row = json.dumps(chats()[0]) + "\n"
        file = self.upload(server, row * 400_000)
        slow = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
        slow.request("POST", f"/v1/files/{file}/examine",
                     json.dumps({"model": MODEL, "rows": 1_000_000}),
                     {"Content-Type": "application/json"})
        slow.close()
        # The one thread of such requests is free again: a small file does not wait for the large.
        small = self.upload(server, chats())
        found = server.post(f"/v1/files/{small}/examine", {"model": MODEL})
        self.assertTrue(found["complete"])
        part = server.post(f"/v1/files/{file}/examine", {"model": MODEL, "rows": 100})
        self.assertEqual((part["complete"], part["checked_rows"], part["rows"]),
                         (False, 100, 400_000))

    def test_a_dry_run_starts_nothing(self):
        server = self.serve()
        file = self.upload(server, chats())
        plan = self.create(server, file, dry_run=True)
        self.assertIn("bytes", plan)
        self.assertEqual(server.request("GET", "/v1/fine_tuning/jobs")[2]["data"], [])


if __name__ == "__main__":
    harness.main()
