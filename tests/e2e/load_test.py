#!/usr/bin/env python3
"""`tandem bench http` against `tandem serve`: the client's counts equal the server's.

`load_test.py BINARY [unittest arguments]`.
"""

import json
import subprocess

import harness
from harness import GOLDEN, PATIENCE_S, Case


class Load(Case):
    def bench(self, *arguments, code=0):
        """(the report, the output)"""
        report = self.path / "report.json"
        run = subprocess.run(
            [harness.BINARY, "bench", "http", "--json", str(report), *arguments],
            capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertEqual(run.returncode, code, run.stdout + run.stderr)
        return (json.loads(report.read_text()) if report.exists() else None), run.stdout

    def url(self, server):
        return "http://%s:%d" % server.address

    def test_token_prompts_in_a_closed_loop_are_counted_as_the_server_counts_them(self):
        server = self.serve("--model", str(GOLDEN / "llama3-tiny-rope-scaling"))

        report, text = self.bench(
            "--url", self.url(server), "--endpoint", "completions", "--token-ids", "1-200",
            "--streams", "6", "--requests", "18", "--prompt-tokens", "20", "--output-tokens", "8",
            "--server-pid", str(server.process.pid))

        run = report["runs"][0]
        self.assertEqual((run["ok"], run["failed"], run["aborted"]), (18, 0, 0))
        self.assertEqual(run["without_usage"], 0)
        self.assertEqual(run["other_length"], 0)
        self.assertEqual(run["prompt_tokens"], 18 * 20)
        self.assertEqual(run["output_tokens"], 18 * 8)
        self.assertLessEqual(run["connections"], 6)
        self.assertGreater(run["server_rss_bytes"], 1 << 20)
        self.assertIn("18 ok, 0 failed, 0 aborted", text)
        self.assertEqual(server.stop(), 0)

    def test_a_path_is_probed_beside_the_load(self):
        server = self.serve("--model", str(GOLDEN / "llama3-tiny-rope-scaling"))
        load = ["--url", self.url(server), "--endpoint", "completions", "--token-ids", "1-200",
                "--streams", "8", "--requests", "24", "--prompt-tokens", "8",
                "--output-tokens", "4", "--new-connections", "--probe-interval", "0.002"]

        url = self.url(server) + "/ready"
        report, text = self.bench(*load, "--probe", "/health", "--probe", url)

        probes = report["runs"][0]["probes"]
        self.assertEqual([probe["path"] for probe in probes], ["/health", url])
        for probe in probes:
            self.assertGreater(probe["ok"], 0)
            self.assertEqual(probe["failed"], 0, probe["fault"])
            self.assertGreater(probe["p50"], 0)
            self.assertLessEqual(probe["p999"], probe["max"])
            self.assertIn(probe["path"] + " ", text)
        report, _ = self.bench(*load, "--probe", "/absent", code=1)
        self.assertEqual(report["runs"][0]["probes"][0]["fault"], "status 404")
        self.assertEqual(server.stop(), 0)

    def test_vanishing_clients_of_an_open_loop_harm_nobody(self):
        server = self.serve()

        report, _ = self.bench("--url", self.url(server), "--rate", "200", "--arrival", "constant",
                               "--requests", "40", "--prompt-tokens", "40", "--output-tokens",
                               "40", "--abort", "0.5")

        run = report["runs"][0]
        self.assertEqual(run["failed"], 0)
        self.assertEqual(run["ok"] + run["aborted"], 40)
        self.assertGreater(run["aborted"], 5)
        self.assertGreater(run["ok"], 5)
        self.assertEqual(run["output_tokens"], 40 * run["ok"])
        self.assertGreaterEqual(run["wall_s"], 39 / 200)
        self.assertEqual(server.stop(), 0)

    def test_a_peer_is_asked_the_same_in_turns(self):
        server = self.serve()

        report, text = self.bench(
            "--url", self.url(server), "--peer", self.url(server), "--peer-model",
            "tandem-stories", "--pairs", "3", "--streams", "2", "--requests", "4",
            "--prompt-tokens", "40", "--output-tokens", "8", "--no-stream")

        self.assertEqual([(r["pair"], r["side"]) for r in report["runs"]],
                         [(1, "A"), (1, "B"), (2, "A"), (2, "B"), (3, "A"), (3, "B")])
        for a, b in zip(report["runs"][::2], report["runs"][1::2]):
            self.assertEqual(a["prompt_tokens"], b["prompt_tokens"])
            self.assertEqual((a["ok"], b["ok"]), (4, 4))
        ratio = report["ratios"]["output_tokens_per_s"]
        self.assertEqual(len(ratio["pairs"]), 3)
        self.assertAlmostEqual(ratio["ratio"], ratio["a"] / ratio["b"])
        self.assertIn("A/B", text)
        self.assertEqual(server.stop(), 0)

    def test_refused_requests_are_failures_by_status(self):
        server = self.serve()

        report, text = self.bench("--url", self.url(server), "--streams", "2", "--requests", "4",
                                  "--warmup", "0", "--extra", '{"top_p": 7}', "--endpoint",
                                  "completions", code=1)

        run = report["runs"][0]
        self.assertEqual((run["ok"], run["failed"]), (0, 4))
        self.assertEqual(run["faults"]["status 400"]["count"], 4)
        self.assertIn("top_p", run["faults"]["status 400"]["example"])
        self.assertIn("4 x status 400", text)
        self.assertEqual(server.stop(), 0)

    def test_texts_for_a_made_model_are_as_long_as_asked_for(self):
        model = self.path / "model"
        subprocess.run([harness.BINARY, "bench", "make-model", "llama-15m", str(model)],
                       check=True, timeout=PATIENCE_S, capture_output=True)
        server = self.serve("--model", str(model))

        report, _ = self.bench("--url", self.url(server) + "/v1", "--streams", "4", "--requests",
                               "12", "--prompt-tokens", "90", "--output-tokens", "6-10",
                               "--shared-prefix", "60")

        run = report["runs"][0]
        self.assertEqual((run["ok"], run["failed"], run["other_length"]), (12, 0, 0))
        # Words differ in length, their mean much less.
        self.assertAlmostEqual(run["prompt_tokens"] / 12, 150, delta=30)
        self.assertGreater(run["cached_tokens"], 0)  # the warm-up left the shared prefix in the cache
        self.assertEqual(run["first_token_ms"]["n"], 12)
        self.assertGreater(run["first_token_ms"]["p50"], 0)
        self.assertLessEqual(run["first_token_ms"]["max"], run["answer_ms"]["max"])
        self.assertEqual(server.stop(), 0)

    def test_a_template_that_drops_the_text_is_told(self):
        server = self.serve()

        report, text = self.bench("--url", self.url(server), "--streams", "2", "--requests", "2",
                                  "--prompt-tokens", "90", "--output-tokens", "4")

        self.assertEqual(report["runs"][0]["ok"], 2)
        self.assertIn("do not grow with the text", text)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    harness.main()
