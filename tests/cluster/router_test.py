#!/usr/bin/env python3
"""Two replicas behind HAProxy and behind Envoy, with the configurations of config/deploy.

`router_test.py BINARY [unittest arguments]`.
"""

import collections
import http.client
import json
import re
import subprocess
import threading
import time

import postgres
from replicas_case import ENDED, ReplicasCase, chats, harness
import routers  # noqa: E402, after replicas_case, which adds a folder of modules

RATE = 20  # requests per second


class Load:
    """Requests at a constant rate, whatever the answers."""

    def __init__(self, address):
        self.address = address
        self.results = collections.Counter()
        self.lock = threading.Lock()
        self.is_over = threading.Event()
        self.threads = []
        self.clock = threading.Thread(target=self.run)
        self.clock.start()

    def run(self):
        begin, n = time.monotonic(), 0
        while not self.is_over.wait(max(0, begin + n / RATE - time.monotonic())):
            n += 1
            thread = threading.Thread(target=self.send)
            thread.start()
            self.threads.append(thread)

    def send(self):
        result = None
        try:
            connection = http.client.HTTPConnection(*self.address, timeout=harness.PATIENCE_S)
            connection.request("POST", "/v1/completions", json.dumps(
                {"model": "tandem-stories", "prompt": "Once", "max_tokens": 2, "seed": 1}),
                {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
            result = response.status if response.status != 200 or json.loads(text)["choices"] else text
            connection.close()
        except Exception as error:  # every kind of failure counts
            result = repr(error)
        with self.lock:
            self.results[result] += 1

    def end(self):
        """{status or failure: number of requests}"""
        self.is_over.set()
        self.clock.join()
        for thread in self.threads:
            thread.join()
        return self.results


class RouterCase(ReplicasCase):
    ROUTER = routers.Haproxy
    DELAY_S = 3  # longer than two checks

    def setUp(self):
        super().setUp()
        self.ports = [postgres.free_port() for _ in range(2)]
        self.router = ("127.0.0.1", postgres.free_port())
        command = self.ROUTER.command(self.path, self.router, self.ports)
        for number in range(2):
            self.start_replica(number)
        with open(self.path / "router.log", "wb") as log:
            router = subprocess.Popen(command, stdout=log, stderr=log)
        self.addCleanup(router.wait)
        self.addCleanup(router.kill)
        self.wait_until("the router", lambda: self.ask("/ready") == 200)

    def start_replica(self, number):
        # The stories' own template keeps a few words of a conversation.
        template = self.path / "template.jinja"
        template.write_text("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:")
        return self.replica("--drain-delay", str(self.DELAY_S), "--chat-template", str(template),
                            port=self.ports[number])

    def ask(self, path):
        connection = http.client.HTTPConnection(*self.router, timeout=10)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            return None
        finally:
            connection.close()


class RollingRestart(RouterCase):
    def test_no_request_fails_during_a_rolling_restart(self):
        load = Load(self.router)
        try:
            time.sleep(2)
            for number in range(2):
                begin = time.monotonic()
                self.servers[number].stop()
                self.start_replica(number)
                print(f"replica {number} was back after {time.monotonic() - begin:.1f} s")
                time.sleep(2)  # the router must see it before the other one goes
        finally:
            results = load.end()
        print(f"{sum(results.values())} requests: {dict(results)}")
        self.assertEqual(set(results), {200}, results)
        self.assertGreater(results[200], 5 * RATE)

    def test_ready_ends_before_the_listener(self):
        server = self.servers[0]
        self.assertEqual(server.request("GET", "/ready")[0], 200)
        server.process.terminate()
        self.wait_until("draining", lambda: server.request("GET", "/ready")[0] == 503)
        self.assertEqual(server.request("POST", "/v1/chat/completions", harness.story())[0], 200)


class RollingRestartBehindEnvoy(RollingRestart):
    ROUTER = routers.Envoy


class EnvoyWithThePickerOfLlmD(harness.Case):
    def test_envoy_accepts_the_configuration(self):
        is_valid, said = routers.Envoy.validate(self.path, "envoy-llm-d.yaml")
        self.assertTrue(is_valid, said)


class Prefixes(RouterCase):
    def post(self, body, key=None):
        connection = http.client.HTTPConnection(*self.router, timeout=harness.PATIENCE_S)
        headers = {"Content-Type": "application/json"}
        if key:
            headers["x-prefix-key"] = key
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        self.assertEqual(response.status, 200, answer)
        return response.headers["x-prefix-key"], answer

    def test_turns_with_the_key_of_the_first_find_its_prefix(self):
        for animal in ("dog", "cat", "fox", "hen"):
            body = harness.story(f"Tell me a long story about a {animal}, a river and a {animal}." * 8,
                                 max_tokens=4)
            key, _ = self.post(body)
            # The first of these may be the first on its replica.
            self.assertEqual(self.post(body, key)[0], key)
            _, answer = self.post(body, key)
            self.assertGreater(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0, animal)


    SYSTEM = "You tell stories to children. Each story has a dog, a cat, a river and a happy end. " * 8
    CONVERSATIONS = 12
    TURNS = 5

    def converse(self, number, counts, lock):
        """The turns of one conversation. Counts the tokens of the last turn's prompt that are cached."""
        messages = [{"role": "system", "content": self.SYSTEM},
                    {"role": "user", "content": f"Tell me story number {number}."}]
        shared = 0
        for turn in range(self.TURNS):
            _, answer = self.post({"model": "tandem-stories", "messages": messages, "max_tokens": 16,
                                   "temperature": 0, "ignore_eos": True})
            usage = answer["usage"]
            with lock:
                if turn > 0:
                    counts["shared"] += shared
                    counts["cached"] += min(shared, usage["prompt_tokens_details"]["cached_tokens"])
            shared = usage["prompt_tokens"]
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "Go on."}]

    def test_turns_without_a_key_find_their_prefix(self):
        counts, lock = collections.Counter(), threading.Lock()
        threads = []
        for worker in range(4):
            def run(first=worker):
                for number in range(first, self.CONVERSATIONS, 4):
                    self.converse(number, counts, lock)
            threads.append(threading.Thread(target=run))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        share = counts["cached"] / counts["shared"]
        used = [sum(float(n) for n in re.findall(
            r'http_requests_total\{[^}]*route="/v1/chat/completions"[^}]*\} (\S+)',
            server.request("GET", "/metrics")[2])) for server in self.servers]
        print(f"{100 * share:.1f} % of {counts['shared']} tokens of earlier turns were cached; "
              f"requests per replica: {used}")
        self.assertGreaterEqual(share, 0.9)
        self.assertGreater(min(used), 0)


class PrefixesBehindEnvoy(Prefixes):
    ROUTER = routers.Envoy

    # Envoy does not read bodies: only the key of an earlier answer keeps a conversation together.
    test_turns_without_a_key_find_their_prefix = None


class FineTunes(RouterCase):
    def test_a_fine_tune_answers_from_every_replica(self):
        a, b = self.servers
        job = self.start(a, self.upload(a, chats()), 2)
        self.wait_for_status(b, job, *ENDED)
        name = self.job(b, job)["fine_tuned_model"]
        self.assertTrue(name, self.job(b, job))
        for server in (a, b):
            self.within(10, "the model", lambda: name in self.models(server))
            self.chat(server, name)


if __name__ == "__main__":
    harness.main()
