#!/usr/bin/env python3
"""Metrics, health, configuration, limits and logs, for operators.

`ops_test.py BINARY [unittest arguments]`.
"""

import collections
import http.client
import json
import math
import os
import pathlib
import re
import shutil
import select
import signal
import socket
import subprocess
import threading
import time

import harness
from harness import PATIENCE_S, ROOT, Case, story


# ---- The text format, version 0.0.4, parsed strictly.

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')


def parse_labels(text):
    labels, at = {}, 0
    while at < len(text):
        match = LABEL.match(text, at)
        assert match and match[1] not in labels, f"bad labels {text!r}"
        labels[match[1]] = re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], match[2])
        at = match.end()
    return tuple(sorted(labels.items()))


class Exposition:
    """Checks every rule of the format while reading."""

    def __init__(self, text):
        assert text.endswith("\n"), "the last line must end"
        self.types, self.samples = {}, {}
        helped, current, closed = set(), None, set()
        for line in text[:-1].split("\n"):
            if line.startswith("# "):
                _, keyword, name, rest = line.split(" ", 3)
                assert keyword in ("HELP", "TYPE") and NAME.fullmatch(name), line
                if name != current:
                    assert name not in closed, f"{name} comes in two groups"
                    closed.add(current)
                    current = name
                if keyword == "HELP":
                    assert name not in helped and rest, line
                    helped.add(name)
                else:
                    assert name not in self.types, line
                    assert rest in ("counter", "gauge", "histogram"), line
                    self.types[name] = rest
                continue
            match = SAMPLE.fullmatch(line)
            assert match, f"not a sample: {line!r}"
            name, labels, value = match[1], parse_labels(match[2] or ""), float(match[3])
            family = name
            if self.types.get(current) == "histogram":
                family = re.sub(r"_(bucket|sum|count)$", "", name)
                assert family != name, line
            assert family == current and family in self.types, f"{name} outside its family"
            assert (name, labels) not in self.samples, f"twice: {line}"
            assert not math.isnan(value), line
            self.samples[name, labels] = value
        assert helped == set(self.types)
        for name, kind in self.types.items():
            if kind == "histogram":
                self.check_histogram(name)
            if kind == "counter":
                assert all(v >= 0 and v == int(v) for v in self.all(name).values()), name

    def check_histogram(self, name):
        series = collections.defaultdict(list)
        for labels, value in self.all(name + "_bucket").items():
            bounds = dict(labels)
            bound = float(bounds.pop("le"))
            series[tuple(sorted(bounds.items()))].append((bound, value))
        assert series, name
        for labels, buckets in series.items():
            buckets.sort()
            counts = [count for _, count in buckets]
            assert counts == sorted(counts), f"{name} falls"
            assert buckets[-1][0] == math.inf, f"{name} has no +Inf"
            assert counts[-1] == self.samples[name + "_count", labels], name
            assert (name + "_sum", labels) in self.samples, name

    def all(self, name):
        return {labels: value for (n, labels), value in self.samples.items() if n == name}

    def get(self, name, **labels):
        """The sum of the samples with these labels."""
        return sum(value for present, value in self.all(name).items()
                   if labels.items() <= dict(present).items())

    def fallen(self, earlier):
        """Counters and histogram counts that have decreased."""
        return [key for key, value in earlier.samples.items()
                if earlier.is_cumulative(key[0]) and self.samples.get(key, 0) < value]

    def is_cumulative(self, name):
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        return self.types.get(name) == "counter" or self.types.get(family) == "histogram"


def scrape(server):
    status, headers, text = server.request("GET", "/metrics")
    assert status == 200, text
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Exposition(text)


GAUGES = ["num_requests_running", "num_requests_waiting", "num_batch_requests_running",
          "num_batch_requests_waiting", "kv_cache_usage_perc",
          "lora_requests_info", "cache_config_info", "http_connections", "finetune_loss",
          "finetune_tokens_per_second", "model_memory_bytes", "jobs", "ready", "healthy",
          "data_disk_free_bytes", "data_disk_size_bytes"]
COUNTERS = ["prompt_tokens_total", "generation_tokens_total", "prefix_cache_queries_total",
            "prefix_cache_hits_total", "num_preemptions_total", "request_success_total",
            "http_requests_total", "finetune_steps_total"]
HISTOGRAMS = ["time_to_first_token_seconds", "inter_token_latency_seconds",
              "e2e_request_latency_seconds", "request_queue_time_seconds",
              "request_prefill_time_seconds", "request_decode_time_seconds",
              "request_inference_time_seconds", "request_prompt_tokens",
              "request_generation_tokens", "request_params_n", "request_params_max_tokens",
              "iteration_tokens_total"]


def raw_post(address, path, body, key=None):
    """The bytes of a POST."""
    body = json.dumps(body)
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{authorization}"
            f"Content-Length: {len(body)}\r\n\r\n{body}").encode()


def ask(server, path, body, key=None):
    """(status, headers, text) of a POST with an API key."""
    connection = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    connection.request("POST", path, json.dumps(body), headers)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, response.headers, text


def long_story(content="Tell me everything.", **more):
    return story(content, ignore_eos=True, temperature=0, **dict({"max_tokens": 900}, **more))


class Metrics(Case):
    def test_every_name_of_the_contract_has_its_type(self):
        server = self.serve("--metrics-namespace", "vllm", "--served-model-name", 'a"b\\c')
        server.request("GET", "/nowhere")

        metrics = scrape(server)

        for kind, names in (("gauge", GAUGES), ("counter", COUNTERS), ("histogram", HISTOGRAMS)):
            for name in names:
                self.assertEqual(metrics.types.get("vllm:" + name), kind, name)
        self.assertEqual(metrics.types["process_resident_memory_bytes"], "gauge")
        self.assertGreater(metrics.get("process_resident_memory_bytes"), 1 << 20)
        self.assertEqual(metrics.get("vllm:cache_config_info", model_name='a"b\\c'), 1)
        for reason in ("stop", "length", "tool_calls", "abort", "error"):
            self.assertEqual(len([labels for labels in metrics.all("vllm:request_success_total")
                                  if dict(labels)["finished_reason"] == reason]), 1)
        for kind in ("weights", "kv", "scratch"):
            self.assertGreater(metrics.get("vllm:model_memory_bytes", kind=kind), 0)
        self.assertEqual(metrics.get("vllm:http_requests_total", route="unmatched", status="404"), 1)

    def test_the_endpoint_picker_of_llm_d_finds_its_metrics(self):
        """The model server protocol of the Gateway API inference extension, scraped with a key."""
        server = self.serve("--metrics-namespace", "vllm", "--served-model-name", "stories",
                            "--api-key", "serve", "--metrics-key", "scrape")

        def get(key):
            connection = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
            connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {key}"} if key else {})
            response = connection.getresponse()
            text = response.read().decode()
            connection.close()
            return response.status, text

        self.assertEqual([get(key)[0] for key in (None, "wrong")], [401, 401])
        status, text = get("scrape")
        self.assertEqual(status, 200)
        metrics = Exposition(text)
        for gauge in ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"):
            (value,) = metrics.all("vllm:" + gauge).values()
            self.assertEqual(value, 0, gauge)
        (layout,) = metrics.all("vllm:cache_config_info")
        self.assertGreater(int(dict(layout)["block_size"]), 0)
        self.assertGreater(int(dict(layout)["num_gpu_blocks"]), 0)
        ((adapters, seen_at),) = metrics.all("vllm:lora_requests_info").items()
        self.assertGreater(int(dict(adapters)["max_lora"]), 0)
        self.assertEqual((dict(adapters)["running_lora_adapters"],
                          dict(adapters)["waiting_lora_adapters"]), ("", ""))
        # The picker takes the newest sample.
        self.assertLess(abs(seen_at - time.time()), 60)

    def test_the_counts_are_what_clients_counted(self):
        server = self.serve()
        before = scrape(server)
        prompt_tokens = completion_tokens = requests = choices = 0
        reasons = collections.Counter()

        def count(usage, answered):
            nonlocal prompt_tokens, completion_tokens, requests, choices
            prompt_tokens += usage["prompt_tokens"]
            completion_tokens += usage["completion_tokens"]
            requests += 1
            choices += len(answered)
            reasons["length" if "length" in answered else "stop"] += 1

        for n, max_tokens in ((1, 7), (3, 5), (1, 1)):
            answer = server.post("/v1/chat/completions",
                                 story(n=n, max_tokens=max_tokens, seed=1, ignore_eos=True))
            count(answer["usage"], [c["finish_reason"] for c in answer["choices"]])
        answer = server.post("/v1/chat/completions", story(stop=["a"], temperature=0))
        self.assertEqual(answer["choices"][0]["finish_reason"], "stop")
        count(answer["usage"], ["stop"])
        for n in (1, 2):
            chunks, done = server.stream("/v1/chat/completions", story(
                n=n, max_tokens=20, ignore_eos=True, stream_options={"include_usage": True}))
            self.assertTrue(done)
            count(chunks[-1]["usage"], ["length"] * n)
        # Refused before they reach the engine.
        for body in (story(temperature=7), story(model="absent"), {}):
            self.assertGreaterEqual(server.request("POST", "/v1/chat/completions", body)[0], 400)

        after = scrape(server)

        def rise(name, **labels):
            return after.get("tandem:" + name, **labels) - before.get("tandem:" + name, **labels)

        self.assertEqual(after.fallen(before), [])
        self.assertEqual(rise("prompt_tokens_total"), prompt_tokens)
        self.assertEqual(rise("generation_tokens_total"), completion_tokens)
        for reason in ("stop", "length", "tool_calls", "abort", "error"):
            self.assertEqual(rise("request_success_total", finished_reason=reason), reasons[reason])
        for name in HISTOGRAMS:
            if name not in ("inter_token_latency_seconds", "iteration_tokens_total"):
                self.assertEqual(rise(name + "_count"), requests, name)
        self.assertEqual(rise("inter_token_latency_seconds_count"), completion_tokens - choices)
        self.assertEqual(rise("request_prompt_tokens_sum"), prompt_tokens)
        self.assertEqual(rise("request_generation_tokens_sum"), completion_tokens)
        self.assertEqual(rise("request_params_n_sum"), choices)
        self.assertEqual(
            rise("http_requests_total", method="POST", route="/v1/chat/completions", status="200"),
            requests)
        self.assertEqual(rise("http_requests_total", route="/v1/chat/completions", status="404"), 1)
        self.assertEqual(rise("http_requests_total", route="/v1/chat/completions", status="400"), 2)
        # The time of a request is the sum of its parts.
        self.assertAlmostEqual(rise("request_prefill_time_seconds_sum") +
                               rise("request_decode_time_seconds_sum"),
                               rise("request_inference_time_seconds_sum"), places=5)
        self.assertLessEqual(rise("request_queue_time_seconds_sum") +
                             rise("request_inference_time_seconds_sum"),
                             rise("e2e_request_latency_seconds_sum") + 1e-3)

    def test_clients_that_leave_are_counted_and_leave_nothing(self):
        server = self.serve("--max-seqs", "4")
        connections = []
        for _ in range(12):
            connection = socket.create_connection(server.address, PATIENCE_S)
            connection.sendall(raw_post(server.address, "/v1/chat/completions",
                                        long_story(stream=True)))
            connections.append(connection)
        self.wait_until("some run and some wait", lambda: self.state(server) == (4, 8))
        self.assertGreater(scrape(server).get("tandem:kv_cache_usage_perc"), 0)
        self.assertGreaterEqual(scrape(server).get("tandem:http_connections"), 12)
        for connection in connections:
            connection.close()

        self.wait_until("nothing is left", lambda: self.state(server) == (0, 0))
        self.wait_until("all are counted", lambda: scrape(server).get(
            "tandem:http_requests_total", status="499") == 12)
        metrics = scrape(server)
        self.assertEqual(metrics.get("tandem:request_success_total"), 12)
        self.assertEqual(metrics.get("tandem:request_success_total", finished_reason="abort"), 12)
        self.assertEqual(metrics.get("tandem:kv_cache_usage_perc"), 0)
        self.assertEqual(metrics.get("tandem:e2e_request_latency_seconds_count"), 0)

    def state(self, server):
        metrics = scrape(server)
        return (metrics.get("tandem:num_requests_running"),
                metrics.get("tandem:num_requests_waiting"))

    def test_errors_after_admission_are_counted_as_errors(self):
        server = self.serve("--request-timeout", "0.05", "--max-seqs", "1")
        status, headers, _ = ask(server, "/v1/chat/completions", long_story(n=4))
        self.assertEqual(status, 503)
        self.assertGreaterEqual(int(headers["retry-after"]), 1)
        self.assertEqual(scrape(server).get("tandem:request_success_total",
                                            finished_reason="error"), 1)

    def test_promtool_accepts_it(self):
        promtool = shutil.which("promtool")
        if not promtool:
            self.skipTest("promtool is not on PATH")
        server = self.serve()
        server.post("/v1/chat/completions", story())
        text = server.request("GET", "/metrics")[2]
        checked = subprocess.run([promtool, "check", "metrics"], input=text, text=True,
                                 capture_output=True)
        # promtool's style rules differ from vLLM's names; only its parser matters.
        for line in (checked.stdout + checked.stderr).splitlines():
            self.assertRegex(line, r"should not contain ':'"
                                   r"|iteration_tokens_total non-counter metrics should not have")


class Health(Case):
    def test_health_is_quick_while_everything_is_busy(self):
        server = self.serve("--max-seqs", "8")
        connections = []
        for _ in range(32):
            connection = socket.create_connection(server.address, PATIENCE_S)
            connection.sendall(raw_post(server.address, "/v1/chat/completions", long_story()))
            connections.append(connection)
        times = []
        for _ in range(50):
            begin = time.monotonic()
            self.assertEqual(server.request("GET", "/health")[0], 200)
            times.append(time.monotonic() - begin)
        for connection in connections:
            connection.close()
        # The target of 5 ms needs an idle machine; a reply stuck behind requests takes seconds.
        self.assertLess(sorted(times)[len(times) // 2], 0.25)

    def test_ready_when_models_are_loaded(self):
        # Tested elsewhere: while loading by Ready.* in tests/server, while draining by Shutdown.*
        # in http_test.py.
        status, _, answer = self.serve().request("GET", "/ready")
        self.assertEqual((status, answer), (200, {"status": "ready"}))

    def test_threads_have_names(self):
        server = self.serve("--threads", "2")
        server.post("/v1/chat/completions", story(max_tokens=2))
        tasks = pathlib.Path(f"/proc/{server.process.pid}/task")
        names = {(task / "comm").read_text().strip() for task in tasks.iterdir()}
        self.assertLessEqual({"tandem", "tandem-engine", "tandem-work-1", "tandem-io", "tandem-answer",
                              "tandem-req-0", "tandem-req-1", "tandem-models", "tandem-jobs"}, names)

    def test_version_names_what_is_served(self):
        version = self.serve().request("GET", "/version")[2]
        self.assertEqual(set(version), {"version", "commit", "build", "features", "llguidance"})
        self.assertIn("metrics", version["features"])


class Configuration(Case):
    def run_serve(self, *arguments, env=None):
        environment = dict(os.environ)
        for name in ("TANDEM_API_KEY", "TANDEM_ADMIN_KEY", "TANDEM_LOG_LEVEL"):
            environment.pop(name, None)
        environment.update(env or {})
        return subprocess.run([harness.BINARY, "serve", *arguments], text=True, env=environment,
                              capture_output=True, timeout=PATIENCE_S)

    def write(self, text):
        path = self.path / "tandem.yaml"
        path.write_text(text)
        return str(path)

    def test_precedence_is_default_file_environment_flag(self):
        file = self.write("log-level: warn\nmax-seqs: 3\nmax-queue: 7\n")
        got = self.run_serve("--check-config", "--config", file, "--max-queue", "9",
                             env={"TANDEM_LOG_LEVEL": "error"})
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertRegex(got.stdout, rf'log-level: "error"  # TANDEM_LOG_LEVEL\n')
        self.assertIn(f"max-seqs: 3  # {file}:2\n", got.stdout)
        self.assertIn("max-queue: 9  # --max-queue\n", got.stdout)
        self.assertIn("port: 8080  # default\n", got.stdout)

    def test_all_faults_at_once_with_their_places(self):
        file = self.write("max-seq: 3\nport: high\n")
        got = self.run_serve("--check-config", "--config", file, "--max-queue", "0")
        self.assertEqual(got.returncode, 2)
        for needle in (f"{file}:1: unknown key 'max-seq'; did you mean 'max-seqs'?",
                       f"{file}:2: port must be an integer", "--max-queue must be"):
            self.assertIn(needle, got.stderr)
        # Without --check-config it does not start either.
        self.assertEqual(self.run_serve("--config", file).returncode, 2)

    def test_reproducible_needs_kernels_of_the_common_arithmetic(self):
        got = self.run_serve("--check-config", "--reproducible", env={"TANDEM_FORCE_ISA": ""})
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertIn("reproducible: true  # --reproducible\n", got.stdout)
        got = self.run_serve("--check-config", "--reproducible", env={"TANDEM_FORCE_ISA": "reference"})
        self.assertEqual(got.returncode, 2)
        self.assertIn("TANDEM_FORCE_ISA names reference, which has another", got.stderr)

    def test_keys_are_redacted(self):
        file = self.write("api-key: [marker-1, marker-2]\n")
        got = self.run_serve("--check-config", "--config", file, "--admin-key", "marker-3",
                             env={"TANDEM_API_KEY": "marker-4"})
        self.assertEqual(got.returncode, 0)
        self.assertNotIn("marker", got.stdout + got.stderr)
        self.assertIn('api-key: ["(redacted)"]  # TANDEM_API_KEY', got.stdout)

    def test_the_admin_key_comes_from_a_file_and_a_flag_is_warned_about(self):
        file = self.path / "admin.key"
        file.write_text("from-file\n")
        file.chmod(0o600)
        no_key = {"TANDEM_ADMIN_KEY": ""}
        server = self.serve("--admin-key-file", str(file), env=no_key)
        for key, status in (("from-file", 200), ("wrong", 401)):
            connection = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
            connection.request("GET", "/admin/models", headers={"Authorization": f"Bearer {key}"})
            self.assertEqual(connection.getresponse().status, status)
            connection.close()
        self.assertEqual(server.stop(), 0)
        log = server.log_path.read_text()
        self.assertNotIn("from-file", log)
        self.assertNotIn("admin_key", log)

        file.chmod(0o644)
        self.assertEqual(self.serve("--admin-key-file", str(file), env=no_key).stop(), 0)
        self.wait_until("logged", lambda: "admin_key_file_open_to_all" in server.log_path.read_text())
        self.assertEqual(self.serve("--admin-key", "k", env=no_key).stop(), 0)
        self.wait_until("logged", lambda: "admin_key_in_process_list" in server.log_path.read_text())

        for text in ("", "two words", "two\nlines"):
            file.write_text(text)
            got = self.run_serve("--port", "0", "--admin-key-file", str(file))
            self.assertNotEqual(got.returncode, 0)
            self.assertIn("must hold one key on one line", got.stderr)
        got = self.run_serve("--port", "0", "--admin-key-file", str(file), "--admin-key", "k")
        self.assertIn("not both", got.stderr)

    def test_help_names_every_key_with_its_default(self):
        text = self.run_serve("--help").stdout
        rows = re.findall(r"^\| `([a-z-]+)` \| (.*?) \| (.*?) \| (.*?) \|$",
                          (ROOT / "config" / "README.md").read_text(), re.M)
        self.assertGreater(len(rows), 25)
        flags = set(re.findall(r"--([a-z-]+)", "\n".join(
            line for line in text.splitlines() if re.match(r" +-", line))))
        self.assertEqual(flags - {"help", "config", "check-config"}, {row[0] for row in rows})
        for name, _, default, _ in rows:
            if default.strip("`") not in ("", "false"):
                flag = re.search(rf"(?s)--{name} .*?(?=\n  -|\n\n)", text)[0]
                self.assertIn(f"default: {default.strip('`')})", " ".join(flag.split()))

    def test_a_file_configures_a_server(self):
        file = self.write("served-model-name: [one, two]\nmetrics-namespace: mine\n")
        server = self.serve("--config", file)
        ids = [model["id"] for model in server.request("GET", "/v1/models")[2]["data"]]
        self.assertEqual(ids, ["one", "two"])
        self.assertIn("mine:num_requests_running", scrape(server).types)

    def test_readiness_is_reported_to_the_service_manager(self):
        path = str(self.path / "notify")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listener.bind(path)
        listener.settimeout(PATIENCE_S)
        server = self.serve(env={"NOTIFY_SOCKET": path})
        self.assertEqual(listener.recv(100), b"READY=1")
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(listener.recv(100), b"STOPPING=1")
        self.assertEqual(server.process.wait(PATIENCE_S), 0)
        server.close()
        listener.close()


class Limits(Case):
    def fill(self, server, n_requests, key=None, **more):
        """Running or waiting requests; closing the connections ends them."""
        connections = []
        for _ in range(n_requests):
            connection = socket.create_connection(server.address, PATIENCE_S)
            connection.sendall(raw_post(server.address, "/v1/chat/completions",
                                        long_story(**more), key))
            connections.append(connection)
        return connections

    def refuse(self, connections, count, status):
        """Waits until `count` of the connections have a reply with this status."""
        end = time.monotonic() + PATIENCE_S
        answered = []
        while len(answered) < count and time.monotonic() < end:
            answered = select.select(connections, [], [], 0.1)[0]
        self.assertEqual(len(answered), count)
        for connection in answered:
            self.assertEqual(connection.recv(1 << 16).split()[1], str(status).encode())

    def admitted(self, server):
        metrics = scrape(server)
        return (metrics.get("tandem:num_requests_running") +
                metrics.get("tandem:num_requests_waiting"))

    def test_overload_is_refused_at_once_with_a_time_to_come_back(self):
        server = self.serve("--max-seqs", "1", "--max-queue", "2")
        connections = self.fill(server, 3, n=100)
        self.wait_until("the queue is full", lambda: self.admitted(server) >= 3)
        times, results = [], []

        def one():
            begin = time.monotonic()
            status, headers, text = ask(server, "/v1/chat/completions", story())
            times.append(time.monotonic() - begin)
            results.append((status, json.loads(text)["error"]["code"],
                            int(headers["retry-after"]), int(headers["retry-after-ms"])))

        for _ in range(10):
            threads = [threading.Thread(target=one) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for connection in connections:
            connection.close()

        self.assertEqual(len(results), 30)
        for status, code, seconds, milliseconds in results:
            self.assertEqual((status, code), (503, "server_overloaded"))
            self.assertTrue(1 <= seconds <= 60 and 1000 <= milliseconds <= 60000)
            self.assertTrue(seconds * 1000 - 1000 < milliseconds <= seconds * 1000)
        # The target is 50 ms; the limit allows for a shared machine.
        self.assertLess(sorted(times)[len(times) // 2], 0.25)

    def test_waiting_too_long_is_refused_with_a_status_even_for_streams(self):
        server = self.serve("--max-seqs", "1", "--queue-timeout", "0.3")
        connections = self.fill(server, 1, n=100)
        self.wait_until("one runs", lambda: self.admitted(server) >= 1)
        for stream in (False, True):
            status, headers, text = ask(server, "/v1/chat/completions", story(stream=stream))
            self.assertEqual(status, 503, text)
            self.assertEqual(json.loads(text)["error"]["code"], "server_overloaded")
            self.assertGreaterEqual(int(headers["retry-after"]), 1)
        for connection in connections:
            connection.close()
        self.wait_until("it ends", lambda: self.admitted(server) == 0)
        chunks, done = server.stream("/v1/chat/completions", story())
        self.assertTrue(done and chunks)

    def test_limits_of_one_key_are_not_those_of_another(self):
        server = self.serve("--rate-limit-rpm", "3", "--rate-limit-tpm", "100000",
                            "--api-key", "key-a", "--api-key", "key-b")
        for left in (2, 1, 0):
            status, headers, _ = ask(server, "/v1/chat/completions", story(max_tokens=1), "key-a")
            self.assertEqual(status, 200)
            self.assertEqual(headers["x-ratelimit-limit-requests"], "3")
            self.assertEqual(headers["x-ratelimit-remaining-requests"], str(left))
            self.assertRegex(headers["x-ratelimit-reset-requests"], r"^\d+(\.\d{1,3})?s$")
            self.assertEqual(headers["x-ratelimit-limit-tokens"], "100000")
            self.assertLess(int(headers["x-ratelimit-remaining-tokens"]), 100000)
            self.assertRegex(headers["x-ratelimit-reset-tokens"], r"^\d+(\.\d{1,3})?s$")

        status, headers, text = ask(server, "/v1/chat/completions", story(), "key-a")
        error = json.loads(text)["error"]
        self.assertEqual((status, error["type"], error["code"]),
                         (429, "rate_limit_error", "rate_limit_exceeded"))
        self.assertTrue(1 <= int(headers["retry-after"]) <= 60)
        self.assertIn("retry-after-ms", headers)

        # Errors of a key with limits carry the headers; the administrator has no limits.
        status, headers, _ = ask(server, "/v1/chat/completions", {}, "key-b")
        self.assertEqual((status, headers["x-ratelimit-remaining-requests"]), (400, "2"))
        for _ in range(5):
            status, headers, _ = ask(server, "/v1/chat/completions", story(max_tokens=1),
                                     harness.ADMIN_KEY)
            self.assertEqual(status, 200)
            self.assertNotIn("x-ratelimit-limit-requests", headers)

    def test_one_key_cannot_fill_the_queue(self):
        server = self.serve("--max-seqs", "1", "--max-queue", "8",
                            "--api-key", "key-a", "--api-key", "key-b")
        connections = self.fill(server, 20, key="key-a", n=12)
        self.refuse(connections, 20 - (1 + 6), 429)

        for stream in (False, True):
            status, headers, text = ask(server, "/v1/chat/completions", story(stream=stream), "key-a")
            error = json.loads(text)["error"]
            self.assertEqual((status, error["type"], error["code"]),
                             (429, "rate_limit_error", "rate_limit_exceeded"))
            self.assertIn("--max-queue-per-key", error["message"])
            self.assertTrue(1 <= int(headers["retry-after"]) <= 60)
            self.assertIn("retry-after-ms", headers)
        # The rest of the queue belongs to the other key.
        self.assertEqual(ask(server, "/v1/chat/completions", story(max_tokens=1), "key-b")[0], 200)
        for connection in connections:
            connection.close()

    def test_the_share_of_a_key_in_the_queue_can_be_set(self):
        server = self.serve("--max-seqs", "1", "--max-queue-per-key", "2", "--api-key", "key-a")
        connections = self.fill(server, 4, key="key-a", n=100)
        self.refuse(connections, 4 - (1 + 2), 429)
        status, _, text = ask(server, "/v1/chat/completions", story(), "key-a")
        self.assertEqual((status, json.loads(text)["error"]["code"]), (429, "rate_limit_exceeded"))
        for connection in connections:
            connection.close()

        # Requests that no longer wait no longer count.
        self.wait_until("the key may queue again", lambda: ask(
            server, "/v1/chat/completions", story(max_tokens=1), "key-a")[0] == 200)

    def test_the_only_key_may_fill_the_queue(self):
        server = self.serve("--max-seqs", "1", "--max-queue", "4", "--api-key", "key-a")
        connections = self.fill(server, 6, key="key-a", n=100)
        self.refuse(connections, 6 - (1 + 4), 503)
        status, _, text = ask(server, "/v1/chat/completions", story(), "key-a")
        self.assertEqual((status, json.loads(text)["error"]["code"]), (503, "server_overloaded"))
        for connection in connections:
            connection.close()

    def test_without_limits_no_headers_speak_of_them(self):
        headers = ask(self.serve(), "/v1/chat/completions", story(max_tokens=1))[1]
        self.assertFalse([name for name in headers if name.startswith("x-ratelimit")])

    def test_a_backlog_of_one_key_does_not_hold_up_another(self):
        server = self.serve("--max-seqs", "1", "--api-key", "key-a", "--api-key", "key-b")
        connections = self.fill(server, 40, key="key-a", max_tokens=200)
        self.wait_until("a backlog", lambda: self.admitted(server) >= 20)

        status, _, text = ask(server, "/v1/chat/completions", story(max_tokens=1), "key-b")

        self.assertEqual(status, 200, text)
        self.assertGreaterEqual(self.admitted(server), 10)
        for connection in connections:
            connection.close()

    def test_objects_of_many_names_hold_neither_the_server_nor_its_end(self):
        # Quadratic work would take minutes here, and the server's end would wait for it.
        server = self.serve()
        body = {f"name-{i}": 0 for i in range(100_000)}
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(
            server.request("POST", "/v1/chat/completions", body))) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for status, _, answer in answers:
            self.assertEqual((status, answer["error"]["code"]), (400, "invalid_json"))
            self.assertIn("16384 fields", answer["error"]["message"])
        self.assertEqual((len(answers), server.stop()), (10, 0))


class Logs(Case):
    def lines(self, server):
        return [json.loads(line) for line in server.log_path.read_text().splitlines()]

    def requests(self, server):
        return [line for line in self.lines(server) if line.get("event") == "request"]

    def test_one_json_line_per_request_with_what_operators_ask_for(self):
        server = self.serve("--log-format", "json")
        answer = server.post("/v1/chat/completions", story(max_tokens=5, ignore_eos=True))
        server.stream("/v1/chat/completions", story(max_tokens=4, ignore_eos=True))
        server.request("POST", "/v1/chat/completions", {})
        server.request("GET", "/health")

        self.wait_until("three lines", lambda: len(self.requests(server)) == 3)
        first, second, third = self.requests(server)
        self.assertEqual(first["level"], "info")
        self.assertTrue(first["request_id"].startswith("req_"))
        self.assertEqual((first["method"], first["route"], first["status"]),
                         ("POST", "/v1/chat/completions", 200))
        self.assertEqual(first["model"], "tandem-stories")
        self.assertEqual(first["prompt_tokens"], answer["usage"]["prompt_tokens"])
        self.assertEqual(first["completion_tokens"], 5)
        self.assertEqual(first["finish_reason"], "length")
        for name in ("ms", "queue_ms", "ttft_ms", "prefill_ms", "decode_ms"):
            self.assertGreaterEqual(first[name], 0, name)
        self.assertEqual(second["completion_tokens"], 4)
        self.assertEqual((third["status"], "model" in third), (400, False))
        self.assertEqual(third["error"], "missing_required_parameter")
        self.assertRegex(third["client"], r"^127\.0\.0\.1:\d+$")
        self.assertNotIn("client", first)

    def test_every_refusal_says_why_and_to_whom(self):
        server = self.serve("--log-format", "json", "--api-key", "k")
        host = "Host: localhost\r\n"
        for data, status, error in (
                (f"GET /v1/models HTTP/1.1\r\n{host}\r\n", 401, "invalid_api_key"),
                (f"GET /nowhere HTTP/1.1\r\n{host}\r\n", 404, "unknown_url"),
                (f"PUT /health HTTP/1.1\r\n{host}\r\n", 405, "method_not_allowed"),
                ("nonsense\r\n\r\n", 400, "invalid_request"),
                (f"POST /tokenize HTTP/1.1\r\n{host}Content-Length: 99999999\r\n\r\n", 413,
                 "request_too_large")):
            with socket.create_connection(server.address, PATIENCE_S) as connection:
                connection.sendall(data.encode())
                client = "%s:%d" % connection.getsockname()
                self.assertIn(b"HTTP/1.1 %d " % status, connection.recv(4096))
            self.wait_until(error, lambda: any(
                (line["status"], line.get("error"), line.get("client")) == (status, error, client)
                for line in self.requests(server)))

    def test_neither_text_nor_keys_are_ever_logged(self):
        for log_format in ("json", "text"):
            server = self.serve("--log-format", log_format, "--log-level", "trace",
                                "--api-key", "MARKER-key")
            body = story("MARKER-prompt", max_tokens=3, user="MARKER-user", stop=["MARKER-stop"],
                         metadata={"MARKER-a": "MARKER-b"})
            self.assertEqual(ask(server, "/v1/chat/completions", body, "MARKER-key")[0], 200)
            ask(server, "/v1/chat/completions", dict(body, temperature="MARKER"), "MARKER-key")
            ask(server, "/v1/chat/completions?key=MARKER-query", body, "MARKER-wrong")
            ask(server, "/v1/completions", {"model": "MARKER-model", "prompt": "MARKER-p"},
                "MARKER-key")
            with socket.create_connection(server.address, PATIENCE_S) as gone:
                gone.sendall(raw_post(server.address, "/v1/chat/completions",
                                      long_story("MARKER-left", stream=True), "MARKER-key"))
                gone.recv(100)
            self.assertEqual(server.stop(), 0)
            self.assertNotIn("MARKER", server.log_path.read_text())

    def test_a_name_that_looks_like_a_number_is_text(self):
        server = self.serve("--log-format", "json", "--served-model-name", "7")
        server.post("/v1/chat/completions", story(model="7", max_tokens=1))
        self.wait_until("a line", lambda: len(self.requests(server)) == 1)
        self.assertEqual(self.requests(server)[0]["model"], "7")

    def test_a_log_that_nobody_reads_stops_nothing(self):
        # A pipe holds 64 KiB, and each line has about 100 bytes.
        process = subprocess.Popen(
            [harness.BINARY, "serve", "--port", "0", "--data-dir", str(self.path / "data")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=dict(os.environ, XDG_CACHE_HOME=str(self.path / "cache")))
        try:
            port = int(re.search(r":(\d+)\n", process.stdout.readline())[1])
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
            for _ in range(2000):
                connection.request("GET", "/v1/models")
                response = connection.getresponse()
                response.read()
                self.assertEqual(response.status, 200)
            connection.request("GET", "/health")
            self.assertEqual(connection.getresponse().status, 200)
            connection.close()
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(PATIENCE_S), 0)
        finally:
            process.kill()
            process.communicate()

    def test_hostile_bytes_stay_inside_their_line(self):
        server = self.serve("--log-format", "json")
        paths = [b"/%22,%22admin%22:%22yes%E2%80%A8x", b"/a%20status=200", b"/%FF%0A%1B[31mx"]
        for request_id, hostile in zip((b'x"\\y', b"good-1", b"\xff\xfe"), paths):
            with socket.create_connection(server.address, PATIENCE_S) as connection:
                connection.sendall(b"GET " + hostile + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close"
                                   b"\r\nX-Request-Id: " + request_id + b"\r\n\r\n")
                while connection.recv(4096):
                    pass
        self.wait_until("three lines", lambda: len(self.requests(server)) == 3)
        for line in self.requests(server):
            self.assertNotIn("admin", line)
            self.assertIn(line["status"], (400, 404))
            self.assertRegex(line["request_id"], r"^[A-Za-z0-9._-]{1,128}$")
        self.assertEqual(self.requests(server)[0]["path"], '/","admin":"yes\u2028x')
        self.assertEqual(self.requests(server)[1]["request_id"], "good-1")


if __name__ == "__main__":
    harness.main()
