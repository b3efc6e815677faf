"""Starts programs with an HTTP API of their own, and sends requests to them."""

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

START_LIMIT_S = 300
ANSWER_LIMIT_S = 120


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Api:
    """JSON over HTTP, with the bearer token `token`."""

    def __init__(self, url):
        self.url = url
        self.token = None
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def send(self, method, path, data=None, content_type="application/json"):
        """(status, text)"""
        headers = {"Content-Type": content_type} if data is not None else {}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with self.opener.open(request, timeout=ANSWER_LIMIT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def text(self, method, path, body=None):
        data = json.dumps(body).encode() if body is not None else None
        status, text = self.send(method, path, data)
        assert status in (200, 201), f"{method} {path}: {status} {text}"
        return text

    def get(self, path):
        return json.loads(self.text("GET", path))

    def post(self, path, body):
        return json.loads(self.text("POST", path, body))

    def form(self, path, fields):
        status, text = self.send("POST", path, urllib.parse.urlencode(fields).encode(),
                                 "application/x-www-form-urlencoded")
        assert status == 200, f"{path}: {status} {text}"
        return json.loads(text)

    def upload(self, path, name, text):
        boundary = "----tandem"
        data = (f"--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; "
                f"filename=\"{name}\"\r\nContent-Type: text/plain\r\n\r\n{text}\r\n"
                f"--{boundary}--\r\n").encode()
        status, answer = self.send("POST", path, data, f"multipart/form-data; boundary={boundary}")
        assert status == 200, f"{path}: {status} {answer}"
        return json.loads(answer)


class Program:
    """A program as a context: started, asked until `path` answers, ended."""

    def __init__(self, command, port, path, log, environment=None):
        self.api = Api(f"http://127.0.0.1:{port}")
        self.log = log
        with open(log, "ab") as output:
            self.process = subprocess.Popen([str(word) for word in command], stdout=output,
                                            stderr=output, env=environment or dict(os.environ),
                                            cwd=log.parent)
        self.wait(path)

    def wait(self, path):
        end = time.monotonic() + START_LIMIT_S
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if self.api.send("GET", path)[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.5)
        self.stop()
        raise AssertionError(f"{self.process.args[0]} does not answer:\n{self.tail()}")

    def tail(self):
        return self.log.read_text(errors="replace")[-4000:]

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self):
        return self.api

    def __exit__(self, kind, value, trace):
        self.stop()
        if kind is not None:
            print(self.tail())
