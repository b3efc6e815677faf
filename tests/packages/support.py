"""What the tests of the packages share: roots, programs inside of them, and requests.

Each test file runs as `FILE BUILD_DIR [unittest arguments]`. BUILD_DIR/dist holds what
config/packaging/make_release made.
"""

import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path()
DIST = pathlib.Path()
PATIENCE_S = 120
CHROOT = shutil.which("chroot", path="/usr/sbin:/usr/bin")
WISH = {"model": "tandem-stories", "max_tokens": 12, "temperature": 0,
        "messages": [{"role": "user", "content": "Tell me a story about a dog."}]}


def is_root():
    return os.geteuid() == 0


def dist(pattern):
    """The only released file with such a name."""
    (file,) = DIST.glob(pattern)
    return file


def portable():
    return dist("tandem-*-linux-x86_64")


def run(*command, code=0, **options):
    """Standard output; fails unless the command ends with `code`."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, errors="replace",
                          timeout=PATIENCE_S, check=False, **options)
    if done.returncode != code:
        raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout if code == 0 else done.stdout + done.stderr


def inside(root, *command, user=None):
    """The command line that runs a command with `root` as its file system."""
    chroot = [CHROOT, *([f"--userspec={user}"] if user else []), str(root), *command]
    # Without root: root of a new user namespace, where the system permits one.
    return chroot if is_root() else ["unshare", "--map-root-user", *chroot]


def can_change_root():
    return is_root() or subprocess.run(["unshare", "--map-root-user", "true"], capture_output=True,
                                       check=False).returncode == 0


class Server:
    """`tandem serve` inside of a root. `arguments` follow the verb."""

    def __init__(self, root, program, *arguments, user=None, env=None):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            inside(root, program, "serve", "--port", "0", *arguments, user=user), stdout=subprocess.PIPE,
            stderr=self.log, text=True, env=env or {"PATH": os.environ["PATH"]})
        line = self.process.stdout.readline()
        match = re.fullmatch(r"listening on http://[\d.]+:(\d+)\n", line)
        if not match:
            self.process.kill()
            self.process.wait()
            text = self.text()
            self.close()
            raise AssertionError(f"no ready line, got {line!r}; log:\n{text}")
        self.port = int(match[1])

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def request(self, method, path, body=None, key=None):
        """(status, parsed JSON or text)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        is_json = response.headers.get_content_type() == "application/json"
        return response.status, json.loads(text) if is_json else text

    def chat(self, key=None):
        status, answer = self.request("POST", "/v1/chat/completions", WISH, key)
        assert status == 200, answer
        return answer["choices"][0]["message"]["content"]

    def stop(self):
        """Stops it as systemd does; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=PATIENCE_S)
        self.close()
        return code

    def close(self):
        self.process.stdout.close()
        self.log.close()


class Case(unittest.TestCase):
    def setUp(self):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="tandem-packages-"))
        self.addCleanup(shutil.rmtree, self.path, ignore_errors=True)

    def serve(self, root, program, *arguments, **options):
        server = Server(root, program, *arguments, **options)
        self.addCleanup(lambda: server.process.poll() is None and server.process.kill())
        return server


def enter_memory():
    """Starts this program again with its temporary files in memory, where dpkg's many syncs cost nothing.

    The file system belongs to a mount namespace of this process, and ends with it. Without the rights for one, the
    files stay on the disk.
    """
    place = BUILD / "roots" / "memory"
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c",
               'mount -t tmpfs -o size=4g,mode=700 tandem "$0" && exec "$@"', str(place)]
    if os.environ.get("TMPDIR") == str(place) or not is_root():
        return
    place.mkdir(parents=True, exist_ok=True)
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
        os.environ["TMPDIR"] = str(place)
        os.execvp(command[0], [*command, sys.executable, *sys.argv])


def main():
    global BUILD, DIST
    BUILD = pathlib.Path(sys.argv[1]).resolve()
    DIST = BUILD / "dist"
    enter_memory()
    del sys.argv[1]
    unittest.main(module="__main__", verbosity=2)
