#!/usr/bin/env python3
"""Memory of a rank that shares the parameters: planned, measured, and that of one process.

`memory_test.py BINARY [unittest arguments]`. Run by `./test --cluster`. Takes 2 GiB.
"""

import re
import subprocess

from cluster_case import ClusterCase, harness

MODEL = ["model.n_layers=8", "model.hidden_dim=640", "model.n_heads=10", "model.vocab_size=8000",
         "precision.compute=f32", "per_device_batch_size=1", "gradient_accumulation_steps=2",
         "checkpoint.shard_bytes=67108864"]


class Memory(ClusterCase):
    STEPS = 2

    @staticmethod
    def peak_gb(output):
        return float(re.search(r"Memstats: after the run: using \(GB\) ([0-9.]+)", output)[1])

    def planned_gb(self, ranks, *words):
        plan = subprocess.run(
            [harness.BINARY, "plan", str(self.spec), "--sharding", str(ranks), *MODEL, *words],
            text=True, check=True, stdout=subprocess.PIPE).stdout
        return float(re.search(r"in all on a rank ([0-9.]+) MiB", plan)[1]) * 2**20 / 1e9

    def test_two_ranks_need_little_more_than_half(self):
        one = self.peak_gb(self.run_alone("one", *MODEL))
        shared = "ici_fsdp_parallelism=2"
        two = self.peak_gb(self.run_ranks(2, "two", *MODEL, shared))
        print(f"one process {one} GB, a rank of two {two} GB, "
              f"planned {self.planned_gb(1):.2f} and {self.planned_gb(2, shared):.2f} GB", flush=True)
        self.assertLessEqual(two / one, 0.6)
        self.assertAlmostEqual(self.planned_gb(1), one, delta=one / 10)
        self.assertAlmostEqual(self.planned_gb(2, shared), two, delta=two / 10)


if __name__ == "__main__":
    harness.main()
