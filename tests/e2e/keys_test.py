#!/usr/bin/env python3
"""Managed API keys, end to end: the verb beside a running server, scopes, isolation, kills.

`keys_test.py BINARY [unittest arguments]`.
"""

import http.client
import json
import os
import resource
import signal
import stat
import subprocess

import harness
from harness import PATIENCE_S, Case

MODEL = "tandem-stories"
ANIMALS = ("dog", "cat", "bird", "frog", "fox", "hen", "cow", "pig", "ant", "bee", "owl", "bat")
CHATS = "".join(json.dumps({"messages": [
    {"role": "user", "content": f"Tell me a story about a {animal}."},
    {"role": "assistant", "content": f"Once there was a {animal}."}]}) + "\n"
    for animal in ANIMALS).encode()
FORM = (b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n--b\r\n'
        b'Content-Disposition: form-data; name="file"; filename="x.jsonl"\r\n\r\n')


class KeysCase(Case):
    def keys(self, *words, code=0, **options):
        done = subprocess.run(
            [harness.BINARY, "keys", *words, "--data-dir", str(self.path / "data")],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False, **options)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def create(self, name, scopes="infer"):
        return self.keys("create", "--name", name, "--scopes", scopes).strip()

    def ask(self, server, key, method, path, body=None, content_type="application/json"):
        """(status, parsed JSON)"""
        connection = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        if body is not None:
            headers["Content-Type"] = content_type
            body = body if isinstance(body, bytes) else json.dumps(body)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        return response.status, json.loads(text)

    def upload(self, server, key):
        status, answer = self.ask(server, key, "POST", "/v1/files", FORM + CHATS + b"\r\n--b--\r\n",
                                  "multipart/form-data; boundary=b")
        self.assertEqual(status, 200, answer)
        return answer["id"]

    def listed(self, server, key, path):
        status, answer = self.ask(server, key, "GET", path)
        self.assertEqual(status, 200, answer)
        return {one["id"] for one in answer["data"]}

    def status(self, server, key, path="/v1/models"):
        return self.ask(server, key, "GET", path)[0]


class Verb(KeysCase):
    def test_a_key_is_shown_once_and_its_digest_kept_privately(self):
        key = self.create("alice", "infer,train")
        self.assertRegex(key, r"^tk-[0-9a-f]{64}$")
        table = self.keys("list").splitlines()
        self.assertEqual(table[0].split()[:4], ["ID", "NAME", "SCOPES", "STATE"])
        self.assertEqual(table[1].split()[1:4], ["alice", "infer,train", "valid"])
        row, = json.loads(self.keys("list", "--json"))
        self.assertEqual((row["name"], row["scopes"], row["revoked_at"], row["last_used_at"]),
                         ("alice", ["infer", "train"], None, None))
        self.assertNotIn("key", row)
        files = list((self.path / "data").iterdir())
        for file in files:
            self.assertEqual(stat.S_IMODE(file.stat().st_mode), 0o600, file)
            self.assertNotIn(key[3:].encode(), file.read_bytes())
        self.assertEqual(stat.S_IMODE((self.path / "data").stat().st_mode), 0o700)

        self.assertIn("revoked alice", self.keys("revoke", "alice"))
        self.assertEqual(self.keys("list").splitlines()[1].split()[3], "revoked")
        made = json.loads(self.keys("create", "--name", "alice", "--json", "--expires-days", "1"))
        self.assertEqual(made["expires_at"] - made["created_at"], 86400)
        self.assertEqual(made["scopes"], ["infer"])

    def test_wrong_words_are_refused(self):
        self.assertIn("there is no database of keys", self.keys("list", code=1))
        self.assertFalse((self.path / "data").exists())
        self.assertIn("a scope must be",
                      self.keys("create", "--name", "a", "--scopes", "root", code=2))
        for name in ("", "a b", "a\nb", "x" * 65, "\x1b[31m"):
            self.assertIn("the name of a key", self.keys("create", "--name", name, code=2))
        for days in ("0", "-1", "nan", "1e9"):
            self.assertIn("--expires-days",
                          self.keys("create", "--name", "a", "--expires-days", days, code=2))
        self.create("a")
        self.assertIn("a key has the name", self.keys("create", "--name", "a", code=1))
        self.assertIn("there is no API key", self.keys("revoke", "b", code=1))

    def test_a_key_that_cannot_be_printed_is_revoked(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run(
                [harness.BINARY, "keys", "create", "--name", "lost", "--data-dir",
                 str(self.path / "data")], stdout=full, stderr=subprocess.PIPE, text=True,
                timeout=PATIENCE_S, check=False)
        self.assertEqual(done.returncode, 74, done.stderr)
        row, = json.loads(self.keys("list", "--json"))
        self.assertIsNotNone(row["revoked_at"])

    def test_a_full_disk_makes_no_key(self):
        self.create("first")

        def no_growth():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))

        self.assertIn("disk is full",
                      self.keys("create", "--name", "second", code=1, preexec_fn=no_growth))
        rows = json.loads(self.keys("list", "--json"))
        self.assertEqual([row["name"] for row in rows], ["first"])


class RunningServer(KeysCase):
    def test_keys_come_and_go_while_the_server_runs(self):
        server = self.serve()
        self.assertEqual(self.status(server, None), 200)
        alice = self.create("alice")
        self.wait_until("closed", lambda: self.status(server, None) == 401)
        self.assertEqual(self.status(server, alice), 200)
        self.assertEqual(self.status(server, alice, "/v1/files"), 403)
        bob = self.create("bob", "train")
        self.wait_until("known", lambda: self.status(server, bob, "/v1/files") == 200)
        self.assertEqual(self.status(server, bob), 403)
        answer = self.ask(server, alice, "POST", "/v1/chat/completions", harness.story())
        self.assertEqual(answer[0], 200, answer)

        self.keys("revoke", "alice")
        self.wait_until("revoked", lambda: self.status(server, alice) == 401)
        self.assertEqual(self.ask(server, alice, "GET", "/v1/models"),
                         self.ask(server, "tk-" + "0" * 64, "GET", "/v1/models"))
        self.assertEqual(self.status(server, bob, "/v1/files"), 200)
        self.assertEqual(server.stop(), 0)
        log = server.log_path.read_text()
        for key in (alice, bob):
            self.assertNotIn(key[3:], log)

    def test_a_killed_server_knows_the_key_it_has_just_made(self):
        server = self.serve()
        status, _, made = server.request(
            "POST", "/admin/keys", {"name": "a", "scopes": ["infer"]}, admin=True)
        server.kill()
        self.assertEqual(status, 200, made)

        server = self.serve()
        self.assertEqual(self.status(server, made["key"]), 200)
        self.assertEqual(self.status(server, None), 401)
        status, _, gone = server.request("DELETE", f"/admin/keys/{made['id']}", admin=True)
        server.kill()
        self.assertEqual(status, 200, gone)

        server = self.serve()
        self.assertEqual(self.status(server, made["key"]), 401)
        self.assertEqual(self.status(server, None), 401)

    def test_a_killed_verb_leaves_a_usable_database(self):
        server = self.serve()
        for i in range(10):
            process = subprocess.Popen(
                [harness.BINARY, "keys", "create", "--name", f"k{i}", "--data-dir",
                 str(self.path / "data")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            if i % 2:
                process.stdout.read(1)
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        last = self.create("last")
        self.wait_until("closed", lambda: self.status(server, None) == 401)
        self.wait_until("known", lambda: self.status(server, last) == 200)


class Isolation(KeysCase):
    def test_files_jobs_and_models_belong_to_their_key(self):
        server = self.serve("--isolate-keys")
        old = self.upload(server, None)
        a, b = self.create("a", "infer,train"), self.create("b", "infer,train")
        self.wait_until("closed", lambda: self.status(server, None) == 401)
        self.wait_until("known", lambda: self.status(server, b) == 200)
        file = self.upload(server, a)
        status, job = self.ask(server, a, "POST", "/v1/fine_tuning/jobs",
                               {"model": MODEL, "training_file": file, "suffix": "mine",
                                "method": {"type": "supervised", "supervised": {
                                    "hyperparameters": {"n_epochs": 1, "batch_size": 4}}}})
        self.assertEqual(status, 200, job)
        path = f"/v1/fine_tuning/jobs/{job['id']}"
        self.wait_until("ended",
                        lambda: self.ask(server, a, "GET", path)[1]["status"] == "succeeded")
        job = self.ask(server, a, "GET", path)[1]
        model, result = job["fine_tuned_model"], job["result_files"][0]
        checkpoint = self.ask(server, a, "GET", path + "/checkpoints")[1]["data"][0]
        checkpoint = checkpoint["fine_tuned_model_checkpoint"]

        for _ in range(2):
            self.assertEqual(self.listed(server, a, "/v1/files"), {old, file, result})
            self.assertEqual(self.listed(server, b, "/v1/files"), {old})
            self.assertEqual(self.listed(server, a, "/v1/fine_tuning/jobs"), {job["id"]})
            self.assertEqual(self.listed(server, b, "/v1/fine_tuning/jobs"), set())
            self.assertIn(model, self.listed(server, a, "/v1/models"))
            self.assertNotIn(model, self.listed(server, b, "/v1/models"))
            for suffix in ("", "/events", "/events?stream=true", "/checkpoints"):
                self.assertEqual(self.status(server, b, path + suffix), 404, suffix)
            for verb in ("cancel", "pause", "resume"):
                self.assertEqual(self.ask(server, b, "POST", f"{path}/{verb}")[0], 404)
            for name in (model, checkpoint):
                self.assertEqual(self.ask(server, b, "DELETE", f"/v1/models/{name}")[0], 404)
                for route, body in (("/v1/chat/completions", harness.story(model=name)),
                                    ("/v1/completions", {"model": name, "prompt": "a"}),
                                    ("/tokenize", {"model": name, "prompt": "a"}),
                                    ("/v1/fine_tuning/jobs",
                                     {"model": name, "training_file": old})):
                    status, answer = self.ask(server, b, "POST", route, body)
                    self.assertEqual(status, 404, (route, answer))
                    self.assertNotIn("mine", answer["error"]["message"].replace(name, ""))
            self.assertEqual(self.ask(server, a, "POST", "/v1/chat/completions",
                                      harness.story(model=model))[0], 200)
            for route in (f"/v1/files/{file}", f"/v1/files/{result}", path, f"/v1/models/{model}"):
                self.assertEqual(server.request("GET", route, admin=True)[0], 200, route)
            self.assertEqual(server.stop(), 0)
            server = self.serve("--isolate-keys")

        # Without the flag everything is shared.
        self.assertEqual(server.stop(), 0)
        server = self.serve()
        self.assertEqual(self.status(server, b, path), 200)
        self.assertIn(model, self.listed(server, b, "/v1/models"))


if __name__ == "__main__":
    harness.main()
