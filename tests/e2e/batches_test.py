#!/usr/bin/env python3
"""Batches, end to end: three endpoints, faults, cancel, expiry, keys, kills, a full disk.

`batches_test.py BINARY [unittest arguments]`.
"""

import http.client
import json
import random
import resource
import sqlite3
import threading

import harness
from harness import ADMIN_KEY, PATIENCE_S, Case

MODEL = "tandem-stories"
CHAT = "/v1/chat/completions"
SEED = 18
TERMINAL = ("completed", "failed", "expired", "cancelled")
FIELDS = {"id", "object", "endpoint", "model", "errors", "input_file_id", "completion_window",
          "status", "output_file_id", "error_file_id", "created_at", "in_progress_at", "expires_at",
          "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at",
          "cancelled_at", "request_counts", "usage", "metadata"}


def chat_body(number, **more):
    return dict({"model": MODEL, "seed": number, "temperature": 1, "max_tokens": 24,
                 "messages": [{"role": "user", "content": f"Tell story number {number}."}]}, **more)


def line(number, url=CHAT, body=None, **more):
    return dict({"custom_id": f"line-{number}", "method": "POST", "url": url,
                 "body": body or chat_body(number)}, **more)


def comparable(result):
    """A result line without what differs between two runs of the same request."""
    result = json.loads(json.dumps(result))
    del result["id"]
    if result["response"]:
        del result["response"]["request_id"]
        for name in ("id", "created"):
            result["response"]["body"].pop(name, None)
        # How much of a prompt was cached depends on earlier requests.
        result["response"]["body"].get("usage", {}).pop("prompt_tokens_details", None)
    return result


class BatchCase(Case):
    def ask(self, server, method, path, body=None, key=None):
        """(status, parsed JSON)"""
        connection = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        if isinstance(body, bytes):
            headers["Content-Type"] = "multipart/form-data; boundary=b"
        elif body is not None:
            headers["Content-Type"] = "application/json"
            body = json.dumps(body)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        return response.status, json.loads(text)

    def good(self, server, method, path, body=None, key=None):
        status, answer = self.ask(server, method, path, body, key)
        self.assertEqual(status, 200, answer)
        return answer

    def upload(self, server, text, purpose="batch", key=None):
        form = (f'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n--b\r\n'
                'Content-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
                f'{text}\r\n--b--\r\n').encode()
        return self.good(server, "POST", "/v1/files", form, key)["id"]

    def begin(self, server, lines, endpoint=CHAT, key=None, **more):
        text = "".join(one if isinstance(one, str) else json.dumps(one) + "\n" for one in lines)
        return self.good(server, "POST", "/v1/batches",
                         dict({"input_file_id": self.upload(server, text, key=key),
                               "endpoint": endpoint, "completion_window": "24h"}, **more), key)

    def get(self, server, batch, key=None):
        return self.good(server, "GET", f"/v1/batches/{batch['id']}", key=key)

    def wait_for_end(self, server, batch, key=None):
        self.wait_until("ended", lambda: self.get(server, batch, key)["status"] in TERMINAL)
        return self.get(server, batch, key)

    def wait_for_lines(self, server, batch, n):
        """Until n lines are done, or the batch has ended."""
        def done():
            now = self.get(server, batch)
            counts = now["request_counts"]
            return now["status"] in TERMINAL or counts["completed"] + counts["failed"] >= n
        self.wait_until(f"{n} lines", done)

    def results(self, server, file_id, key=None):
        if file_id is None:
            return []
        connection = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
        connection.request("GET", f"/v1/files/{file_id}/content", None,
                           {"Authorization": f"Bearer {key}"} if key else {})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        self.assertEqual(response.status, 200, text)
        self.assertTrue(text.endswith("\n"))
        return [json.loads(one) for one in text.splitlines()]

    def limit_files(self, server, n_bytes):
        """No file of the server grows beyond this size: a full disk. None: no limit."""
        hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE,
                         (hard if n_bytes is None else n_bytes, hard))

    def results_so_far(self, batch):
        """The file of results; empty if it is not there."""
        try:
            return (self.path / "data" / "batches" / f"{batch['id']}.results").read_bytes()
        except FileNotFoundError:
            return b""

    def running(self, server):
        """The sequences that the engine runs."""
        return next(float(text.split()[-1])
                    for text in server.request("GET", "/metrics")[2].splitlines()
                    if text.startswith("tandem:num_requests_running"))

    def leftovers(self):
        return sorted(entry.name for entry in (self.path / "data" / "batches").iterdir())


class Runs(BatchCase):
    def test_a_batch_answers_as_single_requests_do(self):
        server = self.serve()
        bodies = {
            CHAT: [chat_body(i) for i in range(5)],
            "/v1/completions": [{"model": MODEL, "prompt": f"Once {i}", "seed": i, "max_tokens": 8}
                                for i in range(5)],
            "/v1/embeddings": [{"model": MODEL, "input": ["a dog", f"cat {i}"]} for i in range(5)],
        }
        for endpoint, of in bodies.items():
            batch = self.begin(server, [line(i, endpoint, body) for i, body in enumerate(of)],
                               endpoint, metadata={"night": "1"},
                               output_expires_after={"anchor": "created_at", "seconds": 3600})
            self.assertEqual(set(batch), FIELDS)
            self.assertEqual(batch["status"], "validating")
            ended = self.wait_for_end(server, batch)
            self.assertEqual((ended["status"], ended["request_counts"], ended["errors"]),
                             ("completed", {"total": 5, "completed": 5, "failed": 0}, None), ended)
            self.assertEqual((ended["object"], ended["completion_window"], ended["metadata"],
                              ended["model"], ended["error_file_id"]),
                             ("batch", "24h", {"night": "1"}, MODEL, None))
            self.assertEqual(ended["expires_at"], ended["created_at"] + 86400)
            for name in ("in_progress_at", "finalizing_at", "completed_at"):
                self.assertGreaterEqual(ended[name], ended["created_at"])
            file = self.good(server, "GET", f"/v1/files/{ended['output_file_id']}")
            self.assertEqual((file["purpose"], file["filename"]),
                             ("batch_output", f"{batch['id']}_output.jsonl"))
            self.assertEqual(file["expires_at"], file["created_at"] + 3600)

            rows = self.results(server, ended["output_file_id"])
            self.assertEqual([row["custom_id"] for row in rows], [f"line-{i}" for i in range(5)])
            tokens = 0
            for row, body in zip(rows, of):
                self.assertEqual(set(row), {"id", "custom_id", "response", "error"})
                self.assertTrue(row["id"].startswith("batch_req_"))
                self.assertIsNone(row["error"])
                self.assertEqual(row["response"]["status_code"], 200)
                self.assertTrue(row["response"]["request_id"].startswith("req_"))
                alone = {"response": {"request_id": "", "body": server.post(endpoint, body)},
                         "id": ""}
                self.assertEqual(comparable(row)["response"]["body"],
                                 comparable(alone)["response"]["body"])
                tokens += row["response"]["body"]["usage"]["total_tokens"]
            self.assertEqual(ended["usage"]["total_tokens"], tokens)
        self.wait_until("removed", lambda: not self.leftovers())
        listed = self.good(server, "GET", "/v1/files?purpose=batch_output")["data"]
        self.assertEqual(len(listed), 3)

    def test_a_batch_of_responses(self):
        server = self.serve()
        bodies = [{"model": MODEL, "input": f"Tell story {i}.", "temperature": 0,
                   "max_output_tokens": 8, "store": i == 0} for i in range(3)]
        batch = self.begin(server, [line(i, "/v1/responses", body)
                                    for i, body in enumerate(bodies)], "/v1/responses")
        ended = self.wait_for_end(server, batch)
        self.assertEqual(ended["request_counts"], {"total": 3, "completed": 3, "failed": 0}, ended)
        rows = self.results(server, ended["output_file_id"])
        answers = [row["response"]["body"] for row in rows]
        for body, answer in zip(bodies, answers):
            alone = server.post("/v1/responses", body)
            self.assertEqual(answer["output"][0]["content"], alone["output"][0]["content"])
        self.assertEqual(ended["usage"]["output_tokens"],
                         sum(answer["usage"]["output_tokens"] for answer in answers))
        stored = [server.request("GET", f"/v1/responses/{answer['id']}")[0] for answer in answers]
        self.assertEqual(stored, [200, 404, 404])

    def test_lines_that_fail_are_in_the_error_file(self):
        server = self.serve()
        bad = [line(1, body=chat_body(1, temperature=9)), line(2, body=chat_body(2, model="none")),
               line(4, body={"model": MODEL})]
        batch = self.begin(server, [line(0), bad[0], bad[1], "\n", line(3), bad[2]])
        ended = self.wait_for_end(server, batch)
        self.assertEqual((ended["status"], ended["request_counts"], ended["model"]),
                         ("completed", {"total": 5, "completed": 2, "failed": 3}, None), ended)
        self.assertEqual([row["custom_id"] for row in self.results(server, ended["output_file_id"])],
                         ["line-0", "line-3"])
        rows = self.results(server, ended["error_file_id"])
        self.assertEqual([(row["custom_id"], row["response"]["status_code"],
                           row["response"]["body"]["error"]["param"], row["error"]) for row in rows],
                         [("line-1", 400, "temperature", None), ("line-2", 404, "model", None),
                          ("line-4", 400, "messages", None)])

    def test_an_interactive_request_overtakes_a_batch(self):
        server = self.serve("--max-seqs", "4")
        batch = self.begin(server, [line(i, body=chat_body(i, max_tokens=100, ignore_eos=True))
                                    for i in range(60)])
        self.wait_for_lines(server, batch, 1)
        self.wait_until("lines in the class batch", lambda: any(
            text.startswith("tandem:num_batch_requests_running") and not text.endswith(" 0")
            for text in server.request("GET", "/metrics")[2].splitlines()))
        for _ in range(3):
            server.post(CHAT, harness.story(max_tokens=4))
            self.assertNotIn(self.get(server, batch)["status"], TERMINAL)
        self.good(server, "POST", f"/v1/batches/{batch['id']}/cancel")
        self.assertEqual(self.wait_for_end(server, batch)["status"], "cancelled")

    def test_many_batches_share_the_server(self):
        server = self.serve("--batch-concurrency", "3")
        batches = [self.begin(server, [line(i) for i in range(3)]) for _ in range(14)]
        for batch in batches:
            ended = self.wait_for_end(server, batch)
            self.assertEqual(ended["request_counts"], {"total": 3, "completed": 3, "failed": 0})
        newest = [batch["id"] for batch in reversed(batches)]
        page = self.good(server, "GET", "/v1/batches?limit=5")
        self.assertEqual([one["id"] for one in page["data"]], newest[:5])
        self.assertEqual((page["object"], page["first_id"], page["last_id"], page["has_more"]),
                         ("list", newest[0], newest[4], True))
        page = self.good(server, "GET", f"/v1/batches?limit=100&after={newest[4]}")
        self.assertEqual([one["id"] for one in page["data"]], newest[5:])
        self.assertFalse(page["has_more"])


class Checks(BatchCase):
    def test_bodies(self):
        server = self.serve()
        good = {"input_file_id": self.upload(server, json.dumps(line(0))), "endpoint": CHAT,
                "completion_window": "24h"}
        wrong_purpose = self.upload(server, json.dumps(line(0)), purpose="fine-tune")
        for change, status, param in (
                ({"input_file_id": None}, 400, "input_file_id"),
                ({"input_file_id": "file-none"}, 404, "input_file_id"),
                ({"input_file_id": wrong_purpose}, 400, "input_file_id"),
                ({"endpoint": "/v1/files"}, 400, "endpoint"), ({"endpoint": 7}, 400, "endpoint"),
                ({"completion_window": "1h"}, 400, "completion_window"),
                ({"completion_window": None}, 400, "completion_window"),
                ({"metadata": {"a": 1}}, 400, "metadata.a"),
                ({"metadata": {str(i): "" for i in range(17)}}, 400, "metadata"),
                ({"output_expires_after": {"seconds": 3600}}, 400, "output_expires_after.anchor"),
                ({"output_expires_after": {"anchor": "created_at", "seconds": 10}}, 400,
                 "output_expires_after.seconds")):
            got, answer = self.ask(server, "POST", "/v1/batches", dict(good, **change))
            self.assertEqual((got, answer["error"]["param"]), (status, param), (change, answer))
        for method, path in (("GET", "/v1/batches/batch_none"),
                             ("POST", "/v1/batches/batch_none/cancel")):
            got, answer = self.ask(server, method, path)
            self.assertEqual((got, answer["error"]["code"]), (404, "batch_not_found"))
        self.assertEqual(self.ask(server, "GET", "/v1/batches?limit=0")[0], 400)
        self.assertEqual(self.good(server, "GET", "/v1/batches?after=batch_none")["data"], [])

    def test_bad_lines_are_named(self):
        server = self.serve("--max-body", "4K")
        lines = [line(0), "{\n", "\n", "[1]\n", line(0), line(1, method="GET"),
                 line(2, url="/v1/embeddings"), line(3, body=chat_body(3, stream=True)),
                 {"custom_id": "x", "method": "POST", "url": CHAT}, line(4, custom_id=5),
                 line(5, body=chat_body(5, user="x" * 5000))]
        ended = self.wait_for_end(server, self.begin(server, lines))
        self.assertEqual(ended["status"], "failed")
        self.assertIsNotNone(ended["failed_at"])
        self.assertIsNone(ended["output_file_id"])
        self.assertEqual(ended["errors"]["object"], "list")
        self.assertEqual([(one["line"], one["code"], one["param"])
                          for one in ended["errors"]["data"]],
                         [(2, "invalid_json_line", None), (4, "invalid_json_line", None),
                          (5, "duplicate_custom_id", "custom_id"), (6, "invalid_method", "method"),
                          (7, "invalid_url", "url"), (8, "unsupported_value", "body.stream"),
                          (9, "missing_required_parameter", "body"),
                          (10, "invalid_type", "custom_id"), (11, "request_too_large", None)])
        for text, code in (("\n\n", "empty_file"), ("x" * 100, "invalid_json_line")):
            ended = self.wait_for_end(server, self.begin(server, [text]))
            self.assertEqual([one["code"] for one in ended["errors"]["data"]], [code])
        many = "".join(json.dumps(line(i, body={})) + "\n" for i in range(50001))
        ended = self.wait_for_end(server, self.begin(server, [many]))
        self.assertEqual([(one["code"], one["line"]) for one in ended["errors"]["data"]],
                         [("too_many_requests", 50001)])


class Ends(BatchCase):
    def test_a_cancelled_batch_keeps_what_is_done(self):
        server = self.serve("--batch-concurrency", "2")
        batch = self.begin(server, [line(i) for i in range(400)])
        self.wait_for_lines(server, batch, 3)
        status, answer = self.ask(server, "DELETE", f"/v1/files/{batch['input_file_id']}")
        self.assertEqual((status, answer["error"]["code"]), (409, "in_use"))
        cancelling = self.good(server, "POST", f"/v1/batches/{batch['id']}/cancel")
        self.assertEqual(cancelling["status"], "cancelling")
        ended = self.wait_for_end(server, batch)
        self.assertEqual(ended["status"], "cancelled", ended)
        self.assertGreaterEqual(ended["cancelled_at"], ended["cancelling_at"])
        done = self.results(server, ended["output_file_id"])
        undone = self.results(server, ended["error_file_id"])
        self.assertEqual(ended["request_counts"],
                         {"total": 400, "completed": len(done), "failed": len(undone)})
        self.assertEqual(len(done) + len(undone), 400)
        self.assertGreaterEqual(len(done), 3)
        self.assertEqual({row["error"]["code"] for row in undone}, {"batch_cancelled"})
        self.assertEqual({row["response"] for row in undone}, {None})
        status, answer = self.ask(server, "POST", f"/v1/batches/{batch['id']}/cancel")
        self.assertEqual((status, answer["error"]["code"]), (400, "batch_not_active"))
        for file in (ended["input_file_id"], ended["output_file_id"], ended["error_file_id"]):
            self.good(server, "DELETE", f"/v1/files/{file}")
        self.assertEqual(self.get(server, batch), ended)
        self.wait_until("idle", lambda: self.running(server) == 0)

    def test_a_batch_beyond_its_window_expires(self):
        server = self.serve("--batch-concurrency", "1")
        batch = self.begin(server, [line(i) for i in range(400)])
        self.wait_for_lines(server, batch, 2)
        server.kill()
        with sqlite3.connect(self.path / "data" / "tandem.db") as database:
            (record,), = database.execute("SELECT record FROM batches").fetchall()
            record = json.loads(record)
            record["batch"]["expires_at"] = record["batch"]["created_at"]
            database.execute("UPDATE batches SET record = ?", (json.dumps(record),))
        database.close()
        server = self.serve()
        ended = self.wait_for_end(server, batch)
        self.assertEqual(ended["status"], "expired", ended)
        self.assertIsNotNone(ended["expired_at"])
        done = self.results(server, ended["output_file_id"])
        undone = self.results(server, ended["error_file_id"])
        self.assertGreaterEqual(len(done), 2)
        self.assertEqual(len(done) + len(undone), 400)
        self.assertEqual({row["error"]["code"] for row in undone}, {"batch_expired"})

    def test_batches_belong_to_their_key_and_end_with_it(self):
        server = self.serve("--isolate-keys", "--batch-concurrency", "1")
        keys = []
        for name in ("a", "b"):
            status, _, made = server.request(
                "POST", "/admin/keys", {"name": name, "scopes": ["infer", "train"]}, admin=True)
            self.assertEqual(status, 200, made)
            keys.append(made)
        a, b = keys[0]["key"], keys[1]["key"]
        batch = self.begin(server, [line(i) for i in range(400)], key=a)
        path = f"/v1/batches/{batch['id']}"
        for method, route in (("GET", path), ("POST", path + "/cancel")):
            self.assertEqual(self.ask(server, method, route, key=b)[0], 404)
        self.assertEqual(self.good(server, "GET", "/v1/batches", key=b)["data"], [])
        self.assertEqual(len(self.good(server, "GET", "/v1/batches", key=a)["data"]), 1)
        status, answer = self.ask(server, "POST", "/v1/batches", {
            "input_file_id": batch["input_file_id"], "endpoint": CHAT, "completion_window": "24h"},
            key=b)
        self.assertEqual((status, answer["error"]["code"]), (404, "file_not_found"))
        own = self.wait_for_end(server, self.begin(server, [line(0), line(1)], key=b), b)
        self.assertEqual(own["status"], "completed")
        status = self.ask(server, "GET", f"/v1/files/{own['output_file_id']}", key=a)[0]
        self.assertEqual(status, 404)
        used = {row["name"]: row for row in
                server.request("GET", "/admin/keys", admin=True)[2]["data"]}["b"]["usage"]
        self.assertEqual(used["generation_tokens"], own["usage"]["output_tokens"])

        status, _, answer = server.request("DELETE", f"/admin/keys/{keys[0]['id']}", admin=True)
        self.assertEqual(status, 200, answer)
        ended = self.wait_for_end(server, batch, ADMIN_KEY)
        self.assertEqual(ended["status"], "failed", ended)
        self.assertEqual(ended["errors"]["data"][0]["code"], "invalid_api_key")
        undone = self.results(server, ended["error_file_id"], ADMIN_KEY)
        self.assertEqual({row["error"]["code"] for row in undone}, {"invalid_api_key"})
        self.assertLess(ended["request_counts"]["completed"], 400)


class Faults(BatchCase):
    LINES = [line(i) for i in range(40)] + [line(40, body=chat_body(40, temperature=9))]

    def check_results(self, server, ended, expected):
        self.assertEqual(ended["status"], "completed", ended)
        self.assertEqual(ended["request_counts"], {"total": 41, "completed": 40, "failed": 1})
        rows = self.results(server, ended["output_file_id"])
        self.assertEqual([comparable(row) for row in rows], expected)
        self.assertEqual(len(self.results(server, ended["error_file_id"])), 1)
        self.wait_until("removed", lambda: not self.leftovers())

    def uninterrupted(self, server):
        ended = self.wait_for_end(server, self.begin(server, self.LINES))
        return [comparable(row) for row in self.results(server, ended["output_file_id"])]

    def test_kills_lose_nothing_and_repeat_nothing(self):
        server = self.serve("--batch-concurrency", "2")
        expected = self.uninterrupted(server)
        chance = random.Random(SEED)
        batch = self.begin(server, self.LINES)
        done = 0
        for _ in range(5):
            done = min(41, done + chance.randrange(0, 12))
            self.wait_for_lines(server, batch, done)
            before = self.results_so_far(batch)
            server.kill()
            text = self.results_so_far(batch)
            if text:
                self.assertTrue(text.startswith(before), "a result changed")
                results = self.path / "data" / "batches" / f"{batch['id']}.results"
                results.write_bytes(text + text[:chance.randrange(0, 90)])  # a torn end
            server = self.serve("--batch-concurrency", "2")
        ended = self.wait_for_end(server, batch)
        self.check_results(server, ended, expected)
        self.assertEqual(self.good(server, "GET", f"/v1/batches/{batch['id']}"), ended)
        files = self.good(server, "GET", "/v1/files?purpose=batch_output")["data"]
        self.assertEqual(len(files), 4)

    def test_a_stopped_server_resumes(self):
        server = self.serve("--batch-concurrency", "2")
        expected = self.uninterrupted(server)
        batch = self.begin(server, self.LINES)
        self.wait_for_lines(server, batch, 5)
        self.assertEqual(server.stop(), 0)
        server = self.serve()
        self.check_results(server, self.wait_for_end(server, batch), expected)

    def test_a_full_disk_pauses_a_batch(self):
        server = self.serve("--batch-concurrency", "2")
        expected = self.uninterrupted(server)
        batch = self.begin(server, self.LINES)
        self.wait_for_lines(server, batch, 4)
        self.limit_files(server, 1)
        # Lines in flight end, and no line follows them. The log cannot tell: it cannot grow either.
        self.wait_until("paused",
                        lambda: not any(self.running(server) for _ in range(20)))
        paused = self.get(server, batch)
        self.assertEqual(paused["status"], "in_progress")
        self.assertLess(paused["request_counts"]["completed"], 40)
        status, answer = self.ask(server, "POST", f"/v1/batches/{batch['id']}/cancel")
        self.assertEqual((status, answer["error"]["code"]), (507, "insufficient_storage"))
        self.limit_files(server, None)
        self.check_results(server, self.wait_for_end(server, batch), expected)

    def test_clients_see_counts_rise_until_one_end(self):
        server = self.serve("--batch-concurrency", "2")
        batch = self.begin(server, self.LINES)
        seen, over = [], threading.Event()

        def watch():
            while not over.is_set():
                seen.append(self.get(server, batch))

        watcher = threading.Thread(target=watch)
        watcher.start()
        self.wait_for_end(server, batch)
        over.set()
        watcher.join()
        counts = [one["request_counts"]["completed"] for one in seen]
        self.assertEqual(counts, sorted(counts))
        self.assertGreater(len(set(counts)), 3)
        ends = {one["status"] for one in seen if one["status"] in TERMINAL}
        self.assertLessEqual(ends, {"completed"})


if __name__ == "__main__":
    harness.main()
