"""A program in a pseudo-terminal, and a server that answers chats as a test scripts them."""

import fcntl
import http.server
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time

import harness

UP, DOWN, RIGHT, LEFT = "\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D"
CTRL_A, CTRL_C, CTRL_D, CTRL_U = "\x01", "\x03", "\x04", "\x15"
ENTER = "\r"
PROMPT = ">>> "


class Terminal:
    """`tandem ARGUMENTS` with a terminal as standard input, output and error."""

    def __init__(self, directory, *arguments, columns=100, env=None, output=None):
        environment = dict(os.environ, TERM="xterm", HOME=str(directory),
                           XDG_STATE_HOME=str(directory / "state"),
                           XDG_CACHE_HOME=str(directory / "cache"))
        environment.pop("NO_COLOR", None)
        environment.update(env or {})
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.first_mode = termios.tcgetattr(slave)
        self.process = subprocess.Popen(
            [harness.BINARY, *map(str, arguments)], stdin=slave, stdout=output or slave,
            stderr=slave, env=environment, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.slave = slave
        self.seen = ""  # everything the program has written
        self.read_to = 0  # end of the last match

    def send(self, text):
        os.write(self.master, text.encode())

    def line(self, text):
        self.send(text + ENTER)

    def _read(self, seconds):
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        try:
            piece = os.read(self.master, 65536)
        except OSError:  # the other end is closed
            return False
        self.pending = getattr(self, "pending", b"") + piece
        try:
            self.seen += self.pending.decode()
            self.pending = b""
        except UnicodeDecodeError:
            pass  # a character arrives in two pieces
        return True

    def expect(self, pattern):
        """Waits for a regular expression after the last match; returns the match."""
        deadline = time.monotonic() + harness.PATIENCE_S
        while True:
            match = re.compile(pattern, re.S).search(self.seen, self.read_to)
            if match:
                self.read_to = match.end()
                return match
            if time.monotonic() > deadline or (not self._read(0.2)
                                               and self.process.poll() is not None
                                               and not self._read(0)):
                raise AssertionError(f"no {pattern!r} in {self.seen[self.read_to:]!r}; "
                                     f"before: {self.seen[:self.read_to][-400:]!r}")

    def prompt(self):
        return self.expect(re.escape(PROMPT))

    def ask(self, text, answer):
        self.line(text)
        match = self.expect(answer)
        self.prompt()
        return match

    def interrupt(self):
        """As the terminal's Ctrl-C while the program does not read keys."""
        self.send(CTRL_C)

    def end(self):
        """Waits for the program; returns its exit code."""
        deadline = time.monotonic() + harness.PATIENCE_S
        while self.process.poll() is None:
            self._read(0.05)
            if time.monotonic() > deadline:
                self.close()
                raise AssertionError(f"the program does not end: {self.seen[-600:]!r}")
        while self._read(0):
            pass
        return self.process.returncode

    def mode_is_restored(self):
        return termios.tcgetattr(self.slave)[:4] == self.first_mode[:4]

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)


class ScriptedServer:
    """Answers chats with the texts given to `answers`, one list of stream items per request.

    An item is a text, a dict (a `delta`), a threading.Event to wait for, or the word VANISH.
    """

    VANISH = object()

    def __init__(self, model="scripted"):
        self.model = model
        self.answers = []
        self.requests = []
        self.status = None  # (status, body) of every chat instead of an answer
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments):
                pass

            def reply(self, status, body):
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                self.reply(200, {"object": "list", "data": [
                    {"id": outer.model, "capabilities": ["chat", "completions"]}]})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append((self.path, body, dict(self.headers)))
                if outer.status:
                    return self.reply(*outer.status)
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.connection.settimeout(harness.PATIENCE_S)
                try:
                    self.stream(outer.answers.pop(0))
                except OSError:
                    outer.left.set()

            def chunk(self, text):
                data = text.encode()
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

            def event(self, delta, finish=None):
                self.chunk("data: " + json.dumps({"choices": [
                    {"index": 0, "delta": delta, "finish_reason": finish}]}) + "\n\n")

            def stream(self, items):
                for item in items:
                    if item is ScriptedServer.VANISH:
                        self.close_connection = True
                        return
                    if isinstance(item, threading.Event):
                        # Comments find a client that has left.
                        while not item.wait(0.02):
                            self.chunk(": ping\n\n")
                    else:
                        self.event(item if isinstance(item, dict) else {"content": item})
                self.event({}, "stop")
                self.chunk("data: " + json.dumps({"choices": [], "usage": {
                    "prompt_tokens": 7, "completion_tokens": 5,
                    "prompt_tokens_details": {"cached_tokens": 3}}}) + "\n\ndata: [DONE]\n\n")
                self.wfile.write(b"0\r\n\r\n")

        self.left = threading.Event()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def messages(self):
        """Role and content of the last request's messages."""
        return [(message["role"], message["content"]) for message in self.requests[-1][1]["messages"]]

    def close(self):
        self.server.shutdown()
        self.server.server_close()
