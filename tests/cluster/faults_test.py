#!/usr/bin/env python3
"""Faults of ranks under mpirun: signals, deaths, hangs, ranks that differ.

`faults_test.py BINARY [unittest arguments]`. Run by `./test --cluster`. TANDEM_KILLS sets the number
of ranks that the tests kill, 3 without it.
"""

import os
import pathlib
import random
import shutil
import signal
import time

from cluster_case import MPIRUN, ClusterCase, harness

TRY_AGAIN = 75
DEATH_S = 10  # after the death of a rank all ranks end within this time


class Faults(ClusterCase):
    STEPS = 50

    def whole(self):
        """A run without faults, made once."""
        if not (self.folder / "whole" / "result.json").exists():
            self.run_ranks(2, "whole")
        return self.losses("whole"), self.weights("whole")

    def expect_end(self, process, within_s=DEATH_S):
        begin = time.monotonic()
        self.assertEqual(process.wait(timeout=harness.PATIENCE_S), TRY_AGAIN)
        self.assertLess(time.monotonic() - begin, within_s)

    def test_signals_on_any_rank_save_on_all(self):
        for number in (signal.SIGTERM, signal.SIGUSR1):
            for rank in (0, 1):
                name = f"{number.name}-{rank}"
                process = self.start_ranks(2, name)
                workers = self.workers(process, 2)
                self.wait_for_step(process, name, 3)
                os.kill(workers[rank], number)
                self.expect_end(process)
                saved = max(int(path.name) for path in (self.folder / name / "checkpoints").iterdir()
                            if path.name.isdigit())
                self.assertEqual(saved, max(self.losses(name)) + 1)
                self.run_ranks(2, name)
                self.assertEqual((self.losses(name), self.weights(name)), self.whole())

    def kill_at_random(self, name, *words):
        """Kills a rank at random steps, in runs that resume, and then lets the run end."""
        seed = int(os.environ.get("TANDEM_SEED", random.SystemRandom().randrange(1 << 30)))
        print(f"TANDEM_SEED={seed}", flush=True)
        draw = random.Random(seed)
        kills = int(os.environ.get("TANDEM_KILLS", "3"))
        for step in sorted(draw.sample(range(1, self.STEPS - 5), kills)):
            process = self.start_ranks(2, name, *words)
            workers = self.workers(process, 2)
            self.wait_for_step(process, name, step)
            self.assertIsNone(process.poll(), "the run has ended before the kill")
            os.kill(draw.choice(workers), signal.SIGKILL)
            self.expect_end(process)
            for worker in workers:
                self.assertFalse(pathlib.Path(f"/proc/{worker}/exe").exists(), "a rank lives on")
        return self.run_ranks(2, name, *words)

    def test_a_rank_killed_at_random_changes_no_bit(self):
        self.kill_at_random("killed")
        self.assertEqual((self.losses("killed"), self.weights("killed")), self.whole())

    def test_shared_parameters_and_two_places_of_checkpoints(self):
        self.run_ranks(2, "shared", "ici_fsdp_parallelism=2")
        local = self.folder / "ram"
        words = ["ici_fsdp_parallelism=2", f"local_checkpoint_directory={local}",
                 "local_checkpoint_period=2", "checkpoint.period=20"]
        output = self.kill_at_random("shared-killed", *words)
        self.assertIn("resumed after step", output)
        self.assertEqual(self.losses("shared-killed"), self.losses("shared"))
        self.assertEqual(self.weights("shared-killed"), self.weights("shared"))
        self.assertEqual([path.name for store in local.iterdir() for path in store.iterdir()
                          if path.name.isdigit()], [], "storage has the newest")

    def test_a_hanging_rank_is_found(self):
        process = self.start_ranks(2, "hanging", "--rank-timeout", 2)
        workers = self.workers(process, 2)
        self.wait_for_step(process, "hanging", 2)
        os.kill(workers[1], signal.SIGSTOP)
        self.expect_end(process, 2 + DEATH_S)
        self.assertIn("rank 0 has waited 2 s", (self.folder / "hanging.log").read_text())

    def expect_difference(self, what, *second):
        output = self.finish([*MPIRUN, "-n", "1", *self.command("unequal"), ":", "-n", "1", *second],
                             code=1)
        self.assertIn(f"the ranks differ in {what}: rank 0 on ", output)
        self.assertIn("rank 1 on ", output)
        self.assertFalse((self.folder / "unequal" / "checkpoints").exists())

    def test_ranks_that_differ_are_refused_by_name(self):
        self.expect_difference("the spec", *self.command("unequal", "learning_rate=0.1"))
        self.expect_difference("the instruction set", "env", "TANDEM_FORCE_ISA=reference",
                               *self.command("unequal"))
        other = self.folder / "tandem"
        shutil.copy(harness.BINARY, other)
        with open(other, "ab") as program:
            program.write(b"\0")
        plugin = pathlib.Path(harness.BINARY).resolve().parent / "tandem_mpi.so"
        self.expect_difference("the program", "env", f"TANDEM_MPI_PLUGIN={plugin}", str(other),
                               *self.command("unequal")[1:])

    def test_another_number_of_ranks(self):
        words = ["world_invariant=4", "shard_optimizer_over_data=true"]
        self.run_ranks(4, "four", *words)
        process = self.start_ranks(4, "elastic", *words)
        self.wait_for_step(process, "elastic", 9)
        os.kill(self.workers(process, 4)[2], signal.SIGTERM)
        self.expect_end(process)
        output = self.run_ranks(2, "elastic", *words, code=2)
        self.assertIn("elastic=true", output)
        self.run_ranks(2, "elastic", *words, "elastic=true")
        self.assertEqual(self.losses("elastic"), self.losses("four"))
        self.assertEqual(self.weights("elastic"), self.weights("four"))


if __name__ == "__main__":
    harness.main()
