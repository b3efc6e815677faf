#!/usr/bin/env python3
"""`tandem checkpoint` on a run's checkpoints and on models: show, verify, diff, hash, gc, reshard.

`checkpoint_verbs_test.py BINARY [unittest arguments]`.
"""

import json
import os
import shutil
import struct

import harness
from harness import GOLDEN
from run_case import RunCase

BASE = GOLDEN / "llama2-tiny-two-shards"


def tensors_of(file):
    """Name to dtype and bytes."""
    data = file.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return {name: (tensor["dtype"], data[8 + length + tensor["data_offsets"][0]:
                                         8 + length + tensor["data_offsets"][1]])
            for name, tensor in header.items()}


def joined(high, low):
    """Master weights from bf16 halves and their signed remainders."""
    n = len(high) // 2
    return struct.pack(f"<{n}I", *(((h << 16) + l) & 0xFFFFFFFF for h, l in zip(
        struct.unpack(f"<{n}H", high), struct.unpack(f"<{n}h", low))))


class CheckpointVerbs(RunCase):
    STEPS = 5
    MORE = "checkpoint: {period: 1, keep: 5}\n"

    def checkpoint(self, *arguments, code=0):
        return self.tandem("checkpoint", *arguments, code=code)

    def json(self, *arguments, code=0):
        return json.loads(self.checkpoint(*arguments, "--json", code=code))

    def steps(self, folder):
        return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit())

    def test_a_run_is_shown_verified_and_cleared(self):
        steps = self.folder / "copy" / "checkpoints"
        shutil.copytree(self.run_dir / "checkpoints", steps)
        self.assertEqual(self.steps(steps), [1, 2, 3, 4, 5])
        shown = self.json("show", steps)
        self.assertEqual((shown["kind"], shown["step"]), ("full", 5))
        self.assertGreater(shown["tensors"], 4)
        self.assertIn("step: 5", self.checkpoint("show", steps))
        report = self.json("verify", steps)
        self.assertEqual((report["faults"], report["path"]),
                         ([], str(steps / "000000000005")))

        weights = steps / "000000000005" / "model.safetensors"
        with weights.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)[0]
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last ^ 1]))
        self.assertEqual(self.json("verify", steps, "--quick")["faults"], [])
        self.assertIn("model.safetensors", self.checkpoint("verify", steps, code=65))
        self.assertEqual(self.json("verify", steps / "000000000004")["faults"], [])

        (steps / ".trash-000000000000").mkdir()
        plan = self.json("gc", self.folder / "copy", "--keep", 1, "--dry-run")
        self.assertEqual(self.steps(steps), [1, 2, 3, 4, 5])
        done = self.json("gc", self.folder / "copy", "--keep", 1)
        self.assertEqual(done["removed"], plan["removed"])
        # Keeps the newest, the newest sound one, and the best.
        best = json.loads((steps / "000000000004" / "train_state.json").read_text())["best_step"]
        self.assertEqual(self.steps(steps), sorted({5, 4, best} - {-1}))
        self.assertFalse((steps / ".trash-000000000000").exists())

    def test_content_is_hashed_compared_and_cut_anew(self):
        other = self.folder / "other"
        self.tandem("convert", BASE, other, "--dtype", "f32")
        same = self.folder / "same"
        made = json.loads(self.checkpoint("reshard", BASE, same, "--shard-bytes", "32K"))
        self.assertEqual(made["certificate"]["max_abs_difference"], 0)
        self.assertGreater(len(list(same.glob("*.safetensors"))), 2)

        self.assertEqual(self.checkpoint("hash", same).split()[0],
                         self.checkpoint("hash", BASE).split()[0])
        self.assertNotEqual(self.json("hash", other)["tensors_sha256"],
                            self.json("hash", BASE)["tensors_sha256"])
        self.assertTrue(self.json("diff", BASE, same)["equal"])
        difference = self.json("diff", BASE, other, code=1)
        self.assertEqual(len(difference["differences"]), difference["compared"])
        self.assertIn("type", self.checkpoint("diff", BASE, other, code=1))
        maxtext = self.folder / "maxtext"
        self.tandem("convert", GOLDEN / "gemma2-tiny", maxtext, "--to", "maxtext")
        self.assertTrue(self.json("diff", maxtext, GOLDEN / "gemma2-tiny")["equal"])
        (maxtext / "config.json").unlink()
        self.assertTrue(self.json("diff", GOLDEN / "gemma2-tiny", maxtext, "--base",
                                  GOLDEN / "gemma2-tiny")["equal"])
        self.assertEqual(self.json("verify", other)["held_to"], "SHA-256 of convert.json")
        shown = self.json("show", other)["provenance"]
        self.assertEqual(shown["parents"][0]["name"], BASE.name)
        self.assertEqual(shown["certificate"]["state"], "measured")
        # The resharded model computes exactly the same.
        self.tandem("convert", same, self.folder / "back", "--max-kl", 0)

    def test_weights_alone_are_rounded_from_the_masters(self):
        step = self.run_dir / "checkpoints" / "000000000005"
        exported = {}
        for dtype in ("f32", "bf16", "keep"):
            target = self.folder / f"params-{dtype}"
            made = json.loads(self.checkpoint("export-params", self.run_dir / "checkpoints", target,
                                              "--dtype", dtype))
            self.assertEqual(made["certificate"]["state"], "measured", made)
            self.assertFalse(list(target.glob("optim*")))
            self.assertEqual(self.json("verify", target)["faults"], [])
            self.assertEqual(self.json("show", target)["kind"], "params")
            exported[dtype] = tensors_of(target / "model.safetensors")
        weights = tensors_of(step / "model.safetensors")
        low = {name[4:]: data for name, (_, data) in
               tensors_of(step / "optim.safetensors").items() if name.startswith("low/")}
        self.assertEqual(sorted(exported["f32"]), sorted(weights))
        for name, (dtype, data) in weights.items():
            master = data if dtype == "F32" else joined(data, low[name])
            self.assertEqual(exported["f32"][name], ("F32", master), name)
            self.assertEqual(exported["keep"][name], (dtype, data), name)
            self.assertEqual(exported["bf16"][name][0], "BF16")
            if dtype == "BF16":  # the weight is the master rounded, by construction
                self.assertEqual(exported["bf16"][name][1], data, name)
        self.checkpoint("export-params", step, self.folder / "none", "--dtype", "int3", code=2)

    def test_what_is_no_checkpoint_is_refused(self):
        nowhere = self.folder / "nowhere"
        for verb in ("show", "verify", "hash", "gc"):
            self.assertIn("nowhere", self.checkpoint(verb, nowhere, code=1))
        (self.folder / "empty").mkdir()
        self.checkpoint("hash", self.folder / "empty", code=1)

    def test_a_conversion_that_is_too_far_leaves_nothing(self):
        told = self.tandem("convert", GOLDEN / "mistral-tiny", self.folder / "far", "--dtype", "bf16", "--max-kl", 0,
                           code=65)
        self.assertFalse((self.folder / "far").exists())
        self.assertRegex(told, r"KL divergence from the source is up to [\d.e-]+")


if __name__ == "__main__":
    harness.main()
