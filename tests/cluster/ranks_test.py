#!/usr/bin/env python3
"""Training on two ranks under mpirun, quickly. `ranks_test.py BINARY [unittest arguments]`."""

import subprocess

from cluster_case import ClusterCase, harness


class Ranks(ClusterCase):
    def test_two_ranks_have_the_bits_of_one_process(self):
        self.run_alone("one", "world_invariant=2")
        output = self.run_ranks(2, "two", "world_invariant=2")
        self.assertEqual(len(self.losses("one")), self.STEPS)
        self.assertEqual(self.losses("two"), self.losses("one"))
        self.assertEqual(self.weights("two"), self.weights("one"))
        self.assertIn("2 ranks share each step: 2 micro-batches of 4 rows", output)
        # Only the first rank reports and writes.
        self.assertEqual(output.count("completed step: 0,"), 1, output)
        self.assertEqual(len([row for row in self.rows("two") if "learning/loss" in row]), self.STEPS)
        self.assertEqual(sorted(path.name for path in (self.folder / "two").iterdir()),
                         sorted(path.name for path in (self.folder / "one").iterdir()))

    def test_ranks_that_share_parameters_have_the_bits_of_one_process(self):
        self.run_alone("alone", "world_invariant=4")
        for name, ranks, words in (("fsdp", 2, ["ici_fsdp_parallelism=2"]),
                                   ("mesh", 4, ["mesh=data=2,fsdp=2", "checkpoint.shard_bytes=65536"])):
            self.run_ranks(ranks, name, "world_invariant=4", *words)
            self.assertEqual(self.losses(name), self.losses("alone"))
        self.assertEqual(self.weights("fsdp"), self.weights("alone"))
        parts = sorted(path.name for path in (self.folder / "mesh" / "hf").glob("model*"))
        self.assertIn("model.safetensors.index.json", parts)
        self.assertTrue(any(name.startswith("model-00004-of-") for name in parts), parts)
        # Readers take a checkpoint of several files like any other.
        newest = max((self.folder / "mesh" / "checkpoints").glob("0*"))
        self.assertTrue(list(newest.glob("optim-00004-of-*")))
        whole = max((self.folder / "alone" / "checkpoints").glob("0*"))
        for words in (["verify", newest], ["diff", newest, whole]):
            self.finish([harness.BINARY, "checkpoint", *map(str, words)])
        for source, name in ((newest, "from-parts"), (whole, "from-whole")):
            self.finish([harness.BINARY, "convert", str(source), str(self.folder / name), "--to", "hf"])
        self.assertEqual((self.folder / "from-parts" / "model.safetensors").read_bytes(),
                         (self.folder / "from-whole" / "model.safetensors").read_bytes())

    def test_ranks_that_share_matrices_have_the_losses_of_one_process(self):
        f32 = "precision.compute=f32"
        self.run_alone("whole", f32)
        for name, ranks, words in (("tensor", 2, ["ici_tensor_parallelism=2"]),
                                   ("tensor-mesh", 4, ["mesh=data=2,tensor=2"]),
                                   ("sequence", 2, ["ici_tensor_sequence_parallelism=2"])):
            output = self.run_ranks(ranks, name, f32, *words)
            self.assertIn("by 2 ranks with their parts of the matrices", output)
            self.assertEqual("between them, of the rows" in output, name == "sequence")
            self.assertEqual(len(self.losses(name)), self.STEPS)
            ours = self.losses(name)
            for step, loss in self.losses("whole").items():
                self.assertAlmostEqual(ours[step], loss, delta=1e-4 * abs(loss))

    def test_the_program_does_not_link_mpi(self):
        libraries = subprocess.run(["ldd", harness.BINARY], text=True, check=True,
                                   stdout=subprocess.PIPE).stdout
        self.assertNotIn("libmpi", libraries)

    def test_without_the_plugin_the_error_says_what_to_install(self):
        output = self.run_alone("none", code=1, env={
            "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1",
            "TANDEM_MPI_PLUGIN": str(self.folder / "absent.so")})
        self.assertIn("absent.so", output)
        self.assertIn("apt-get install libopenmpi-dev openmpi-bin", output)


if __name__ == "__main__":
    harness.main()
