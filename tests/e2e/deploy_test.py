#!/usr/bin/env python3
"""The dashboard and alerts of config/deploy, against a server's metrics.

`deploy_test.py BINARY [unittest arguments]`.
"""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import harness
from harness import Case, ROOT, story
from ops_test import scrape

DEPLOY = ROOT / "config" / "deploy"
# Metrics that Prometheus adds for every target.
OF_PROMETHEUS = {"up"}
# Words of the query language in positions of a metric's name.
KEYWORDS = {"by", "on", "and", "or", "unless", "offset", "ignoring", "without", "group_left",
            "group_right", "bool"}


def alerts():
    """{name: expression} of a file with one line for each."""
    text = (DEPLOY / "alerts.yml").read_text()
    names = re.findall(r"^ +- alert: (\w+)", text, re.M)
    expressions = re.findall(r"^ +expr: (.+)$", text, re.M)
    assert len(names) == len(expressions) == len(set(names)) > 10, (names, expressions)
    return dict(zip(names, expressions))


def dashboard():
    return json.loads((DEPLOY / "grafana.json").read_text())


def dashboard_expressions():
    """The dashboard's queries by place, with `${ns}` and the like."""
    board = dashboard()
    out = {}
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            out[f"{panel['id']} {panel['title']} {target['refId']}"] = target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            out["variable " + variable["name"]] = variable["query"]["query"]
    for annotation in board["annotations"]["list"]:
        out["annotation " + annotation["name"]] = annotation["expr"]
    return out


def metrics_of(expression):
    """[(metric, {label: value})]: every selector of an expression."""
    found = []
    rest = re.sub(r'"(?:[^"\\]|\\.)*"', lambda text: text[0].replace(" ", "\0"), expression)
    rest = re.sub(r"\b(by|on|ignoring|without) \([^)]*\)", "", rest)
    rest = re.sub(r"\[[^]]*\]|\boffset \w+", "", rest)
    rest = re.sub(r"label_values\(([^{},]+)(\{[^}]*\})?, (\w+)\)", r"\1\2", rest)
    for name, labels in re.findall(r"([a-zA-Z_][\w:]*)\s*(\{[^}]*\})?(?!\s*\()(?![\w:])", rest):
        if name in KEYWORDS:
            continue
        found.append((name, dict(re.findall(r'(\w+)=~?"([^"]*)"', labels))))
    return found


class Deploy(Case):
    def check(self, metrics, place, expression):
        """Expects every metric with every label and the requested values."""
        selectors = metrics_of(expression)
        self.assertNotEqual(selectors, [], place)
        for name, labels in selectors:
            if name in OF_PROMETHEUS:
                continue
            samples = [dict(present) for present in metrics.all(name)]
            self.assertNotEqual(samples, [], f"{place}: {name} is not there")
            for label, wanted in labels.items():
                if label in ("job", "instance"):  # Prometheus adds them
                    continue
                self.assertIn(label, samples[0], f"{place}: {name}")
                if "$" in wanted or label == "status" and "http" in name:
                    continue
                present = {sample[label] for sample in samples}
                for value in wanted.split("|"):
                    self.assertIn(value, present, f"{place}: {name} {label}")

    def used(self, *arguments):
        server = self.serve(*arguments)
        server.post("/v1/chat/completions", story(max_tokens=3))
        return scrape(server)

    def test_what_the_alerts_watch_is_there_in_both_namespaces(self):
        for namespace, arguments in (("tandem", ()), ("vllm", ("--metrics-namespace", "vllm"))):
            metrics = self.used(*arguments)
            for name, expression in alerts().items():
                self.check(metrics, name, expression.replace("tandem:", namespace + ":"))
            self.servers[-1].stop()

    def test_what_the_dashboard_shows_is_there_in_every_namespace_that_it_offers(self):
        (variable,) = [one for one in dashboard()["templating"]["list"] if one["name"] == "ns"]
        self.assertEqual(variable["query"], "tandem,vllm")
        for namespace in variable["query"].split(","):
            metrics = self.used("--metrics-namespace", namespace)
            for place, expression in dashboard_expressions().items():
                self.check(metrics, place, expression.replace("${ns}", namespace))
            self.servers[-1].stop()

    def test_a_name_that_is_not_there_is_found(self):
        metrics = self.used()
        for expression in ("rate(tandem:tokens_total[5m]) > 0", "tandem:ready{colour=\"red\"}",
                           'tandem:jobs{status="exploded"}',
                           "sum by (le) (rate(tandem:no_bucket[5m])) / tandem:ready"):
            with self.assertRaises(AssertionError):
                self.check(metrics, "", expression)


class Files(unittest.TestCase):
    def test_the_dashboard_is_one_that_can_be_imported(self):
        board = dashboard()
        self.assertEqual((board["title"], board["uid"]), ("Tandem", "tandem"))
        ids = [panel["id"] for panel in board["panels"]]
        self.assertEqual(len(set(ids)), len(ids))
        places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
        self.assertEqual(len(set(places)), len(places))
        for panel in board["panels"]:
            self.assertLessEqual(panel["gridPos"]["x"] + panel["gridPos"]["w"], 24)
            if panel["type"] != "row":
                self.assertNotEqual(panel["targets"], [], panel["title"])
        # The dashboard must show at least these.
        asked = " ".join(dashboard_expressions().values())
        for metric in ("num_requests_running", "num_requests_waiting",
                       "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket",
                       "generation_tokens_total", "kv_cache_usage_perc", "prefix_cache_hits_total",
                       "finetune_loss", "finetune_tokens_per_second", "model_memory_bytes",
                       "http_requests_total", "jobs{"):
            self.assertIn("${ns}:" + metric, asked)

    def test_every_alert_says_how_bad_it_is_and_what_it_is(self):
        text = (DEPLOY / "alerts.yml").read_text()
        for block in text.split("- alert: ")[1:]:
            name = block.split()[0]
            self.assertRegex(block, r"\n        expr: \S", name)
            self.assertRegex(block, r"\n        labels: \{severity: (critical|warning)\}\n", name)
            self.assertRegex(block, r"\n        annotations:\n          summary: \"[^\"]+\"\n", name)

    @unittest.skipUnless(shutil.which("promtool"), "no promtool here (Debian package prometheus)")
    def test_prometheus_accepts_the_files_and_the_alerts_go_off(self):
        def promtool(*arguments, folder=DEPLOY):
            done = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True,
                                  text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

        promtool("check", "rules", "alerts.yml")
        promtool("check", "config", "prometheus.yml")
        with tempfile.TemporaryDirectory() as folder:
            for source in (DEPLOY / "alerts.yml", ROOT / "tests" / "e2e" / "alerts_cases.yml"):
                shutil.copy(source, folder)
            promtool("test", "rules", "alerts_cases.yml", folder=pathlib.Path(folder))


if __name__ == "__main__":
    harness.main()
