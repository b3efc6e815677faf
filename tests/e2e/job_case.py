"""Shared by the tests of jobs: fine-tuning jobs over HTTP, their processes and their files."""

import http.client
import json
import os
import pathlib
import signal
import threading

from fine_tuning_test import MODEL, FineTuningCase, chats
from harness import PATIENCE_S, job_processes

ENDED = ("succeeded", "failed", "cancelled")
# Leftovers of killed writers, none of which may remain at the end.
LITTER = (".tmp", ".part", ".trash-", ".next-", ".old-")


def kill(pid, signal_number):
    try:
        os.kill(pid, signal_number)
    except ProcessLookupError:
        pass  # it has already ended


class JobCase(FineTuningCase):
    def setUp(self):
        super().setUp()
        self.is_over = threading.Event()
        self.promoter = threading.Thread(target=self.promote_jobs, daemon=True)
        self.promoter.start()

    def tearDown(self):
        self.is_over.set()
        self.promoter.join()
        for server in self.servers:
            if server.process.poll() is None:
                server.kill()
        # A job outlives its server by design.
        for pid in self.job_processes():
            kill(pid, signal.SIGKILL)
        super().tearDown()

    def promote_jobs(self):
        """Raises the priority of jobs: normally they give way to everything else."""
        while not self.is_over.wait(0.1):
            for pid in self.job_processes():
                for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
                    try:
                        os.sched_setscheduler(int(task.name), os.SCHED_OTHER, os.sched_param(0))
                    except OSError:
                        pass  # ended, or not permitted: the job is slower

    def job_dir(self, job_id):
        return self.path / "data" / "jobs" / job_id

    def job_processes(self, job_id=""):
        """The processes in the directory of this job, or of any job of this test."""
        return job_processes(self.job_dir(job_id))

    def the_process(self, job_id):
        self.wait_until("a process", lambda: len(self.job_processes(job_id)) == 1)
        return self.job_processes(job_id)[0]

    def start(self, server, file, steps, **more):
        """Starts a job of this many small steps, with a checkpoint every two steps."""
        seed, batch_size = more.pop("seed", 7), more.pop("batch_size", 1)
        return self.create(server, file, seed=seed, method=self.supervised(
            n_epochs=50, batch_size=batch_size, max_steps=steps, checkpoint_every=2,
            lora={"rank": 4, "alpha": 8, "dropout": 0.1}), **more)["id"]

    def status(self, server, job_id):
        return self.job(server, job_id)["status"]

    def wait_for_status(self, server, job_id, *wanted):
        self.wait_until(f"{job_id} {wanted}", lambda: self.status(server, job_id) in wanted)

    def act(self, server, job_id, action):
        status, _, answer = server.request("POST", f"/v1/fine_tuning/jobs/{job_id}/{action}", {})
        return status, answer

    def expect_done(self, server, job_id, action):
        status, answer = self.act(server, job_id, action)
        self.assertEqual(status, 200, answer)
        return answer

    def expect_not_active(self, server, job_id, *actions):
        for action in actions:
            status, answer = self.act(server, job_id, action)
            self.assertEqual((status, answer["error"]["code"]), (400, "job_not_active"),
                             (action, answer))

    def losses(self, job_id):
        """Step -> the last loss that the run wrote."""
        losses = {}
        path = self.job_dir(job_id) / "metrics.jsonl"
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                row = json.loads(line)
            except ValueError:
                continue  # cut by a kill
            if "learning/loss" in row:
                losses[row["step"]] = row["learning/loss"]
        return losses

    def steps_done(self, job_id):
        return max(self.losses(job_id), default=-1) + 1

    def newest_checkpoint(self, job_id):
        names = [path.name for path in (self.job_dir(job_id) / "checkpoints").glob("0*")]
        return max((int(name) for name in names if name.isdigit()), default=0)

    def wait_for_steps(self, job_id, n):
        self.wait_until(f"{n} steps", lambda: self.steps_done(job_id) >= n)

    def adapter(self, job_id):
        return (self.job_dir(job_id) / "adapter" / "adapter_model.safetensors").read_bytes()

    def curve(self, server, job):
        """The losses that the API has published."""
        _, _, table = server.request("GET", f"/v1/files/{job['result_files'][0]}/content")
        return table

    def expect_same(self, server, job_id, as_id):
        """Expects success with the same bits as the other job."""
        self.wait_for_status(server, job_id, *ENDED)
        job, other = self.job(server, job_id), self.job(server, as_id)
        self.assertEqual(job["status"], "succeeded", job)
        self.assertEqual(self.losses(job_id), self.losses(as_id))
        self.assertEqual(self.adapter(job_id), self.adapter(as_id))
        self.assertEqual(self.curve(server, job), self.curve(server, other))
        self.assertEqual(job["trained_tokens"], other["trained_tokens"])
        self.assertEqual(self.chat(server, job["fine_tuned_model"])["choices"],
                         self.chat(server, other["fine_tuned_model"])["choices"])

    def expect_nothing_left(self, server):
        """Expects that every job ended once and left no process and no partial file."""
        _, _, page = server.request("GET", "/admin/jobs?limit=100", admin=True)
        for job in page["data"]:
            self.assertIn(job["status"], ENDED, job)
            self.assertIsNotNone(job["finished_at"], job)
            if job["type"] == "fine_tune":
                _, _, events = server.request(
                    "GET", f"/v1/fine_tuning/jobs/{job['id']}/events?limit=1000")
                ends = [event["message"] for event in events["data"]
                        if event["id"].rsplit("-", 1)[1].startswith("f")]
                self.assertEqual(len(ends), 2 if job["status"] == "succeeded" else 1, ends)
        self.wait_until("no process of a job", lambda: not self.job_processes())
        _, _, files = server.request("GET", "/v1/files?purpose=fine-tune-results")
        succeeded = [job for job in page["data"]
                     if (job["type"], job["status"]) == ("fine_tune", "succeeded")]
        self.assertEqual(len(files["data"]), len(succeeded))
        litter = [str(path) for path in (self.path / "data").rglob("*")
                  if any(mark in path.name for mark in LITTER)]
        self.assertEqual(litter, [])

    def follow(self, server, job_id):
        """The lines of the followed log, and the names of its events, until it ends."""
        connection = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
        connection.request("GET", f"/admin/jobs/{job_id}/log?follow=true",
                           headers={"Authorization": "Bearer e2e-admin-key"})
        text = connection.getresponse().read().decode()
        connection.close()
        events = [dict(line.split(": ", 1) for line in event.split("\n") if ": " in line)
                  for event in text.strip().split("\n\n")]
        return [(event["event"], json.loads(event["data"])) for event in events if "event" in event]


__all__ = ["ENDED", "MODEL", "JobCase", "chats", "kill"]
