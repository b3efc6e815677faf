#!/usr/bin/env python3
"""Faults around a fine-tuning job: its files, its model, the disk, the memory.

`job_faults_test.py BINARY [unittest arguments]`. A job that cannot continue fails with a reason,
and the server keeps serving.
"""

import resource
import shutil
import signal
import subprocess
import time

import harness
from job_case import ENDED, MODEL, JobCase, chats, kill

MANY = 600  # steps: more than any test waits for


class Faults(JobCase):
    def expect_failed(self, server, job_id, code, *needles):
        self.wait_for_status(server, job_id, *ENDED)
        job = self.job(server, job_id)
        self.assertEqual(job["status"], "failed", job)
        self.assertEqual(job["error"]["code"], code, job["error"])
        for needle in needles:
            self.assertIn(needle, job["error"]["message"])
        _, _, events = server.request("GET", f"/v1/fine_tuning/jobs/{job_id}/events?limit=1")
        self.assertEqual((events["data"][0]["level"], events["data"][0]["message"]),
                         ("error", job["error"]["message"]))
        # Serving and the next job continue.
        self.chat(server, MODEL)
        return job

    def answers_until_ended(self, server, job_id):
        while self.status(server, job_id) not in ENDED:
            self.chat(server, MODEL)
            self.assertEqual(server.request("GET", "/health")[0], 200)
            time.sleep(0.3)  # jobs run only when the machine is idle

    def expect_next_job_works(self, server):
        file = self.upload(server, chats())
        job_id = self.start(server, file, 2)
        self.wait_for_status(server, job_id, *ENDED)
        self.assertEqual(self.status(server, job_id), "succeeded")


class Files(Faults):
    def delete(self, server, file):
        status, _, answer = server.request("DELETE", f"/v1/files/{file}")
        return status, answer

    def test_a_file_in_use_stays(self):
        server = self.serve()
        train, valid = self.upload(server, chats()), self.upload(server, chats(("horse", "goat")))
        running = self.start(server, train, MANY, validation_file=valid)
        queued = self.start(server, train, MANY)
        self.wait_for_status(server, running, "running")
        for state in ("running", "paused"):
            self.wait_for_status(server, running, state)
            for file in (train, valid):
                status, answer = self.delete(server, file)
                self.assertEqual((status, answer["error"]["code"]), (409, "in_use"), answer)
                # A refused deletion changes nothing.
                self.assertEqual(server.request("GET", f"/v1/files/{file}/content")[0], 200)
            if state == "running":
                self.expect_done(server, queued, "pause")
                self.expect_done(server, running, "pause")
        self.expect_done(server, running, "cancel")
        self.assertEqual(self.delete(server, valid)[0], 200)
        self.assertEqual(self.delete(server, train)[0], 409)  # the other job's
        self.expect_done(server, queued, "cancel")
        self.assertEqual(self.delete(server, train)[0], 200)

    def waiting_job(self, server, file):
        """An accepted job that has not opened its file yet."""
        blocker = self.start(server, file, MANY)
        self.wait_for_status(server, blocker, "running")
        waiting = self.start(server, self.upload(server, chats()), 4)
        return blocker, waiting

    def test_a_damaged_file_is_named_with_its_line(self):
        server = self.serve()
        blocker, waiting = self.waiting_job(server, self.upload(server, chats()))
        file = self.path / "data" / "files" / self.job(server, waiting)["training_file"]
        lines = file.read_bytes().split(b"\n")
        lines[3] = lines[3][:20] + b"\xff\xfe" + lines[3][25:]
        file.write_bytes(b"\n".join(lines))
        self.expect_done(server, blocker, "cancel")
        self.expect_failed(server, waiting, "invalid_training_file", "line 4:")
        self.expect_next_job_works(server)

    def test_a_file_that_is_gone_is_named(self):
        server = self.serve()
        blocker, waiting = self.waiting_job(server, self.upload(server, chats()))
        name = self.job(server, waiting)["training_file"]
        (self.path / "data" / "files" / name).unlink()
        self.expect_done(server, blocker, "cancel")
        self.expect_failed(server, waiting, "not_found", name)
        self.expect_next_job_works(server)


class Models(Faults):
    def test_a_model_that_is_unloaded_during_a_job_costs_it_nothing(self):
        server = self.serve()
        file = self.upload(server, chats())
        job_id = self.start(server, file, 12)
        self.wait_for_steps(job_id, 2)
        status, _, answer = server.request("POST", "/admin/models/unload",
                                           {"id": MODEL, "wait": True}, admin=True)
        self.assertEqual(status, 200, answer)
        self.wait_for_status(server, job_id, *ENDED)
        job = self.job(server, job_id)
        self.assertEqual(job["status"], "succeeded", job)
        log = server.request("GET", f"/admin/jobs/{job_id}/log", admin=True)[2]
        self.assertIn("not served", log)
        self.assertEqual(server.stop(), 0)
        server = self.serve()
        self.chat(server, job["fine_tuned_model"])

    def test_a_model_that_is_deleted_is_named(self):
        server = self.serve()
        file = self.upload(server, chats())
        job_id = self.start(server, file, MANY)
        self.wait_for_steps(job_id, 3)
        self.expect_done(server, job_id, "pause")
        self.wait_for_status(server, job_id, "paused")
        (directory,) = (self.path / "data" / "models").iterdir()
        shutil.rmtree(directory)
        self.expect_done(server, job_id, "resume")
        self.expect_failed(server, job_id, "not_found", directory.name)
        # The server can write this one again.
        self.expect_next_job_works(server)


class Limits(Faults):
    def limit(self, job_id, what, size):
        """Limits the process of the job, from now on."""
        resource.prlimit(self.the_process(job_id), what, (size, size))

    def test_a_file_that_may_not_grow_fails_the_job(self):
        server = self.serve()
        job_id = self.start(server, self.upload(server, chats()), 12)
        self.wait_for_steps(job_id, 2)
        # From now on neither a checkpoint nor the adapter can be written.
        self.limit(job_id, resource.RLIMIT_FSIZE, 2000)
        self.answers_until_ended(server, job_id)
        self.expect_failed(server, job_id, "io_error", "File too large")
        self.assertFalse((self.job_dir(job_id) / "adapter").exists())
        self.expect_nothing_left(server)
        self.expect_next_job_works(server)

    def test_a_process_that_gets_no_memory_says_so_and_what_helps(self):
        server = self.serve()
        job_id = self.start(server, self.upload(server, chats()), MANY)
        self.the_process(job_id)
        # Before its runtime library has started, a process cannot even report an exception.
        self.wait_until("the process has begun",
                        lambda: (self.job_dir(job_id) / "events.jsonl").exists())
        self.limit(job_id, resource.RLIMIT_DATA, 1 << 20)
        self.answers_until_ended(server, job_id)
        job = self.expect_failed(server, job_id, "out_of_memory", "memory", "batch_size")
        self.assertIn("seq_len", job["error"]["message"])
        self.expect_next_job_works(server)

    def test_a_process_that_the_system_kills_for_memory_says_so(self):
        # Looks like the kernel's out-of-memory killer: SIGKILL at every restart.
        server = self.serve()
        job_id = self.start(server, self.upload(server, chats()), MANY)
        while self.status(server, job_id) not in ENDED:
            for pid in self.job_processes(job_id):
                kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        self.expect_failed(server, job_id, "interrupted", "signal 9", "ran out of memory", "smaller batches")
        self.expect_next_job_works(server)


class FullDisk(Faults):
    """The jobs' directory is a small file system that only the server sees."""

    def serve_with_small_disk(self, megabytes):
        jobs = self.path / "data" / "jobs"
        jobs.mkdir(parents=True)
        wrapper = self.path / "wrapper"
        wrapper.write_text(f"#!/bin/sh\nexec unshare -rm sh -c 'mount -t tmpfs -o size={megabytes}m "
                           f"tmpfs {jobs} && exec \"$0\" \"$@\"' {harness.BINARY} \"$@\"\n")
        wrapper.chmod(0o755)
        if subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode:
            self.skipTest("no mount namespaces here")
        binary, harness.BINARY = harness.BINARY, str(wrapper)
        try:
            return self.serve()
        finally:
            harness.BINARY = binary

    def test_the_job_fails_with_the_reason_and_serving_goes_on(self):
        server = self.serve_with_small_disk(2)
        file = self.upload(server, chats())
        job_id = self.create(server, file, seed=7, method=self.supervised(
            n_epochs=1, batch_size=4, lora=False))["id"]
        self.answers_until_ended(server, job_id)
        job = self.expect_failed(server, job_id, "io_error")
        self.assertRegex(job["error"]["message"], "(?i)no space|disk|room")
        # Small jobs still fit.
        small = self.create(server, file, seed=7, method=self.supervised(
            max_steps=1, lora={"rank": 1, "target_modules": ["q"]}))["id"]
        self.wait_for_status(server, small, *ENDED)
        self.assertEqual(self.status(server, small), "succeeded", self.job(server, small))
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    harness.main()
