#!/usr/bin/env python3
"""Jobs of a server on Kubernetes: kubectl with a false API server. `kubernetes_test.py BINARY [unittest arguments]`.

Exit code 77: kubectl is not installed.
"""

import json
import os
import pathlib
import signal
import sys

import kubernetes_case
from cluster_case import harness
from fine_tuning_test import chats
from job_case import ENDED, JobCase

SKIP_CODE = 77


class KubernetesJobs(JobCase):
    def setUp(self):
        super().setUp()
        environment = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(self.path / "cache")}
        self.cluster = kubernetes_case.Kubernetes(self.path, str(pathlib.Path(harness.BINARY).resolve()), environment)

    def tearDown(self):
        for server in self.servers:
            if server.process.poll() is None:
                server.kill()
        self.cluster.stop()
        super().tearDown()

    def serve_there(self, *more):
        options = [f"--jobs-option={word}" for word in (
            "--image=registry/tandem-trainer:1", "--claim=server-data", f"--mount={self.path / 'data'}",
            "--memory=4Gi", "--token-secret=huggingface-token")]
        return self.serve("--jobs-on", "kubernetes", *options, *more, env=self.cluster.env)

    def start_small(self, server, steps):
        return self.start(server, self.upload(server, chats()), steps)

    def test_a_job_is_killed_and_submitted_again_and_its_model_is_that_of_a_local_job(self):
        local = self.serve()
        reference = self.start_small(local, 12)
        self.wait_for_status(local, reference, "succeeded")
        local.stop()

        server = self.serve_there()
        job_id = self.start_small(server, 12)
        self.wait_for_steps(job_id, 4)
        for pid in self.job_processes(job_id):
            os.kill(pid, signal.SIGKILL)

        self.expect_same(server, job_id, reference)
        self.assertEqual(len(self.cluster.created), 2)
        self.wait_until("no object", lambda: not self.cluster.names())
        log = (self.job_dir(job_id) / "log.txt").read_text()
        self.assertEqual(log.count("submitted to Kubernetes as tandem-"), 2)
        self.check_object(self.cluster.created[0], job_id)

    def check_object(self, entry, job_id):
        pod = entry["spec"]["template"]["spec"]
        container = pod["containers"][0]
        self.assertEqual((entry["spec"]["backoffLimit"], pod["restartPolicy"]), (0, "Never"))
        self.assertEqual(container["image"], "registry/tandem-trainer:1")
        self.assertEqual(container["command"] + container["args"],
                         ["/usr/bin/tandem", "launch", "job", "--dir", str(self.job_dir(job_id)), "--verb", "train"])
        self.assertEqual(container["resources"]["limits"], {"memory": "4Gi"})
        self.assertIs(pod["securityContext"]["runAsNonRoot"], True)
        self.assertIs(container["securityContext"]["readOnlyRootFilesystem"], True)
        self.assertNotIn(harness.ADMIN_KEY, json.dumps(entry))

    def test_pause_resume_and_cancel(self):
        server = self.serve_there()
        job_id = self.start_small(server, 100000)
        self.wait_for_steps(job_id, 3)
        self.expect_done(server, job_id, "pause")
        self.wait_for_status(server, job_id, "paused")
        self.assertGreaterEqual(self.newest_checkpoint(job_id), 3)
        self.wait_until("no object", lambda: not self.cluster.names())
        self.expect_done(server, job_id, "resume")
        self.wait_for_steps(job_id, self.newest_checkpoint(job_id) + 2)
        self.expect_done(server, job_id, "cancel")
        self.wait_for_status(server, job_id, "cancelled")
        self.wait_until("no object", lambda: not self.cluster.names())
        self.assertEqual(self.job_processes(job_id), [])

    def test_a_waiting_job_is_cancelled(self):
        self.cluster.is_full = True
        server = self.serve_there()
        job_id = self.start_small(server, 4)
        self.wait_until("an object", self.cluster.names)
        self.expect_done(server, job_id, "cancel")
        self.wait_for_status(server, job_id, "cancelled")
        self.wait_until("no object", lambda: not self.cluster.names())
        self.assertEqual(self.losses(job_id), {})

    def test_a_killed_server_finds_its_job_and_an_absent_cluster_is_waited_for(self):
        server = self.serve_there()
        job_id = self.start_small(server, 40)
        self.wait_for_steps(job_id, 2)
        server.kill()
        self.cluster.is_down = True
        server = self.serve_there()
        self.wait_for_steps(job_id, 20)
        self.assertEqual(self.status(server, job_id), "running")
        self.cluster.is_down = False
        self.wait_for_status(server, job_id, *ENDED)
        self.assertEqual(self.job(server, job_id)["status"], "succeeded")
        self.assertEqual(len(self.cluster.created), 1)

    def test_the_server_refuses_options_that_kubernetes_needs(self):
        with self.assertRaises(AssertionError) as fault:
            self.serve("--jobs-on", "kubernetes", "--jobs-option=--image=i", env=self.cluster.env)
        self.assertIn("jobs-on kubernetes needs jobs-option --claim", str(fault.exception))


if __name__ == "__main__":
    if kubernetes_case.missing():
        print(f"SKIPPED: not installed: {' '.join(kubernetes_case.missing())}")
        sys.exit(SKIP_CODE)
    harness.main()
