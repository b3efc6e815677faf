"""Base of every end-to-end test: the program on a free port, and requests over HTTP.

Standard library only. A test file ends with `harness.main()` and runs as `FILE BINARY [unittest
arguments]`.
"""

import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BINARY = ""
ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
ADMIN_KEY = "e2e-admin-key"
# Generous: sanitizer builds on a busy machine are slow. A passing test never waits this long.
PATIENCE_S = 240


class Server:
    """`tandem serve` in its own process."""

    def __init__(self, data_dir, *arguments, env=None):
        environment = dict(os.environ)
        environment.update({"TANDEM_ADMIN_KEY": ADMIN_KEY, "XDG_CACHE_HOME": str(data_dir / "cache")})
        environment.update(env or {})
        self.log_path = data_dir / "server.log"
        self.log = open(self.log_path, "ab")
        self.process = subprocess.Popen(
            [BINARY, "serve", "--port", "0", "--data-dir", str(data_dir / "data"), *arguments],
            stdout=subprocess.PIPE, stderr=self.log, env=environment, text=True)
        line = self.process.stdout.readline()
        match = re.fullmatch(r"listening on https?://([\d.]+):(\d+)\n", line)
        if not match:
            self.process.kill()
            raise AssertionError(f"no ready line, got {line!r}; log:\n{self.log_path.read_text()}")
        self.address = (match[1], int(match[2]))

    def request(self, method, path, body=None, admin=False, timeout=PATIENCE_S):
        """(status, headers, parsed JSON or text)"""
        connection = http.client.HTTPConnection(*self.address, timeout=timeout)
        headers = {}
        if admin:
            headers["Authorization"] = f"Bearer {ADMIN_KEY}"
        if body is not None:
            body = json.dumps(body)
            headers["Content-Type"] = "application/json"
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        if response.headers.get_content_type() == "application/json":
            return response.status, response.headers, json.loads(text)
        return response.status, response.headers, text

    def post(self, path, body, admin=False):
        status, _, answer = self.request("POST", path, body, admin)
        assert status == 200, answer
        return answer

    def stream(self, path, body):
        """The JSON objects of a stream, and whether it ended with [DONE]."""
        connection = http.client.HTTPConnection(*self.address, timeout=PATIENCE_S)
        connection.request("POST", path, json.dumps(dict(body, stream=True)),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        lines = response.read().decode().split("\n\n")
        connection.close()
        data = [line[len("data: "):] for line in lines if line.startswith("data: ")]
        return [json.loads(entry) for entry in data if entry != "[DONE]"], data[-1] == "[DONE]"

    def stop(self):
        """Sends SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_S)
        self.close()
        return code

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.close()

    def close(self):
        self.process.stdout.close()
        self.log.close()


class Case(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.directory.name)
        self.servers = []

    def tearDown(self):
        for server in self.servers:
            if server.process.poll() is None:
                server.kill()
        self.remove_directory()

    def remove_directory(self):
        """A job of a killed server may write until it notices that the server is gone."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self.directory.cleanup()
            except OSError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def serve(self, *arguments, **options):
        server = Server(self.path, *arguments, **options)
        self.servers.append(server)
        return server

    def wait_until(self, what, condition):
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if condition():
                return
            time.sleep(0.05)
        self.fail(f"still not: {what}\n{self.servers[-1].log_path.read_text()[-4000:]}")


def job_processes(folder):
    """The processes of jobs in or below this directory."""
    wanted = os.fsencode(folder)
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"--job" in words and any(word.startswith(wanted) for word in words):
            found.append(int(entry.name))
    return found


def story(content="Tell me a story about a dog.", **more):
    return dict({"model": "tandem-stories", "max_tokens": 60,
                 "messages": [{"role": "user", "content": content}]}, **more)


def make_certificate(directory, name):
    """Self-signed, for 127.0.0.1: (certificate, key)"""
    cert, key = directory / f"{name}.pem", directory / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


def main():
    global BINARY
    BINARY = sys.argv[1]
    unittest.main(module="__main__", argv=sys.argv[:1] + sys.argv[2:], verbosity=2)
