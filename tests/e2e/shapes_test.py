#!/usr/bin/env python3
"""Objects of files and fine-tuning, key by key, against OpenAI's reference.

`shapes_test.py BINARY [unittest arguments]`.

SHAPES is our own table from the reference: required keys, optional keys, and their values. A key in
neither column is a fault, unless it is marked as one of our extensions.
"""

import copy
import http.client
import json

import harness
from harness import PATIENCE_S, Case

MODEL = "tandem-stories"
ANIMALS = ("dog", "cat", "bird", "frog", "fox", "hen", "cow", "pig", "ant", "bee")
# An unused column that makes a file too big to be validated during the request.
PADDING = json.dumps({"messages": [{"role": "user", "content": "Tell me a story."},
                                   {"role": "assistant", "content": "Once there was a dog."}],
                      "padding": "x" * (5 << 20)}) + "\n"


def text(value):
    return isinstance(value, str)


def count(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def moment(value):
    return count(value) and value > 1_700_000_000


def number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def truth(value):
    return isinstance(value, bool)


def one_of(*values):
    return lambda value: value in values


def either(*checks):
    return lambda value: any(check(value) for check in checks)


def null(value):
    return value is None


def anything(_):
    return True


def strings(value):
    return (isinstance(value, dict) and all(text(one) for one in value.values())
            and len(value) <= 16)


def list_of(check):
    return lambda value: isinstance(value, list) and all(check(one) for one in value)


def prefixed(prefix):
    return lambda value: text(value) and value.startswith(prefix)


def a(name):
    return lambda value: isinstance(value, dict) and not faults(name, value)


def page(of):
    return {"object": one_of("list"), "data": list_of(a(of)), "has_more": truth}


auto_or_count = either(one_of("auto"), count)
auto_or_number = either(one_of("auto"), number)
PURPOSES = ("assistants", "assistants_output", "batch", "batch_output", "fine-tune",
            "fine-tune-results", "vision", "user_data")
HYPERPARAMETERS = {"n_epochs": auto_or_count, "batch_size": auto_or_count,
                   "learning_rate_multiplier": auto_or_number}
# Our extensions.
MORE_HYPERPARAMETERS = {"lora": either(one_of(False), lambda value: isinstance(value, dict)),
                        "max_steps": count, "seq_len": count, "over_length": text, "schedule": text,
                        "warmup_ratio": number, "weight_decay": number, "grad_clip": number,
                        "checkpoint_every": count}
METRICS = ("train_loss", "train_mean_token_accuracy", "valid_loss", "valid_mean_token_accuracy",
           "full_valid_loss", "full_valid_mean_token_accuracy")

# name: (required, optional)
SHAPES = {
    "File": ({"id": prefixed("file-"), "object": one_of("file"), "bytes": count,
              "created_at": moment, "filename": text, "purpose": one_of(*PURPOSES),
              "status": one_of("uploaded", "processed", "error")},
             {"expires_at": moment, "status_details": text}),
    "FileDeleted": ({"id": prefixed("file-"), "object": one_of("file"), "deleted": one_of(True)},
                    {}),
    "FileList": (dict(page("File"), first_id=either(prefixed("file-"), null),
                      last_id=either(prefixed("file-"), null)), {}),
    "FineTuningJob": (
        {"id": prefixed("ftjob-"), "object": one_of("fine_tuning.job"), "created_at": moment,
         "finished_at": either(moment, null), "model": text,
         "fine_tuned_model": either(prefixed("ft:"), null), "organization_id": prefixed("org-"),
         # The reference's enumeration lacks `paused`; its page on pausing has it.
         "status": one_of("validating_files", "queued", "running", "succeeded", "failed",
                          "cancelled", "paused"),
         "hyperparameters": a("Hyperparameters"), "training_file": prefixed("file-"),
         "validation_file": either(prefixed("file-"), null),
         "result_files": list_of(prefixed("file-")), "trained_tokens": either(count, null),
         "error": either(a("JobError"), null), "seed": count},
        {"method": a("Method"), "estimated_finish": either(moment, null),
         "integrations": either(list_of(anything), null), "metadata": either(strings, null)}),
    "JobError": ({"code": text, "message": text, "param": either(text, null)}, {}),
    "Hyperparameters": ({}, dict(HYPERPARAMETERS, beta=auto_or_number, **MORE_HYPERPARAMETERS)),
    "Method": ({"type": one_of("supervised", "dpo")}, {"supervised": a("Supervised"),
                                                       "dpo": a("Dpo")}),
    "Supervised": ({}, {"hyperparameters": lambda value: a("Hyperparameters")(value)
                        and "beta" not in value}),
    "Dpo": ({}, {"hyperparameters": lambda value: a("Hyperparameters")(value)
                 and number(value["beta"])}),
    "FineTuningJobList": (page("FineTuningJob"), {}),
    "FineTuningJobEvent": (
        {"id": prefixed("ftevent-"), "object": one_of("fine_tuning.job.event"),
         "created_at": moment, "level": one_of("info", "warn", "error"), "message": text},
        {"type": one_of("message", "metrics"), "data": lambda value: isinstance(value, dict)}),
    "FineTuningJobEventList": (page("FineTuningJobEvent"),
                               {"first_id": either(text, null), "last_id": either(text, null)}),
    "FineTuningJobCheckpoint": (
        {"id": prefixed("ftckpt"), "object": one_of("fine_tuning.job.checkpoint"),
         "created_at": moment, "fine_tuned_model_checkpoint": prefixed("ft:"),
         "fine_tuning_job_id": prefixed("ftjob-"), "metrics": a("CheckpointMetrics"),
         "step_number": count}, {}),
    # Null marks figures that were not computed.
    "CheckpointMetrics": ({}, dict({"step": number},
                                   **{name: either(number, null) for name in METRICS})),
    "FineTuningJobCheckpointList": (page("FineTuningJobCheckpoint"),
                                    {"first_id": either(text, null),
                                     "last_id": either(text, null)}),
    "ModelDeleted": ({"id": text, "object": one_of("model"), "deleted": one_of(True)}, {}),
}


def faults(name, value):
    """The faults of an object, in words; empty without faults."""
    if not isinstance(value, dict):
        return [f"{name}: no object: {value!r}"]
    required, optional = SHAPES[name]
    out = [f"{name}.{key} is missing" for key in required if key not in value]
    for key, member in value.items():
        check = required.get(key) or optional.get(key)
        if check is None:
            out.append(f"{name}.{key} is not in the reference")
        elif not check(member):
            out.append(f"{name}.{key} may not be {json.dumps(member)[:300]}")
    return out


def chat(animal):
    return json.dumps({"messages": [
        {"role": "user", "content": f"Tell me a story about a {animal}."},
        {"role": "assistant", "content": f"Once there was a {animal}."}]}) + "\n"


def pair(animal):
    return json.dumps({
        "input": {"messages": [{"role": "user", "content": f"Tell me a story about a {animal}."}]},
        "preferred_output": [{"role": "assistant", "content": f"The {animal} was happy."}],
        "non_preferred_output": [{"role": "assistant", "content": f"The {animal} was sad."}]}) + "\n"


class Shapes(Case):
    def check(self, name, value):
        self.assertEqual(faults(name, value), [])
        return value

    def ask(self, method, path, name, body=None):
        status, _, answer = self.server.request(method, path, body)
        self.assertEqual(status, 200, answer)
        return self.check(name, answer)

    def upload(self, content, *more_fields, purpose="fine-tune"):
        parts = [f'name="purpose"\r\n\r\n{purpose}', *more_fields,
                 f'name="file"; filename="x.jsonl"\r\n\r\n{content}']
        body = "".join(f"--b\r\nContent-Disposition: form-data; {part}\r\n" for part in parts)
        connection = http.client.HTTPConnection(*self.server.address, timeout=PATIENCE_S)
        connection.request("POST", "/v1/files", (body + "--b--\r\n").encode(),
                           {"Content-Type": "multipart/form-data; boundary=b"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return self.check("File", answer)

    def create(self, file, **more):
        return self.ask("POST", "/v1/fine_tuning/jobs", "FineTuningJob",
                        dict({"model": MODEL, "training_file": file}, **more))

    def reaches(self, job, *states):
        """Waits for one of these states; checks the shape in every state on the way."""
        last = {}

        def there():
            last.update(self.ask("GET", f"/v1/fine_tuning/jobs/{job['id']}", "FineTuningJob"))
            return last["status"] in states

        self.wait_until(f"one of {states}", there)
        return last

    def pages(self, path, name, least):
        """All elements, page by page; an empty page follows the last."""
        listed = []
        more = True
        while more:
            after = f"&after={listed[-1]['id']}" if listed else ""
            page = self.ask("GET", f"{path}?limit=2{after}", name)
            self.assertLessEqual(len(page["data"]), 2)
            listed += page["data"]
            more = page["has_more"]
        self.assertGreaterEqual(len(listed), least)
        self.assertEqual(len({one["id"] for one in listed}), len(listed))
        empty = self.ask("GET", f"{path}?after={listed[-1]['id']}", name)
        self.assertEqual((empty["data"], empty["has_more"]), ([], False))
        return listed

    def setUp(self):
        super().setUp()
        self.server = self.serve()

    def test_files(self):
        expiring = ['name="expires_after[anchor]"\r\n\r\ncreated_at',
                    'name="expires_after[seconds]"\r\n\r\n3600']
        for purpose in ("fine-tune", "assistants", "batch", "user_data", "vision"):
            self.upload("x", purpose=purpose)
        file = self.upload("x", *expiring)
        self.assertEqual(file["expires_at"], file["created_at"] + 3600)
        self.ask("GET", f"/v1/files/{file['id']}", "File")
        self.assertEqual(len(self.pages("/v1/files", "FileList", 6)), 6)
        self.assertEqual(self.ask("GET", "/v1/files?purpose=assistants&after=" + file["id"],
                                  "FileList")["data"][0]["purpose"], "assistants")
        self.ask("DELETE", f"/v1/files/{file['id']}", "FileDeleted")

    def test_a_job_that_succeeds(self):
        file = self.upload("".join(chat(animal) for animal in ANIMALS))
        valid = self.upload("".join(chat(animal) for animal in ANIMALS[:3]))
        job = self.create(file["id"], validation_file=valid["id"], suffix="s", seed=5,
                          metadata={"a": "b"},
                          method={"type": "supervised",
                                  "supervised": {"hyperparameters": {"n_epochs": 2,
                                                                     "batch_size": 5}}})
        done = self.reaches(job, "succeeded", "failed")
        self.assertEqual(done["status"], "succeeded", done)
        for name in ("finished_at", "fine_tuned_model", "trained_tokens"):
            self.assertIsNotNone(done[name])
        self.assertIsNone(done["error"])
        self.ask("GET", f"/v1/files/{done['result_files'][0]}", "File")
        root = f"/v1/fine_tuning/jobs/{job['id']}"
        events = self.pages(root + "/events", "FineTuningJobEventList", 6)
        for event in events:
            if event["type"] == "metrics":
                self.assertTrue(all(number(value) or value is None
                                    for value in event["data"].values()), event)
        checkpoints = self.pages(root + "/checkpoints", "FineTuningJobCheckpointList", 1)
        self.assertIn(done["fine_tuned_model"],
                      [one["fine_tuned_model_checkpoint"] for one in checkpoints])
        for checkpoint in checkpoints:
            self.assertIn("train_loss", checkpoint["metrics"])
        self.ask("DELETE", f"/v1/models/{done['fine_tuned_model']}", "ModelDeleted")

    def test_jobs_of_both_methods_that_do_not_succeed(self):
        # One is validated during the request, the other by the job.
        spoiled = self.upload("".join(chat(animal) for animal in ANIMALS) + '{"messages": []}\n'
                              + PADDING)
        pairs = self.upload("".join(pair(animal) for animal in ANIMALS))
        failing = self.create(spoiled["id"])
        waiting = self.create(pairs["id"], method={"type": "dpo"})
        stopped = self.ask("POST", f"/v1/fine_tuning/jobs/{waiting['id']}/pause", "FineTuningJob")
        self.assertIn(stopped["status"], ("paused", "running", "queued", "validating_files"))

        failed = self.reaches(failing, "failed", "succeeded")
        self.assertEqual(failed["error"]["code"], "invalid_training_file", failed)
        self.assertEqual(failed["error"]["param"], "training_file")
        self.assertIn(f"line {len(ANIMALS) + 1}", failed["error"]["message"])
        self.assertEqual((failed["fine_tuned_model"], failed["result_files"]), (None, []))
        self.assertIsNotNone(failed["finished_at"])
        root = f"/v1/fine_tuning/jobs/{failing['id']}"
        self.assertEqual(
            self.pages(root + "/events", "FineTuningJobEventList", 2)[0]["level"], "error")
        self.assertEqual(
            self.ask("GET", root + "/checkpoints", "FineTuningJobCheckpointList")["data"], [])

        self.ask("POST", f"/v1/fine_tuning/jobs/{waiting['id']}/cancel", "FineTuningJob")
        cancelled = self.reaches(waiting, "cancelled")
        self.assertEqual((cancelled["error"], cancelled["fine_tuned_model"]), (None, None))
        self.assertEqual(len(self.pages("/v1/fine_tuning/jobs", "FineTuningJobList", 2)), 2)

    def test_the_table_finds_faults(self):
        file = self.upload("x")
        for spoil in (lambda one: one.pop("bytes"), lambda one: one.update(bytes="1"),
                      lambda one: one.update(bytes=True), lambda one: one.update(colour="red"),
                      lambda one: one.update(created_at=one["created_at"] * 1.0),
                      lambda one: one.update(status="done"), lambda one: one.update(expires_at=None),
                      lambda one: one.update(id=one["id"].removeprefix("file-"))):
            bad = copy.deepcopy(file)
            spoil(bad)
            self.assertEqual(len(faults("File", bad)), 1, bad)
            listed = {"object": "list", "data": [bad], "first_id": None, "last_id": None,
                      "has_more": False}
            self.assertEqual(len(faults("FileList", listed)), 1)


if __name__ == "__main__":
    harness.main()
