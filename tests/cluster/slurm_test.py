#!/usr/bin/env python3
"""Jobs of a server and training runs under a real Slurm. `slurm_test.py BINARY [unittest arguments]`.

Exit code 77: Slurm is not installed.
"""

import os
import re
import signal
import subprocess
import sys
import time

import slurm_case
from cluster_case import ClusterCase, processes_that_train

import harness
from fine_tuning_test import chats
from job_case import ENDED, JobCase

SKIP_CODE = 77
# Hyperparameters of the tutorial of fine-tuning over many hosts, with few steps.
SEED_B = {"batch_size": 1, "max_steps": 24, "checkpoint_every": 2}


class SlurmJobs(JobCase):
    """The fine-tuning API with --jobs-on slurm."""

    def setUp(self):
        self.slurm = slurm_case.Slurm()
        self.addCleanup(self.slurm.stop)
        super().setUp()

    def serve_on_slurm(self):
        return self.serve("--jobs-on", "slurm", "--jobs-option=--partition=long", "--jobs-option=--cpus-per-task=2",
                          env=self.slurm.env)

    def seed_b(self, server, steps=SEED_B["max_steps"]):
        return self.create(server, self.upload(server, chats()), seed=7, method=self.supervised(
            n_epochs=50, **{**SEED_B, "max_steps": steps}))["id"]

    def the_one_in_slurm(self, job_id):
        lines = [line.split() for line in self.slurm.queue()]
        found = [line for line in lines if line[1] == f"tandem-{job_id}"]
        self.assertEqual(len(found), 1, lines)
        return found[0][0]

    def wait_for_queue(self, state):
        self.wait_until(state, lambda: [line.split()[2] for line in self.slurm.queue()] == [state])

    def log(self, job_id):
        return (self.job_dir(job_id) / "log.txt").read_text()

    def test_a_job_is_killed_and_requeued_and_its_model_is_that_of_a_local_job(self):
        steps = 150  # so that Slurm requeues a job that still trains
        local = self.serve()
        reference = self.seed_b(local, steps)
        self.wait_for_status(local, reference, "succeeded")
        local.stop()

        server = self.serve_on_slurm()
        job_id = self.seed_b(server, steps)
        self.wait_for_steps(job_id, 3)
        # The process dies: the supervisor submits the job again.
        first = self.the_one_in_slurm(job_id)
        for pid in self.job_processes(job_id):
            os.kill(pid, signal.SIGKILL)
        self.wait_until("another run", lambda: self.log(job_id).count("submitted to Slurm as ") == 2)
        self.wait_for_steps(job_id, 6)
        second = self.the_one_in_slurm(job_id)
        self.assertNotEqual(second, first)
        # Slurm takes the job from its node. The process writes a checkpoint and asks for a restart, which the server
        # submits in place of the requeued job.
        self.slurm.tool("scontrol", "requeue", second)
        self.wait_until("the requeue", lambda: self.log(job_id).count("submitted to Slurm as ") == 3)

        self.expect_same(server, job_id, reference)
        self.assertEqual(self.slurm.queue(), [])
        self.assertFalse((self.job_dir(job_id) / "cluster.json").exists())

    def test_a_cancelled_job_leaves_the_queue_and_writes_a_checkpoint(self):
        server = self.serve_on_slurm()
        job_id = self.seed_b(server, steps=100000)
        self.wait_for_steps(job_id, 3)
        number = self.the_one_in_slurm(job_id)
        self.expect_done(server, job_id, "pause")
        self.wait_for_status(server, job_id, "paused")
        self.assertEqual(self.slurm.queue(), [])
        self.assertGreaterEqual(self.newest_checkpoint(job_id), 3)
        self.expect_done(server, job_id, "resume")
        self.wait_for_steps(job_id, self.newest_checkpoint(job_id) + 2)
        self.assertNotEqual(self.the_one_in_slurm(job_id), number)
        self.expect_done(server, job_id, "cancel")
        self.wait_for_status(server, job_id, "cancelled")
        self.wait_until("an empty queue", lambda: not self.slurm.queue())

    def test_a_waiting_job_is_cancelled_and_a_killed_server_finds_the_running_one(self):
        server = self.serve_on_slurm()
        self.slurm.tool("scontrol", "update", "PartitionName=long", "State=DOWN")
        waiting = self.seed_b(server)
        self.wait_for_queue("PENDING")
        self.expect_done(server, waiting, "cancel")
        self.wait_for_status(server, waiting, "cancelled")
        self.wait_until("an empty queue", lambda: not self.slurm.queue())
        self.slurm.tool("scontrol", "update", "PartitionName=long", "State=UP")

        running = self.seed_b(server)
        self.wait_for_steps(running, 2)
        number = self.the_one_in_slurm(running)
        server.kill()
        server = self.serve_on_slurm()
        self.wait_for_status(server, running, *ENDED)
        self.assertEqual(self.job(server, running)["status"], "succeeded")
        self.assertEqual(self.slurm.state(number), "COMPLETED")
        self.assertEqual(self.log(running).count("submitted to Slurm"), 1)

    def test_an_option_that_slurm_refuses_fails_the_job_with_its_words(self):
        server = self.serve("--jobs-on", "slurm", "--jobs-option=--partition=absent", env=self.slurm.env)
        job_id = self.seed_b(server)
        self.wait_for_status(server, job_id, "failed")
        self.assertIn("invalid partition", self.job(server, job_id)["error"]["message"])


class SlurmRanks(ClusterCase):
    """`tandem launch slurm`: two nodes, one rank each, started by srun over PMIx."""

    STEPS = 40

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.slurm = slurm_case.Slurm()
        cls.addClassCleanup(cls.slurm.stop)

    def launch(self, name, *words):
        done = subprocess.run(
            [harness.BINARY, "launch", "slurm", str(self.spec), f"run_name={name}", *words, "--nodes", "2",
             "--name", name, "--dir", str(self.folder), "--program", harness.BINARY, "--submit"],
            env={**self.environment, **self.slurm.env}, capture_output=True, text=True, check=True)
        return re.fullmatch(r"(\d+)\n", done.stdout)[1]

    def wait_until(self, what, condition):
        deadline = time.monotonic() + harness.PATIENCE_S
        while not condition():
            self.assertLess(time.monotonic(), deadline, f"still not: {what}\n{self.slurm.logs()}")
            time.sleep(0.05)

    def expect_two_starts_and_the_bits_of_one_process(self, name, number):
        # Slurm keeps a requeued job waiting for two minutes.
        self.wait_until("the requeue", lambda: "Restarts=1 " in self.slurm.tool("scontrol", "show", "job", number)
                        and self.slurm.state(number) == "PENDING")
        self.slurm.tool("scontrol", "update", f"JobId={number}", "StartTime=now")
        self.wait_until("the end", lambda: self.slurm.state(number) in ("COMPLETED", "FAILED", "NODE_FAIL"))
        log = (self.folder / f"{name}-{number}.log").read_text()
        self.assertEqual(self.slurm.state(number), "COMPLETED", log)
        self.assertEqual(re.search(r"Restarts=(\d+)", self.slurm.tool("scontrol", "show", "job", number))[1], "1")
        self.assertIn("2 ranks share each step", log)
        if not (self.folder / "one").exists():
            self.run_alone("one", "world_invariant=2")
        self.assertEqual(self.losses(name), self.losses("one"))
        self.assertEqual(self.weights(name), self.weights("one"))

    def test_a_signal_before_the_limit_requeues_the_job(self):
        number = self.launch("signalled", "world_invariant=2")
        self.wait_until("some steps", lambda: len(self.losses("signalled")) > 8)
        # As before a time limit: the batch script gets SIGTERM and asks for a requeue with exit code 75.
        self.slurm.tool("scancel", "--batch", "--signal=TERM", number)
        self.expect_two_starts_and_the_bits_of_one_process("signalled", number)

    def test_a_cancelled_job_is_not_requeued(self):
        number = self.launch("cancelled", "steps=100000")
        self.wait_until("some steps", lambda: len(self.losses("cancelled")) > 2)
        self.slurm.tool("scancel", number)
        self.wait_until("an empty queue", lambda: not self.slurm.queue())
        self.assertEqual(self.slurm.state(number), "CANCELLED")
        self.assertIn("Restarts=0 ", self.slurm.tool("scontrol", "show", "job", number))

    def test_the_death_of_a_rank_requeues_the_job(self):
        number = self.launch("killed", "world_invariant=2")
        self.wait_until("some steps", lambda: len(self.losses("killed")) > 8)
        os.kill(processes_that_train("run_name=killed")[-1], signal.SIGKILL)
        self.expect_two_starts_and_the_bits_of_one_process("killed", number)


if __name__ == "__main__":
    if slurm_case.missing():
        print(f"SKIPPED: not installed: {' '.join(slurm_case.missing())}")
        sys.exit(SKIP_CODE)
    harness.main()
