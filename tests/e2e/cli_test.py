#!/usr/bin/env python3
"""The command line: help, version, misspelt words, exit codes, and the output of `serve`.

`cli_test.py BINARY [unittest arguments]`.
"""

import json
import os
import pty
import re
import signal
import subprocess
import unittest

import harness
from harness import ROOT, Case

MODEL = ROOT / "config" / "models" / "tandem-stories"


def tandem(*arguments):
    """(exit code, standard output, standard error)"""
    done = subprocess.run([harness.BINARY, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


class Words(unittest.TestCase):
    def refused(self, *arguments):
        code, out, fault = tandem(*arguments)
        self.assertEqual((code, out), (2, ""), fault)
        self.assertTrue(fault.startswith("tandem: "), fault)
        return fault

    def test_version_is_a_verb_and_a_flag(self):
        code, line, _ = tandem("--version")
        self.assertEqual(code, 0)
        self.assertRegex(line, r"^tandem \d+\.\d+\.\d+ \(commit \w+, \w+\)\n$")
        self.assertEqual(tandem("version")[1], line)

    def test_help_is_a_verb_and_a_flag(self):
        for words in ([], ["serve"], ["checkpoint"], ["checkpoint", "ls"], ["help"]):
            code, text, fault = tandem("help", *words)
            self.assertEqual((code, fault), (0, ""), words)
            self.assertEqual(text, tandem(*words, "--help")[1], words)
        self.assertIn("did you mean serve?", self.refused("help", "srve"))

    def test_a_misspelt_verb_names_the_nearest(self):
        for words, nearest in ((["srve"], "serve"), (["trian", "spec.yaml"], "train"),
                               (["hlep"], "help"), (["checkpoint", "verfy", "x"], "verify"),
                               (["config", "explian"], "explain")):
            self.assertIn(f"did you mean {nearest}?", self.refused(*words))
        fault = self.refused("frobnicate")
        self.assertIn("there is no verb 'tandem frobnicate'", fault)
        self.assertNotIn("did you mean", fault)
        self.assertIn("Run 'tandem help'", fault)

    def test_a_misspelt_flag_names_the_nearest(self):
        for words, nearest in ((["serve", "--prot", "9000"], "--port"),
                               (["serve", "--max-model-length=5"], "--max-model-len"),
                               (["checkpoint", "verify", "x", "--quik"], "--quick")):
            self.assertIn(f"did you mean {nearest}?", self.refused(*words))
        self.assertIn("Run 'tandem help checkpoint verify'",
                      self.refused("checkpoint", "verify", "x", "--zzzzzzzz"))

    def test_every_help_lists_the_exit_codes_of_the_readme(self):
        readme = (ROOT / "server" / "cli" / "README.md").read_text()
        table = set(re.findall(r"(?m)^\| (\d+) \|", readme))
        for words in ([], ["serve"], ["checkpoint", "verify"]):
            text = " ".join(tandem("help", *words)[1].split("Exit codes:")[1].split())
            self.assertEqual(set(re.findall(r"(?:^|; )(\d+) ", text)), table)


class Serving(Case):
    def printed_example(self, server):
        """The command that `serve` prints after its first line."""
        lines = []
        for line in server.process.stdout:
            if line.strip():
                lines.append(line)
            elif lines:
                break
            if lines and lines[0] == "Try it:\n" and lines[-1].rstrip().endswith("'"):
                break
        self.assertEqual(lines[0], "Try it:\n")
        return "".join(lines[1:])

    def ask(self, command, **environment):
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False,
                              timeout=harness.PATIENCE_S, env={"PATH": "/usr/bin:/bin", **environment})
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line[len("data: "):]) for line in done.stdout.splitlines()
                if line.startswith("data: {")]

    def test_the_printed_example_asks_the_model_that_is_served(self):
        name = "it's my \"model\""
        server = self.serve("--model", f"{name}={MODEL}", "--model", f"second={MODEL}")
        chunks = self.ask(self.printed_example(server))
        self.assertEqual({chunk["model"] for chunk in chunks}, {name})
        self.assertIsNotNone(chunks[-1]["choices"][0]["finish_reason"])

    def test_the_printed_example_of_a_server_with_keys_names_the_variable(self):
        server = self.serve("--api-key", "secret", "--served-model-name", "stories")
        command = self.printed_example(server)
        self.assertNotIn("secret", command)
        chunks = self.ask(command, TANDEM_API_KEY="secret")
        self.assertEqual(chunks[0]["model"], "stories")

    def test_a_model_without_a_template_gets_an_example_that_completes(self):
        bare = self.path / "bare"
        bare.mkdir()
        for file in MODEL.iterdir():
            if file.suffix == ".safetensors" or file.name in ("config.json", "tokenizer.json"):
                (bare / file.name).symlink_to(file)
        server = self.serve("--model", str(bare))
        command = self.printed_example(server)
        self.assertIn("/v1/completions", command)
        self.assertTrue(self.ask(command)[0]["choices"])

    def console_lines(self, server):
        lines = []
        for line in server.process.stdout:
            lines.append(line)
            if lines[-2:-1] == ["Console:\n"]:
                return "".join(lines)
        self.fail(f"no console: {lines}")

    def test_the_address_of_the_console_has_the_key_only_on_a_terminal(self):
        file = self.path / "admin.key"
        file.write_text("k+ey/1\n")
        flags = ("--admin-key-file", str(file))
        server = self.serve(*flags, env={"TANDEM_ADMIN_KEY": ""})
        said = self.console_lines(server) + server.process.stdout.readline()
        self.assertIn(f"Console:\n  http://127.0.0.1:{server.address[1]}/\n", said)
        self.assertIn(f"admin key: {file}", said)
        self.assertIn(f"Or chat in a terminal:\n  tandem run --url http://127.0.0.1:{server.address[1]} ", said)
        self.assertEqual(server.stop(), 0)
        self.assertNotIn("k+ey", said + server.log_path.read_text())

        control, terminal = pty.openpty()
        with open(self.path / "log", "wb") as log:
            process = subprocess.Popen(
                [harness.BINARY, "serve", "--port", "0", "--data-dir", str(self.path / "other"), *flags],
                stdout=terminal, stderr=log, stdin=subprocess.DEVNULL,
                env={**os.environ, "TANDEM_ADMIN_KEY": "", "XDG_CACHE_HOME": str(self.path / "cache")})
            os.close(terminal)
            try:
                with open(control, "r", encoding="utf-8", newline="\n", closefd=True) as shown:
                    text = ""
                    while "Console:\r\n" not in text or not text.endswith("\n\r\n"):
                        text += shown.readline()
                    self.assertRegex(text, r"Console:\r\n  http://127\.0\.0\.1:\d+/#key=k%2Bey%2F1\r\n")
                    process.send_signal(signal.SIGTERM)
                    self.assertEqual(process.wait(harness.PATIENCE_S), 0)
            finally:
                process.kill()
                process.wait()
        self.assertNotIn("k+ey", (self.path / "log").read_text())

    def test_a_server_without_a_console_names_none(self):
        server = self.serve("--no-console")
        server.process.send_signal(signal.SIGTERM)
        said = server.process.stdout.read()
        self.assertIn("Or chat in a terminal:", said)
        self.assertNotIn("Console", said)
        self.assertEqual(server.stop(), 0)

    def test_a_context_beyond_the_models_own_is_cut_with_a_warning(self):
        server = self.serve("--max-model-len", "1000000")
        self.assertEqual(server.request("GET", "/v1/models")[2]["data"][0]["max_model_len"], 1024)
        self.wait_until("logged", lambda: "max_model_len_lowered" in server.log_path.read_text())
        warning = [line for line in server.log_path.read_text().splitlines()
                   if "max_model_len_lowered" in line]
        self.assertEqual(len(warning), 1)
        for part in ("tandem-stories", "1000000", "1024"):
            self.assertIn(part, warning[0])
        self.assertEqual(server.stop(), 0)
        server = self.serve("--max-model-len", "512")
        self.assertEqual(server.request("GET", "/v1/models")[2]["data"][0]["max_model_len"], 512)
        self.assertEqual(server.log_path.read_text().count("max_model_len_lowered"), 1)


if __name__ == "__main__":
    harness.main()
