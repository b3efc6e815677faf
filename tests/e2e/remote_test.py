#!/usr/bin/env python3
"""The verbs that drive a server: models, ps, jobs and ft, and `tandem run` with what a job made.

`remote_test.py BINARY [unittest arguments]`.
"""

import json
import os
import re
import subprocess

import harness
from harness import ROOT, Case
from pseudo_terminal import CTRL_C, Terminal

CHATS = ROOT / "config" / "data" / "pirate-stories.jsonl"
MODEL = "tandem-stories"
LONG = ("--epochs", "50")  # a job that no test awaits


class RemoteCase(Case):
    def begin(self, *arguments):
        self.server = self.serve("--model-root", str(ROOT), *arguments)
        self.url = "http://%s:%d" % self.server.address

    def environment(self, **more):
        return dict(os.environ, TANDEM_URL=getattr(self, "url", ""), HOME=str(self.path),
                    XDG_CACHE_HOME=str(self.path / "cache"), TANDEM_ADMIN_KEY=harness.ADMIN_KEY,
                    **more)

    def tandem(self, *arguments, code=0, **more):
        """(standard output, standard error)"""
        done = subprocess.run([harness.BINARY, *map(str, arguments)], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, check=False, env=self.environment(**more),
                              timeout=harness.PATIENCE_S)
        self.assertEqual(done.returncode, code, (arguments, done.stdout, done.stderr))
        return done.stdout, done.stderr

    def rows(self, *arguments):
        """The table as a list of rows, each a list of cells."""
        text = self.tandem(*arguments)[0]
        return [re.split(r"  +", line) for line in text.splitlines()]

    def create(self, *flags, length=("--max-steps", 4)):
        return self.tandem("ft", "create", "--model", MODEL, "--file", CHATS, *length,
                           "--batch-size", 4, "--seed", 1, *flags)


class Lists(RemoteCase):
    def test_models_and_ps_are_tables_and_json(self):
        self.begin()
        table = self.rows("models")
        self.assertEqual(table[0], ["MODEL", "CONTEXT", "PARENT", "OWNER", "CREATED"])
        self.assertEqual(table[1][:3], [MODEL, "1024", "-"])
        self.assertEqual(json.loads(self.tandem("models", "--json")[0])["data"][0]["id"], MODEL)
        loaded = self.rows("ps")
        self.assertEqual(loaded[1][:2], [MODEL, "loaded"])
        self.assertRegex(loaded[1][4], r"^[\d.]+ [MG]iB$")
        self.assertEqual(json.loads(self.tandem("ps", "--json")[0])["data"][0]["state"], "loaded")

    def test_a_missing_key_and_a_wrong_one_say_what_to_do(self):
        self.begin("--api-key", "secret")
        for verb in (["models"], ["ft", "list"]):
            self.assertIn("TANDEM_API_KEY", self.tandem(*verb, code=1)[1])
            self.tandem(*verb, TANDEM_API_KEY="secret")
        (self.path / "wrong").write_text("wrong")
        for verb in (["ps"], ["jobs"]):
            self.tandem(*verb)
            fault = self.tandem(*verb, "--key-file", self.path / "wrong", code=1)[1]
            self.assertIn("TANDEM_ADMIN_KEY", fault)

    def test_the_admin_key_of_the_data_directory_is_found(self):
        self.begin()
        environment = self.environment(XDG_DATA_HOME=str(self.path / "own"))
        environment.pop("TANDEM_ADMIN_KEY")
        def ps(*flags):
            return subprocess.run([harness.BINARY, "ps", *flags], env=environment, check=False,
                                  capture_output=True, text=True).returncode
        self.assertEqual(ps(), 1)
        (self.path / "own" / "tandem").mkdir(parents=True)
        (self.path / "own" / "tandem" / "admin.key").write_text(harness.ADMIN_KEY)
        self.assertEqual(ps(), 0)
        (self.path / "other").mkdir()
        self.assertEqual(ps("--data-dir", str(self.path / "other")), 1)

    def test_no_server_is_a_network_error_that_names_the_cure(self):
        for verb in (["models"], ["ps"], ["jobs"], ["ft", "list"], ["ft", "show", "x"]):
            fault = self.tandem(*verb, "--url", "http://127.0.0.1:1", code=74)[1]
            self.assertIn("no server at http://127.0.0.1:1", fault)
            self.assertIn("`tandem serve`", fault)

    def test_an_unknown_job_and_a_typo_are_refused(self):
        self.begin()
        self.assertIn("nothing", self.tandem("jobs", "show", "nothing", code=1)[1])
        self.assertIn("nothing", self.tandem("ft", "cancel", "nothing", code=1)[1])
        self.assertIn("did you mean events?", self.tandem("ft", "evnts", "x", code=2)[1])
        self.tandem("ft", "create", "--model", MODEL, code=2)
        fault = self.tandem("ft", "create", "--model", MODEL, "--file", self.path / "no.jsonl",
                            code=1)[1]
        self.assertIn("no.jsonl", fault)


class FineTuning(RemoteCase):
    def test_create_follows_a_real_job_and_its_model_chats_from_the_data_directory(self):
        self.begin()
        name, progress = self.create("--follow", "--suffix", "sea")
        name = name.strip()
        self.assertRegex(name, rf"^ft:{MODEL}:local:sea:[0-9a-f]{{6}}$")
        self.assertRegex(progress, r"uploaded .* as file-")
        self.assertRegex(progress, r"step \d+/4  loss [\d.]+")
        self.assertIn(f"New fine-tuned model created: {name}", progress)

        row = self.rows("ft", "list")[1]
        job = row[0]
        self.assertEqual((row[1], row[2], row[-1]), ("succeeded", MODEL, name))
        self.assertIn(["status", "succeeded"], self.rows("ft", "show", job))
        events = self.tandem("ft", "events", job, "--limit", "100")[0].splitlines()
        self.assertIn("Created fine-tuning job", events[0])
        self.assertIn("successfully completed", events[-1])
        followed = self.tandem("ft", "events", job, "--follow", "--json")[0].splitlines()
        self.assertEqual(len([1 for line in followed if json.loads(line)["type"] == "metrics"]), 4)
        self.assertEqual(self.rows("jobs")[1][:3], [job, "fine_tune", "succeeded"])
        self.tandem("jobs", "log", job)
        self.tandem("jobs", "log", job, "--follow")
        self.assertIn("job_not_active", self.server_code("ft", "cancel", job))

        question = ["--temperature", "0", "--max-tokens", "8", "A story about a car."]
        served, _ = self.tandem("run", "--url", self.url, "--model", name, *question)
        self.server.stop()
        for word in (name, job):
            own, _ = self.tandem("run", "--data-dir", self.path / "data", "--model", word, *question)
            self.assertEqual(own, served)
        fault = self.tandem("run", "--data-dir", self.path / "data", "ft:x:local:y:000000", "Hi",
                            code=1)[1]
        self.assertIn("--data-dir", fault)

    def server_code(self, *arguments):
        """The error code in the server's answer to a refused call."""
        fault = self.tandem(*arguments, code=2)[1]
        self.assertIn(self.url, fault)
        status, _, body = self.server.request(
            "POST", f"/v1/fine_tuning/jobs/{arguments[-1]}/{arguments[1]}", {}, admin=True)
        self.assertEqual(status, 400)
        return body["error"]["code"]

    def test_a_job_is_paused_resumed_and_cancelled(self):
        self.begin()
        job = self.create(length=LONG)[0].strip()
        self.wait_until("it runs", lambda: "running" in self.tandem("ft", "show", job)[0])
        self.tandem("ft", "pause", job)
        self.wait_until("it is paused", lambda: self.rows("jobs", "list", "--status", "paused")[1:])
        self.tandem("jobs", "resume", job)
        self.wait_until("it runs again",
                        lambda: self.rows("jobs", "list", "--status", "running")[1:])
        self.tandem("jobs", "cancel", job)
        self.tandem("ft", "events", job, "--follow", code=130)
        self.assertEqual(json.loads(self.tandem("ft", "show", job, "--json")[0])["status"],
                         "cancelled")
        fault = self.tandem("run", "--data-dir", self.path / "data", job, "Hi", code=1)[1]
        self.assertIn("has not succeeded", fault)

    def test_control_c_stops_following_and_the_job_goes_on(self):
        self.begin()
        terminal = Terminal(self.path, "ft", "create", "--model", MODEL, "--file", CHATS,
                            *LONG, "--batch-size", "1", "--follow",
                            env=self.environment())
        self.addCleanup(terminal.close)
        terminal.expect(r"\r\x1b\[Kstep [2-9]/1000  loss")
        terminal.send(CTRL_C)
        self.assertEqual(terminal.end(), 130)
        self.assertIn("the job goes on", terminal.seen)
        self.assertEqual(self.rows("ft", "list")[1][1], "running")

    def test_a_server_that_dies_ends_the_following(self):
        self.begin()
        job = self.create(length=LONG)[0].strip()
        follower = subprocess.Popen([harness.BINARY, "ft", "events", job, "--follow"],
                                    env=self.environment(), stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, text=True)
        follower.stdout.readline()
        self.server.kill()
        _, fault = follower.communicate(timeout=harness.PATIENCE_S)
        self.assertEqual(follower.returncode, 74)
        self.assertIn("has gone in the middle", fault)

    def test_a_plan_and_bad_lines_start_no_job(self):
        self.begin()
        plan = json.loads(self.create("--dry-run")[0])
        self.assertIsInstance(plan, dict)
        bad = self.path / "bad.jsonl"
        bad.write_text("nonsense\n" * 12)
        fault = self.tandem("ft", "create", "--model", MODEL, "--file", bad, code=2)[1]
        self.assertIn("line 1", fault)
        self.assertEqual(len(self.rows("ft", "list")), 1)


if __name__ == "__main__":
    harness.main()
