#!/usr/bin/env python3
"""End-to-end tests of `tandem quantize`.

`quantize_test.py BINARY [unittest arguments]`.
"""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import harness
from harness import GOLDEN


class Quantize(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_it(self, *arguments, code=0):
        done = subprocess.run(
            [harness.BINARY, "quantize", *map(str, arguments)], text=True, check=False,
            env={**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache")},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, code, done.stderr)
        return json.loads(done.stdout) if code == 0 else done.stderr

    def test_the_report_says_what_rounding_changed_and_is_kept(self):
        kept = self.folder / "report.json"
        report = self.run_it("--dtype", "int8", "--report", kept)
        self.assertEqual(json.loads(kept.read_text()), report)
        self.assertEqual((report["reference_dtype"], report["dtype"]), ("bf16", "int8"))
        self.assertLess(report["bytes"], 0.6 * report["reference_bytes"])
        self.assertGreater(report["positions"], 300)
        self.assertTrue(0 < report["mean_kl"] < 0.002, report)
        self.assertGreaterEqual(report["max_kl"], report["mean_kl"])
        self.assertTrue(0.97 < report["same_first_choice"] <= 1, report)
        self.assertTrue(0.98 < report["perplexity_ratio"] < 1.02, report)

        # Serving with this type will map this file.
        self.assertEqual(pathlib.Path(report["packed_file"]).stat().st_size, report["bytes"])

    def test_the_text_is_the_users_and_fewer_bits_are_farther(self):
        text = self.folder / "text.txt"
        text.write_text("Once upon a time there was a little dog. He liked to play.\n" * 20)
        eight, four = (self.run_it("--dtype", dtype, "--text", text, "--window", 100)
                       for dtype in ("int8", "int4"))
        self.assertEqual(eight["text"], str(text))
        self.assertEqual(eight["reference_perplexity"], four["reference_perplexity"])
        self.assertGreater(four["mean_kl"], eight["mean_kl"])
        self.assertLess(four["bytes"], eight["bytes"])

    def test_a_model_without_a_tokenizer_reads_ids(self):
        report = self.run_it("-m", GOLDEN / "llama2-tiny-two-shards", "--dtype", "int8",
                             "--window", 64)
        self.assertEqual((report["text"], report["positions"]), ("random ids", 512))
        self.assertNotIn("perplexity", report)

    def test_faults_are_named(self):
        self.assertIn("int8", self.run_it("--dtype", "int2", code=2))
        self.assertIn("no tokenizer", self.run_it("-m", GOLDEN / "qwen3-tiny", "--dtype", "int8",
                                                  "--text", __file__, code=2))
        empty = self.folder / "empty.txt"
        empty.write_text("")
        self.assertIn("two tokens", self.run_it("--dtype", "int8", "--text", empty, code=2))


if __name__ == "__main__":
    harness.main()
