#!/usr/bin/env python3
"""Replicas with one PostgreSQL and one data directory.

`replicas_test.py BINARY [unittest arguments]`.
"""

import json
import shutil
import time

from replicas_case import ENDED, ReplicasCase, chats, harness

FOLLOW_S = 2       # until a change of one replica shows at another
TAKE_OVER_S = 10   # until another replica supervises the jobs of a killed one


class State(ReplicasCase):
    def test_files_responses_and_jobs_of_one_are_those_of_the_other(self):
        a, b = self.replica(), self.replica()
        file = self.upload(a, chats())
        self.assertEqual(b.request("GET", f"/v1/files/{file}")[0], 200)
        self.assertEqual(a.request("GET", f"/v1/files/{file}/content")[2],
                         b.request("GET", f"/v1/files/{file}/content")[2])
        response = a.post("/v1/responses", {"model": "tandem-stories", "input": "A dog",
                                            "max_output_tokens": 8})
        status, _, again = b.request("GET", f"/v1/responses/{response['id']}")
        self.assertEqual((status, again["output"]), (200, response["output"]))
        more = b.post("/v1/responses", {"model": "tandem-stories", "input": "And a cat?",
                                        "previous_response_id": response["id"],
                                        "max_output_tokens": 8})
        self.assertEqual(more["previous_response_id"], response["id"])
        self.assertEqual(b.request("DELETE", f"/v1/files/{file}")[0], 200)
        self.assertEqual(a.request("GET", f"/v1/files/{file}")[0], 404)

    def test_aliases_and_keys_reach_every_replica_within_two_seconds(self):
        a, b = self.replica(), self.replica()
        status, _, answer = a.request("PUT", "/admin/aliases/story", {"target": "tandem-stories"},
                                      admin=True)
        self.assertEqual(status, 200, answer)
        self.within(FOLLOW_S, "the alias", lambda: "story" in self.models(b))
        self.assertEqual(a.request("DELETE", "/admin/aliases/story", admin=True)[0], 200)
        self.within(FOLLOW_S, "its end", lambda: "story" not in self.models(b))

        status, _, key = a.request("POST", "/admin/keys", {"name": "one", "scopes": ["infer"]},
                                   admin=True)
        self.assertEqual(status, 200, key)

        def models_with_key(server):
            connection = harness.http.client.HTTPConnection(*server.address, timeout=60)
            connection.request("POST", "/tokenize", '{"prompt": "x"}',
                               {"Content-Type": "application/json",
                                "Authorization": f"Bearer {key['key']}"})
            status = connection.getresponse().status
            connection.close()
            return status

        self.within(FOLLOW_S, "the key", lambda: models_with_key(b) == 200)
        self.assertEqual(b.request("DELETE", f"/admin/keys/{key['id']}", admin=True)[0], 200)
        self.within(FOLLOW_S, "its revocation", lambda: models_with_key(a) == 401)

    def test_polling_finds_changes_whose_notices_were_lost(self):
        a, b = self.replica(), self.replica()
        # The listeners' connections only; their next look opens new ones.
        self.database.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                            "WHERE query LIKE 'LISTEN%'")
        a.request("PUT", "/admin/aliases/story", {"target": "tandem-stories"}, admin=True)
        self.within(2 * FOLLOW_S, "the alias", lambda: "story" in self.models(b))


class Jobs(ReplicasCase):
    def test_a_fine_tune_of_one_answers_from_the_other(self):
        a, b = self.replica(), self.replica()
        job = self.start(a, self.upload(a, chats()), 2)
        self.wait_for_status(a, job, *ENDED)
        done = self.job(a, job)
        self.assertEqual(done["status"], "succeeded", done)
        name = done["fine_tuned_model"]
        took = self.within(10, "the model", lambda: name in self.models(b))
        print(f"a fine-tune was listed by the other replica after {took:.2f} s")
        texts = [self.chat(server, name)["choices"][0]["message"]["content"] for server in (a, b)]
        self.assertEqual(texts[0], texts[1])
        self.assertEqual(b.request("DELETE", f"/v1/models/{name}")[0], 200)
        self.within(FOLLOW_S, "its end", lambda: name not in self.models(a))

    def test_cancel_on_one_ends_the_job_of_the_other(self):
        a, b = self.replica(), self.replica()
        job = self.start(a, self.upload(a, chats()), 1000)
        self.the_process(job)
        self.act(b, job, "cancel")
        self.within(10, "cancelled", lambda: self.status(a, job) == "cancelled")

    def test_another_supervises_within_ten_seconds_after_a_kill(self):
        self.replica(), self.replica()
        first = self.supervisor()
        other = next(server for server in self.servers if server is not first)
        file = self.upload(other, chats())
        running = self.start(other, file, 60)
        self.the_process(running)
        queued = self.start(other, file, 2)

        first.kill()
        took = self.within(TAKE_OVER_S, "a supervisor", lambda: self.supervisor() is other)
        print(f"another replica supervised after {took:.1f} s")

        for job in (running, queued):
            self.wait_for_status(other, job, *ENDED)
            self.assertEqual(self.status(other, job), "succeeded", self.job(other, job))
            # Each step once: the child ran on, or resumed from its last checkpoint.
            log = (self.job_dir(job) / "log.txt").read_text()
            self.assertLessEqual(log.count("resuming, restart"), 1, log)
        self.assertEqual(self.database.query("SELECT count(*) FROM jobs WHERE status = 'succeeded'"),
                         ["2"])

    def test_background_responses_of_a_killed_replica_fail(self):
        self.replica(), self.replica()
        victim, other = self.servers
        ids = []
        # More than the victim can end before it is killed.
        for number in range(12):
            status, _, response = victim.request(
                "POST", "/v1/responses", {"model": "tandem-stories", "input": f"Dog {number}",
                                          "background": True, "max_output_tokens": 400})
            self.assertEqual(status, 200, response)
            ids.append(response["id"])
        victim.kill()

        def state(name):
            return other.request("GET", f"/v1/responses/{name}")[2]["status"]

        unfinished = [name for name in ids if state(name) != "completed"]
        self.assertTrue(unfinished, "the victim has ended all responses")
        self.within(25, "failed", lambda: all(state(name) == "failed" for name in unfinished))


class Batches(ReplicasCase):
    LINES = 200

    def begin(self, server):
        rows = [{"custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions",
                 "body": {"model": "tandem-stories", "prompt": f"Story {number}", "max_tokens": 200}}
                for number in range(self.LINES)]
        batch = server.post("/v1/batches", {
            "input_file_id": self.upload(server, rows, purpose="batch"),
            "endpoint": "/v1/completions", "completion_window": "24h"})
        self.wait_until("a result", lambda: self.done(server, batch["id"]) > 0)
        return batch["id"]

    def batch(self, server, name):
        status, _, batch = server.request("GET", f"/v1/batches/{name}")
        return batch if status == 200 else None

    def done(self, server, name):
        return self.batch(server, name)["request_counts"]["completed"]

    def check_that_each_line_has_one_answer(self, server, name):
        self.wait_until("the end", lambda: (self.batch(server, name) or {}).get("status") in
                        ("completed", "failed", "expired", "cancelled"))
        batch = self.batch(server, name)
        self.assertEqual(batch["status"], "completed", batch)
        status, _, content = server.request("GET", f"/v1/files/{batch['output_file_id']}/content")
        self.assertEqual(status, 200)
        lines = [json.loads(line) for line in content.splitlines()]
        self.assertEqual([line["custom_id"] for line in lines],
                         [f"line-{number}" for number in range(self.LINES)])

    def test_the_batch_of_a_killed_replica_continues_at_another(self):
        victim, other = self.replica(), self.replica()
        name = self.begin(victim)
        victim.kill()
        self.assertNotEqual(self.batch(other, name)["status"], "completed")
        self.check_that_each_line_has_one_answer(other, name)
        self.assertIn("batch_adopted", other.log_path.read_text())

    def test_a_database_that_is_away_longer_than_the_lease_costs_no_batch(self):
        a, b = self.replica(), self.replica()
        name = self.begin(a)
        self.database.stop("immediate")
        time.sleep(12)
        self.database.start()
        self.check_that_each_line_has_one_answer(a, name)
        # Neither has taken the other one for killed.
        self.assertNotIn("batch_adopted", a.log_path.read_text() + b.log_path.read_text())
        self.assertIn("batch_paused", a.log_path.read_text())

    def test_a_batch_of_one_is_no_work_for_the_other(self):
        a, b = self.replica(), self.replica()
        name = self.begin(a)

        def changes():
            return int(self.database.query(
                "SELECT count FROM tandem_changes WHERE subject = 'batches'")[0])

        before = changes()
        time.sleep(6)  # both have looked for left work
        self.assertLessEqual(changes() - before, 6)  # those of the batch itself
        self.check_that_each_line_has_one_answer(b, name)


class Adapters(ReplicasCase):
    def setUp(self):
        super().setUp()
        self.a = self.replica("--model-root", str(self.path))
        self.b = self.replica("--model-root", str(self.path))
        job = self.start(self.a, self.upload(self.a, chats()), 2)
        self.wait_for_status(self.a, job, *ENDED)
        self.assertEqual(self.status(self.a, job), "succeeded")
        shutil.copytree(self.job_dir(job) / "adapter", self.path / "tales")

    def load(self, server, name, **more):
        return server.post("/admin/adapters/load", {"name": name, "path": "tales", **more}, admin=True)

    def unload(self, server, name):
        return server.post("/admin/adapters/unload", {"name": name}, admin=True)

    def states(self, server):
        answer = server.request("GET", "/admin/adapters", admin=True)[2]
        return {adapter["name"]: adapter["state"] for adapter in answer["data"]}

    def lock_file(self):
        return json.loads((self.path / "data" / "adapters.lock").read_text())["adapters"]

    def test_an_adapter_of_one_is_listed_by_all_and_loaded_at_its_first_use(self):
        self.load(self.a, "tales")
        self.within(FOLLOW_S, "the adapter", lambda: "tales" in self.models(self.b))
        self.assertEqual(self.states(self.b)["tales"], "not_loaded")
        listed = self.b.request("GET", "/v1/models")[2]["data"]
        self.assertEqual([model["parent"] for model in listed if model["id"] == "tales"],
                         ["tandem-stories"])
        texts = [self.chat(server, "tales")["choices"][0]["message"] for server in (self.a, self.b)]
        self.assertEqual(texts[0], texts[1])
        self.assertEqual(self.states(self.b)["tales"], "loaded")

        (locked,) = self.lock_file()
        self.assertEqual((locked["name"], locked["base"], locked["path"]),
                         ("tales", "tandem-stories", str(self.path / "tales")))
        self.assertRegex(locked["sha256"], "^[0-9a-f]{64}$")

        # A replica that starts later has it too, and any replica ends it for all.
        c = self.replica("--model-root", str(self.path))
        self.within(FOLLOW_S, "the adapter at a later start", lambda: "tales" in self.models(c))
        self.unload(c, "tales")
        for server in (self.a, self.b):
            self.within(FOLLOW_S, "its end", lambda: "tales" not in self.models(server))
        self.assertEqual(self.lock_file(), [])

    def test_a_request_may_be_faster_than_the_notice(self):
        self.load(self.a, "fast")
        self.chat(self.b, "fast")

    def test_another_content_than_the_locked_one_is_refused(self):
        self.load(self.a, "tales")
        self.within(FOLLOW_S, "the adapter", lambda: "tales" in self.models(self.b))
        weights = self.path / "tales" / "adapter_model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
        status, _, answer = self.b.request("POST", "/v1/completions",
                                           {"model": "tales", "prompt": "x", "max_tokens": 2})
        self.assertEqual(status, 500, answer)
        self.assertIn("has another content", self.b.log_path.read_text())
        self.assertEqual(self.a.request("POST", "/v1/completions", {
            "model": "tales", "prompt": "x", "max_tokens": 2})[0], 200)
        # The operator's answer to the refusal: load it again, for all.
        self.load(self.a, "tales", replace=True)
        self.wait_until("the new content", lambda: self.b.request(
            "POST", "/v1/completions", {"model": "tales", "prompt": "x", "max_tokens": 2})[0] == 200)


class Outages(ReplicasCase):
    def test_a_database_that_is_gone_costs_503_and_nothing_else(self):
        a = self.replica()
        file = self.upload(a, chats())
        self.database.stop()
        begin = time.monotonic()
        status, headers, answer = a.request("GET", f"/v1/files/{file}")
        self.assertEqual((status, answer["error"]["code"]), (503, "database_unavailable"), answer)
        self.assertGreaterEqual(int(headers["Retry-After"]), 1)
        self.assertLess(time.monotonic() - begin, 10)
        # Generation needs no database.
        self.assertEqual(a.request("POST", "/v1/chat/completions", harness.story())[0], 200)
        self.assertEqual(a.request("GET", "/ready")[0], 200)

        self.database.start()
        self.within(10, "the file", lambda: a.request("GET", f"/v1/files/{file}")[0] == 200)
        self.assertIsNone(a.process.poll())

    def test_a_restart_of_the_database_goes_unnoticed(self):
        a = self.replica()
        file = self.upload(a, chats())
        job = self.start(a, file, 40)
        self.the_process(job)
        self.database.stop()
        self.database.start()
        self.assertEqual(a.request("GET", f"/v1/files/{file}")[0], 200)
        self.wait_for_status(a, job, *ENDED)
        self.assertEqual(self.status(a, job), "succeeded", self.job(a, job))

    def test_jobs_survive_a_database_that_is_gone_while_they_run(self):
        a, b = self.replica(), self.replica()
        file = self.upload(a, chats())
        job = self.start(a, file, 30)
        self.the_process(job)
        self.database.stop("immediate")
        time.sleep(12)  # longer than the lease
        self.database.start()
        # Each kind of record has a connection, which rests for a second after a failure.
        for server in (a, b):
            for path in (f"/v1/files/{file}", f"/v1/fine_tuning/jobs/{job}"):
                self.within(10, "the database", lambda: server.request("GET", path)[0] == 200)
        self.wait_for_status(b, job, *ENDED)
        self.assertEqual(self.status(b, job), "succeeded", self.job(b, job))
        log = (self.job_dir(job) / "log.txt").read_text()
        self.assertLessEqual(log.count("resuming, restart"), 1, log)
        self.assertIsNone(a.process.poll())
        self.assertIsNone(b.process.poll())

    def test_no_file_has_the_password(self):
        a = self.replica()
        self.upload(a, chats())
        self.database.stop()
        a.request("GET", "/v1/files")
        self.database.start()
        self.assertEqual(a.stop(), 0)
        secret = self.path / "password"
        for path in self.path.rglob("*"):
            if path.is_file() and path != secret:
                self.assertNotIn(self.database.PASSWORD.encode(), path.read_bytes(), path)


if __name__ == "__main__":
    harness.main()
