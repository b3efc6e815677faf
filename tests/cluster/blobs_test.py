#!/usr/bin/env python3
"""Replicas with one PostgreSQL and one object store, but a data directory each.

`blobs_test.py BINARY [unittest arguments]`.
"""

import json
import shutil

from object_store import ObjectStore
from replicas_case import ENDED, Replica, ReplicasCase, chats, harness

FOLLOW_S = 2
TAKE_OVER_S = 10


class BlobsCase(ReplicasCase):
    def setUp(self):
        self.store = ObjectStore()
        self.addCleanup(self.store.close)
        super().setUp()

    def replica(self, *arguments, port=0, data=None):
        number = len(self.servers)
        server = Replica(self.path, number, self.database, port, "--blob-store", "s3://bucket/team",
                         *arguments, data=data or f"data-{number}",
                         variables=self.store.environment())
        self.servers.append(server)
        return server

    def job_dirs(self, job_id):
        return [path for path in self.path.glob(f"data-*/jobs/{job_id}")]

    def job_processes(self, job_id=""):
        return [pid for data in self.path.glob("data-*")
                for pid in harness.job_processes(data / "jobs" / job_id)]

    def content(self, server, file):
        status, _, text = server.request("GET", f"/v1/files/{file}/content")
        return text if status == 200 else status


class Files(BlobsCase):
    def test_an_upload_of_one_is_read_and_deleted_by_the_other(self):
        a, b = self.replica(), self.replica()
        file = self.upload(a, chats())
        self.assertEqual(len(self.store.keys("team/files/")), 1)
        text = self.content(a, file)
        self.assertIsInstance(text, str)
        self.assertEqual(self.content(b, file), text)
        n = len(self.store.log)
        self.assertEqual(self.content(b, file), text)  # from the cache
        self.assertEqual(len(self.store.log), n)
        self.assertEqual(b.request("DELETE", f"/v1/files/{file}")[0], 200)
        self.assertEqual(self.content(a, file), 404)
        self.assertEqual(self.store.keys("team/files/"), [])

    def test_an_outage_of_the_store_is_503_and_ends_by_itself(self):
        a, b = self.replica(), self.replica()
        file = self.upload(a, chats())
        for outage in (403, 500):
            self.store.status = outage
            status, _, answer = b.request("GET", f"/v1/files/{file}/content")
            self.assertEqual((status, answer["error"]["code"]), (503, "blob_store_unavailable"))
            self.assertIn("s3://bucket/team/files/", answer["error"]["message"])
            self.assertIn(str(outage), answer["error"]["message"])
            with self.assertRaises(AssertionError):  # an upload is stored, or refused
                self.upload(a, chats())
            self.assertIsInstance(self.content(a, file), str)  # its own copy
            self.assertEqual(a.request("POST", "/v1/chat/completions", harness.story())[0], 200)
        self.store.status = None
        self.assertEqual(self.content(b, file), self.content(a, file))
        self.assertEqual(len(b.request("GET", "/v1/files")[2]["data"]), 1)
        self.upload(a, chats())

    def test_two_replicas_do_not_share_a_data_directory(self):
        self.replica()
        with self.assertRaisesRegex(AssertionError, "a --data-dir of its own"):
            self.replica(data="data-0")

    def test_a_batch_of_one_is_read_from_the_other(self):
        a, b = self.replica(), self.replica()
        rows = [{"custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions",
                 "body": {"model": "tandem-stories", "prompt": f"Story {number}", "max_tokens": 5}}
                for number in range(10)]
        file = self.upload(b, rows, purpose="batch")
        batch = a.post("/v1/batches", {"input_file_id": file, "endpoint": "/v1/completions",
                                       "completion_window": "24h"})["id"]

        def state():
            return b.request("GET", f"/v1/batches/{batch}")[2]

        self.wait_until("the end", lambda: state()["status"] in ("completed", "failed"))
        self.assertEqual(state()["status"], "completed", state())
        lines = [json.loads(line) for line in
                 self.content(b, state()["output_file_id"]).splitlines()]
        self.assertEqual([line["custom_id"] for line in lines],
                         [f"line-{number}" for number in range(10)])


class Jobs(BlobsCase):
    def test_a_fine_tune_of_one_answers_from_the_other(self):
        a, b = self.replica(), self.replica()
        # Either may run the job: the training file is with the other one.
        job = self.start(a, self.upload(b, chats()), 2)
        self.wait_for_status(a, job, *ENDED)
        done = self.job(a, job)
        self.assertEqual(done["status"], "succeeded", done)
        name = done["fine_tuned_model"]
        for server in (a, b):
            took = self.within(10, "the model", lambda: name in self.models(server))
            print(f"a fine-tune was listed after {took:.2f} s")
        texts = [self.chat(server, name)["choices"][0]["message"]["content"] for server in (a, b)]
        self.assertEqual(texts[0], texts[1])
        answers = [self.job(server, job) for server in (a, b)]
        self.assertEqual(answers[0], answers[1])
        tables = [self.content(server, answers[0]["result_files"][0]) for server in (a, b)]
        self.assertEqual(tables[0], tables[1])
        adapters = [(path / "adapter" / "adapter_model.safetensors").read_bytes()
                    for path in self.job_dirs(job)]
        self.assertEqual((len(adapters), adapters[0] == adapters[1]), (2, True))

        self.assertEqual(self.store.keys(f"team/jobs/{job}/checkpoints/"), [])

        # A later fine-tune begins with the adapter, on whichever replica.
        more = b.post("/v1/fine_tuning/jobs", {"model": name, "training_file": self.upload(a, chats()),
                                               "method": self.supervised(max_steps=2)})["id"]
        self.wait_for_status(a, more, *ENDED)
        self.assertEqual(self.job(a, more)["status"], "succeeded", self.job(a, more))

        # A replica that starts later has an empty directory.
        c = self.replica()
        self.within(10, "the model at a later start", lambda: name in self.models(c))
        self.assertEqual(c.request("DELETE", f"/v1/models/{name}")[0], 200)
        for server in (a, b):
            self.within(FOLLOW_S, "its end", lambda: name not in self.models(server))
        self.assertNotIn(name, self.models(self.replica()))

    def test_a_job_waits_for_the_store_at_its_beginning_and_at_its_end(self):
        a, b = self.replica(), self.replica()
        file = self.upload(a, chats())
        self.assertEqual(self.content(b, file), self.content(a, file))  # into both caches
        job = self.start(a, file, 2)
        self.store.status = 500
        logs = [server.log_path for server in (a, b)]
        self.wait_until("the wait", lambda: any("job_waits" in log.read_text() for log in logs))
        self.assertEqual(self.status(b, job), "running")
        self.store.status = None
        self.wait_for_status(b, job, *ENDED)
        self.assertEqual(self.status(b, job), "succeeded", self.job(b, job))

    def test_another_resumes_the_job_of_a_killed_one_from_its_checkpoint(self):
        self.replica(), self.replica()
        first = self.supervisor()
        other = next(server for server in self.servers if server is not first)
        job = self.start(other, self.upload(other, chats()), 60)
        mirrored = f"team/jobs/{job}/checkpoints/"
        self.wait_until("a checkpoint", lambda: any(
            key.endswith("tandem-upload.json") and b"complete" in self.store.objects[key]
            for key in self.store.keys(mirrored)))
        first.kill()
        for pid in self.job_processes(job):  # the machine is gone
            harness.os.kill(pid, 9)
        took = self.within(TAKE_OVER_S, "a supervisor", lambda: self.supervisor() is other)
        print(f"another replica supervised after {took:.1f} s")
        self.wait_for_status(other, job, *ENDED)
        self.assertEqual(self.status(other, job), "succeeded", self.job(other, job))
        log = (other.data / "jobs" / job / "log.txt").read_text()
        self.assertIn("run_checkpoint_fetched", log)
        name = self.job(other, job)["fine_tuned_model"]
        self.chat(other, name)


class Adapters(BlobsCase):
    def test_an_adapter_of_one_is_loaded_by_the_other_without_its_directory(self):
        root = self.path / "root"
        root.mkdir()
        a = self.replica("--model-root", str(root))
        b = self.replica("--model-root", str(root))
        job = self.start(a, self.upload(a, chats()), 2)
        self.wait_for_status(a, job, *ENDED)
        self.assertEqual(self.status(a, job), "succeeded")
        source = next(path for path in self.job_dirs(job) if (path / "adapter").exists())
        shutil.copytree(source / "adapter", root / "tales")
        a.post("/admin/adapters/load", {"name": "tales", "path": "tales"}, admin=True)
        self.within(FOLLOW_S, "the adapter", lambda: "tales" in self.models(b))
        shutil.rmtree(root / "tales")
        texts = [self.chat(server, "tales")["choices"][0]["message"] for server in (a, b)]
        self.assertEqual(texts[0], texts[1])


if __name__ == "__main__":
    harness.main()
