#!/usr/bin/env python3
"""SIGKILL of the trainer, the server or both, at random moments of a fine-tuning job.

`job_kills_test.py BINARY [unittest arguments]`. TANDEM_SLOW_TESTS=1 kills fifty times.
"""

import os
import random
import signal
import time

import harness
from job_case import ENDED, JobCase, chats, kill

N_KILLS = 50 if os.environ.get("TANDEM_SLOW_TESTS") == "1" else 4


class Kills(JobCase):
    def kill_once(self, server, job_id, who):
        """Kills once; returns the server that runs afterwards."""
        pids = self.job_processes(job_id)
        if who == "trainer" or who == "both":
            for pid in pids:
                kill(pid, signal.SIGKILL)
        if who == "server" or who == "both":
            server.kill()
            server = self.serve()
        if who == "both, server first":
            server.kill()
            for pid in pids:
                kill(pid, signal.SIGKILL)
            server = self.serve()
        if who == "server, twice":
            server.kill()
            self.serve().kill()
            server = self.serve()
        return server

    def test_change_no_bit_of_what_comes_out(self):
        seed = int(os.environ.get("TANDEM_SEED", random.SystemRandom().randrange(1 << 30)))
        print(f"TANDEM_SEED={seed}", flush=True)
        draw = random.Random(seed)
        # Between two kills a job makes fewer than 12 steps, and half of that on average.
        steps = 12 * N_KILLS + 20
        server = self.serve()
        file = self.upload(server, 20 * chats())
        undisturbed = self.start(server, file, steps, batch_size=4)
        self.wait_for_status(server, undisturbed, *ENDED)

        job_id = self.start(server, file, steps, batch_size=4)
        # A second job in the queue, which runs while the first waits for its restart, must survive,
        # too.
        behind = self.start(server, file, 4, seed=8)
        kills = {}
        barren = 0  # kills of the trainer since the last checkpoint: after three more it gives up
        for _ in range(N_KILLS):
            checkpoint, before = self.newest_checkpoint(job_id), self.steps_done(job_id)
            if barren >= 2:
                self.wait_until("a checkpoint", lambda: self.newest_checkpoint(job_id) > checkpoint)
                barren = 0
            else:
                wanted = before + draw.randrange(5)
                self.wait_until("steps, or the end", lambda: self.steps_done(job_id) >= wanted)
            time.sleep(draw.random() * 0.05)
            if self.status(server, job_id) in ENDED:
                break
            who = draw.choice(("trainer", "trainer", "server", "both", "both, server first",
                               "server, twice"))
            server = self.kill_once(server, job_id, who)
            kills[who] = kills.get(who, 0) + 1
            if self.newest_checkpoint(job_id) > checkpoint:
                barren = 0
            elif who not in ("server", "server, twice"):
                barren += 1
        print(f"kills {kills}", flush=True)
        self.assertEqual(sum(kills.values()), N_KILLS)

        self.expect_same(server, job_id, undisturbed)
        self.wait_for_status(server, behind, *ENDED)
        self.assertEqual(self.status(server, behind), "succeeded")
        self.expect_nothing_left(server)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    harness.main()
