#!/usr/bin/env python3
"""The states of jobs over HTTP: every transition, and server restarts in each state.

`job_states_test.py BINARY [unittest arguments]`.
"""

import signal
import threading
import time

import harness
from harness import PATIENCE_S
from job_case import ENDED, JobCase, chats, kill

MANY = 600  # steps: more than any test waits for


class States(JobCase):
    def begin(self):
        server = self.serve()
        return server, self.upload(server, chats())

    def test_queued_running_succeeded_and_what_cannot_be_done_then(self):
        server, file = self.begin()
        first = self.start(server, file, MANY)
        second = self.start(server, file, 4)
        self.wait_for_status(server, first, "running")
        self.assertEqual(self.status(server, second), "queued")
        self.expect_not_active(server, first, "resume")
        self.expect_not_active(server, second, "resume")
        self.expect_done(server, first, "cancel")
        self.wait_for_status(server, first, "cancelled")
        self.wait_for_status(server, second, *ENDED)
        self.assertEqual(self.status(server, second), "succeeded")
        for job_id in (first, second):
            self.expect_not_active(server, job_id, "cancel", "pause", "resume")
        cancelled = self.job(server, first)
        self.assertIsNone(cancelled["fine_tuned_model"])
        self.assertIsNone(cancelled["error"])
        self.assertIsNotNone(cancelled["finished_at"])
        self.expect_nothing_left(server)

    def test_a_queued_job_is_cancelled_or_paused_at_once(self):
        server, file = self.begin()
        running = self.start(server, file, MANY)
        self.wait_for_status(server, running, "running")
        cancelled, paused = self.start(server, file, 2), self.start(server, file, 2)
        self.assertEqual(self.expect_done(server, cancelled, "cancel")["status"], "cancelled")
        self.assertEqual(self.expect_done(server, paused, "pause")["status"], "paused")
        self.expect_not_active(server, paused, "pause")
        self.assertEqual(self.job_processes(cancelled) + self.job_processes(paused), [])
        self.assertEqual(self.expect_done(server, paused, "resume")["status"], "queued")
        self.assertEqual(self.expect_done(server, paused, "pause")["status"], "paused")
        self.assertEqual(self.expect_done(server, paused, "cancel")["status"], "cancelled")
        self.expect_done(server, running, "cancel")
        self.wait_for_status(server, running, "cancelled")
        self.expect_nothing_left(server)

    def test_a_job_that_cannot_go_on_fails_with_the_reason(self):
        server, file = self.begin()
        job_id = self.start(server, file, MANY)
        self.wait_for_steps(job_id, 1)
        kill(self.the_process(job_id), signal.SIGSEGV)
        self.wait_for_status(server, job_id, *ENDED)
        job = self.job(server, job_id)
        self.assertEqual((job["status"], job["error"]["code"]), ("failed", "crashed"))
        self.assertIn("signal 11", job["error"]["message"])
        self.expect_not_active(server, job_id, "cancel", "pause", "resume")
        self.expect_nothing_left(server)

    def test_paused_and_resumed_it_comes_to_the_same_bits(self):
        server, file = self.begin()
        undisturbed = self.start(server, file, 20)
        self.wait_for_status(server, undisturbed, *ENDED)
        job_id = self.start(server, file, 20)
        for steps in (3, 8):
            self.wait_for_steps(job_id, steps)
            self.expect_done(server, job_id, "pause")
            # It runs until its checkpoint is written, and cannot be resumed before.
            self.wait_for_status(server, job_id, "paused")
            self.assertEqual(self.job_processes(job_id), [])
            self.assertEqual(self.newest_checkpoint(job_id), self.steps_done(job_id))
            self.expect_not_active(server, job_id, "pause")
            self.expect_done(server, job_id, "resume")
            self.wait_for_status(server, job_id, "running")
        self.expect_same(server, job_id, undisturbed)
        self.expect_nothing_left(server)

    def test_jobs_run_one_at_a_time_and_in_order(self):
        server, file = self.begin()
        jobs = [self.start(server, file, 3, seed=seed) for seed in range(5)]
        seen = set()
        while self.status(server, jobs[-1]) not in ENDED:
            _, _, page = server.request("GET", "/admin/jobs?status=running", admin=True)
            self.assertLessEqual(len(page["data"]), 1)
            seen.update(job["id"] for job in page["data"])
            time.sleep(0.02)
        self.assertGreater(len(seen), 1)
        # Each job starts after the one before it has finished.
        began = [self.admin(server, job_id)["started_at"] for job_id in jobs]
        self.assertEqual(began, sorted(began))
        for earlier, later in zip(jobs, jobs[1:]):
            self.assertLessEqual(self.admin(server, earlier)["finished_at"],
                                 self.admin(server, later)["started_at"])
        self.expect_nothing_left(server)

    def test_a_paused_job_lets_others_pass_and_keeps_its_place(self):
        server, file = self.begin()
        blocker = self.start(server, file, MANY)
        self.wait_for_status(server, blocker, "running")
        early, late = self.start(server, file, 2), self.start(server, file, 2)
        self.expect_done(server, early, "pause")
        self.expect_done(server, blocker, "cancel")
        self.wait_for_status(server, late, "succeeded")
        self.assertEqual(self.status(server, early), "paused")
        blocker = self.start(server, file, MANY)
        self.wait_for_status(server, blocker, "running")
        last = self.start(server, file, 2)
        self.expect_done(server, early, "resume")
        self.expect_done(server, blocker, "cancel")
        self.wait_for_status(server, last, *ENDED)
        self.assertLessEqual(self.admin(server, early)["finished_at"],
                             self.admin(server, last)["started_at"])
        self.expect_nothing_left(server)

    def admin(self, server, job_id):
        return server.request("GET", f"/admin/jobs/{job_id}", admin=True)[2]


class Restarts(JobCase):
    """The server ends, gracefully or not, with one job in every state."""

    def restart(self, server, gracefully):
        if gracefully:
            self.assertEqual(server.stop(), 0)
        else:
            server.kill()
        return self.serve()

    def every_state_survives(self, gracefully):
        server = self.serve()
        file = self.upload(server, chats())
        undisturbed = self.start(server, file, 24)
        self.wait_for_status(server, undisturbed, "succeeded")
        succeeded = self.job(server, undisturbed)
        failed = self.start(server, file, MANY)
        self.wait_for_steps(failed, 1)
        kill(self.the_process(failed), signal.SIGSEGV)
        self.wait_for_status(server, failed, "failed")
        why = self.job(server, failed)["error"]
        interrupted = self.start(server, file, MANY)  # paused from running
        self.wait_for_steps(interrupted, 3)
        self.expect_done(server, interrupted, "pause")
        self.wait_for_status(server, interrupted, "paused")
        running = self.start(server, file, 24)
        queued, waiting, cancelled = (self.start(server, file, 3) for _ in range(3))
        self.expect_done(server, waiting, "pause")
        self.expect_done(server, cancelled, "cancel")
        self.wait_for_steps(running, 2)

        server = self.restart(server, gracefully)
        for job_id, states in ((undisturbed, ("succeeded",)), (failed, ("failed",)),
                               (interrupted, ("paused",)), (waiting, ("paused",)),
                               (cancelled, ("cancelled",)), (running, ("queued", "running")),
                               (queued, ("queued",))):
            self.assertIn(self.status(server, job_id), states, job_id)
        self.assertEqual(self.job(server, undisturbed), succeeded)
        self.assertEqual(self.job(server, failed)["error"], why)
        self.chat(server, succeeded["fine_tuned_model"])
        self.expect_same(server, running, undisturbed)
        self.wait_for_status(server, queued, "succeeded")
        self.expect_done(server, waiting, "resume")
        self.wait_for_status(server, waiting, "succeeded")
        self.expect_done(server, interrupted, "cancel")
        self.assertEqual(self.status(server, interrupted), "cancelled")
        self.expect_nothing_left(server)
        self.assertEqual(server.stop(), 0)

    def test_gracefully(self):
        self.every_state_survives(gracefully=True)

    def test_by_a_kill(self):
        self.every_state_survives(gracefully=False)

    def wish_survives(self, action, wanted, gracefully):
        """The server ends while the action is under way to a process that does not react."""
        server = self.serve()
        file = self.upload(server, chats())
        job_id = self.start(server, file, MANY)
        self.wait_for_steps(job_id, 2)
        pid = self.the_process(job_id)
        kill(pid, signal.SIGSTOP)
        self.expect_done(server, job_id, action)
        self.assertEqual(self.status(server, job_id), "running")
        self.expect_not_active(server, job_id, "resume")
        # The process wakes only when the server is about to end or has ended.
        wake = threading.Timer(0.5, kill, (pid, signal.SIGCONT))
        wake.start()
        server = self.restart(server, gracefully)
        self.wait_for_status(server, job_id, wanted)
        wake.join()
        if wanted == "paused":
            self.expect_done(server, job_id, "cancel")
        self.assertEqual(self.status(server, job_id), "cancelled")
        self.expect_nothing_left(server)
        self.assertEqual(server.stop(), 0)

    def test_with_a_cancel_pending(self):
        self.wish_survives("cancel", "cancelled", gracefully=True)
        self.wish_survives("cancel", "cancelled", gracefully=False)

    def test_with_a_pause_pending(self):
        self.wish_survives("pause", "paused", gracefully=True)
        self.wish_survives("pause", "paused", gracefully=False)


class Lists(JobCase):
    def test_admin_jobs_by_type_and_their_logs_to_the_end(self):
        models = self.path / "data" / "models"
        models.mkdir(parents=True)
        server = self.serve("--model-root", str(models))
        file = self.upload(server, chats())
        tuned = self.start(server, file, 4)
        self.assertEqual(self.follow(server, tuned)[-1], ("end", {"status": "succeeded"}))
        failed = self.start(server, file, MANY)
        follower = threading.Thread(target=lambda: seen.extend(self.follow(server, failed)))
        seen = []
        follower.start()
        self.wait_for_steps(failed, 1)
        kill(self.the_process(failed), signal.SIGSEGV)
        follower.join(PATIENCE_S)
        self.assertEqual(seen[-1], ("end", {"status": "failed"}))

        (base,) = (path.name for path in models.iterdir())
        ids = {"fine_tune": {tuned, failed}, "convert": set(), "pipeline": set(),
               "adapter_load": set()}
        for path, body, kind in (
                ("/admin/models/load", {"path": base, "id": "again", "wait": True}, "model_load"),
                ("/admin/models/unload", {"id": "again", "wait": True}, "model_unload")):
            status, _, job = server.request("POST", path, body, admin=True)
            self.assertEqual((status, job["type"], job["status"]), (200, kind, "succeeded"), job)
            ids[kind] = {job["id"]}
        (models / "text.txt").write_text("Once there was a dog.\n" * 100)
        status, _, job = server.request("POST", "/admin/jobs", {"type": "train", "spec": {
            "run_name": "tuned", "model": {"load_parameters_path": base},
            "data": {"train": "text.txt", "max_target_length": 64, "add_bos": True},
            "train": {"steps": 2, "per_device_batch_size": 1}}}, admin=True)
        self.assertEqual(status, 202, job)
        ids["train"] = {job["id"]}
        events = self.follow(server, job["id"])
        self.assertEqual(events[-1], ("end", {"status": "succeeded"}))
        self.assertTrue(all(name == "log" for name, _ in events[:-1]))
        self.assertEqual(sum("completed step:" in data["line"] for name, data in events[:-1]), 2)

        for kind, wanted in ids.items():
            _, _, page = server.request("GET", f"/admin/jobs?type={kind}", admin=True)
            self.assertEqual({job["id"] for job in page["data"]}, wanted, kind)
            self.assertEqual({job["type"] for job in page["data"]}, {kind} if wanted else set())
            for job in page["data"]:
                # The log of a finished job ends with the same event.
                self.assertEqual(self.follow(server, job["id"])[-1],
                                 ("end", {"status": job["status"]}))
        status, _, answer = server.request("GET", "/admin/jobs?type=trains", admin=True)
        self.assertEqual((status, answer["error"]["param"]), (400, "type"))
        self.expect_nothing_left(server)


if __name__ == "__main__":
    harness.main()
