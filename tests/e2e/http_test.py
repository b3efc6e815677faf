#!/usr/bin/env python3
"""The transport from outside, byte by byte: framing, connections, keys, headers and limits.

`http_test.py BINARY [unittest arguments]`. README.md lists the rules with their tests.
TANDEM_E2E_FULL=1 uses the full numbers of connections.
"""

import contextlib
import json
import multiprocessing
import os
import random
import re
import resource
import select
import signal
import socket
import ssl
import statistics
import struct
import subprocess
import time
import types
import warnings

import harness
from harness import ADMIN_KEY, PATIENCE_S, ROOT, Case, make_certificate, story

FULL = os.environ.get("TANDEM_E2E_FULL") == "1"
# The server's limit is 100 ms. Busy machines need longer; a request that is not cancelled would
# need many times this.
PROMPT_S = 5
HOST = "Host: localhost\r\n"


class Reply:
    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers  # lower-case name -> value
        self.body = body

    def json(self):
        return json.loads(self.body)

    def code(self):
        return self.json()["error"]["code"]


class Raw:
    """A connection that sends exactly the given bytes."""

    opened = []  # by the running test

    def __init__(self, server, tls=None, receive_buffer=None):
        self.socket = socket.socket()
        Raw.opened.append(self)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(server.address)
        if tls:
            # Makes an end of TCP without close_notify an error, as careful clients do.
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1",
                                          suppress_ragged_eofs=False)
        self.input = b""

    def send(self, data):
        self.socket.sendall(data.encode("latin-1") if isinstance(data, str) else data)
        return self

    def try_send(self, data):
        """Like send, for a server that may already have closed."""
        with contextlib.suppress(OSError):
            self.send(data)
        return self

    def fill(self):
        try:
            piece = self.socket.recv(1 << 16)
        except ConnectionError:
            piece = b""
        self.input += piece
        return bool(piece)

    def until(self, needle):
        while needle not in self.input:
            if not self.fill():
                return False
        return True

    def take(self, n):
        while len(self.input) < n:
            if not self.fill():
                raise AssertionError(f"closed after {self.input[:500]!r}")
        out, self.input = self.input[:n], self.input[n:]
        return out

    def line(self):
        if not self.until(b"\r\n"):
            raise AssertionError(f"closed after {self.input[:500]!r}")
        return self.take(self.input.index(b"\r\n") + 2)[:-2]

    def read(self, head=False):
        status = self.line().decode()
        assert re.fullmatch(r"HTTP/1\.1 \d{3} [A-Za-z ]+", status), status
        headers = {}
        while field := self.line().decode("latin-1"):
            name, value = field.split(": ", 1)
            assert name.lower() not in headers, f"{name} twice"
            headers[name.lower()] = value
        number = int(status.split()[1])
        body = b""
        if not head and number not in (100, 204):
            if "content-length" in headers:
                assert "transfer-encoding" not in headers
                body = self.take(int(headers["content-length"]))
            elif headers.get("transfer-encoding") == "chunked":
                while size := int(self.line(), 16):
                    body += self.take(size)
                    assert self.take(2) == b"\r\n"
                assert self.line() == b""
            else:
                while self.fill():
                    pass
                body, self.input = self.input, b""
        return Reply(number, headers, body)

    def is_closed(self):
        """Waits for the end; false if bytes arrive instead."""
        while not self.input:
            if not self.fill():
                return True
        return False

    def close(self):
        self.socket.close()

    def reset(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def get(path, *headers, version="1.1", method="GET"):
    host = HOST if version == "1.1" else ""
    return f"{method} {path} HTTP/{version}\r\n{host}" + "".join(h + "\r\n" for h in headers) + "\r\n"


def post(path, body, *headers, version="1.1"):
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    return get(path, "Content-Type: application/json", f"Content-Length: {len(body)}", *headers,
               version=version, method="POST").encode() + body


def bearer(key):
    return f"Authorization: Bearer {key}"


CHAT = "/v1/chat/completions"


def long_story(stream=True, n=16):
    """Seconds of work, unless the client leaves."""
    return story(stream=stream, n=n, max_tokens=900, ignore_eos=True)


class Http(Case):
    def tearDown(self):
        while Raw.opened:
            Raw.opened.pop().socket.close()
        super().tearDown()

    def ask(self, server, data, head=False):
        connection = Raw(server)
        reply = connection.send(data).read(head)
        connection.close()
        return reply

    def stats(self, server):
        return server.request("GET", "/admin/models", admin=True)[2]["data"][0]

    def is_drained(self, server):
        stats = self.stats(server)
        return (stats["running"], stats["waiting"], stats["kv_blocks_used"]) == (0, 0, 0)

    def assert_drained_soon(self, server):
        begin = time.monotonic()
        while not self.is_drained(server):
            self.assertLess(time.monotonic() - begin, PROMPT_S, self.stats(server))
            time.sleep(0.005)

    def assert_healthy(self, server):
        self.assertEqual(self.ask(server, get("/health")).status, 200)


class Connections(Http):
    def test_keep_alive_until_the_client_says_close(self):
        server = self.serve()
        connection = Raw(server)
        for _ in range(3):
            reply = connection.send(get("/health")).read()
            self.assertEqual((reply.status, reply.json()), (200, {"status": "ok"}))
            self.assertNotIn("connection", reply.headers)
        for spelling in ("close", "Close", "keep-alive, close"):
            connection = Raw(server)
            reply = connection.send(get("/health", f"Connection: {spelling}")).read()
            self.assertEqual(reply.headers["connection"], "close")
            self.assertTrue(connection.is_closed())

    def test_http_10_closes_and_knows_no_chunks(self):
        server = self.serve()
        connection = Raw(server).send(get("/health", "Connection: keep-alive", version="1.0"))
        self.assertEqual(connection.read().json(), {"status": "ok"})
        self.assertTrue(connection.is_closed())

        connection = Raw(server).send(
            post(CHAT, story(stream=True, max_tokens=5), version="1.0"))
        reply = connection.read()
        self.assertNotIn("transfer-encoding", reply.headers)
        self.assertNotIn("content-length", reply.headers)
        self.assertTrue(reply.body.endswith(b"data: [DONE]\n\n"))

    def test_a_stream_leaves_the_connection_usable(self):
        server = self.serve()
        connection = Raw(server)
        for _ in range(3):
            reply = connection.send(post(CHAT, story(stream=True, max_tokens=5))).read()
            self.assertTrue(reply.body.endswith(b"data: [DONE]\n\n"))
            self.assertEqual(reply.headers["content-type"], "text/event-stream; charset=utf-8")
            self.assertEqual(reply.headers["cache-control"], "no-cache")
            self.assertEqual(reply.headers["x-accel-buffering"], "no")

    def test_pipelined_requests_are_answered_in_order(self):
        server = self.serve()
        connection = Raw(server)
        paths = ["/health", "/version", "/nowhere", "/v1/models", "/ready"] * 12
        connection.send("".join(get(p, f"X-Request-Id: id-{i}") for i, p in enumerate(paths)))
        for i, path in enumerate(paths):
            reply = connection.read()
            self.assertEqual(reply.headers["x-request-id"], f"id-{i}")
            self.assertEqual(reply.status, 404 if path == "/nowhere" else 200)

    def test_reading_stops_while_sixteen_requests_wait(self):
        server = self.serve()
        connection = Raw(server)
        connection.send(post(CHAT, long_story(n=4)))
        self.assertTrue(connection.until(b"data: "))
        request = get("/health", "Padding: " + "p" * 7000).encode()
        # The kernels' buffers hold a few megabytes; a server that kept reading would take
        # everything.
        everything = request * ((64 << 20) // len(request))
        connection.socket.settimeout(1)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < len(everything):
                sent += connection.socket.send(everything[sent:sent + (1 << 16)])
        self.assertLess(sent, len(everything))

        connection.socket.settimeout(PATIENCE_S)
        self.assertTrue(connection.read().body.endswith(b"data: [DONE]\n\n"))
        whole = sent // len(request)
        self.assertGreater(whole, 16)
        for _ in range(whole):
            self.assertEqual(connection.read().status, 200)

    def test_bodies_by_length_and_in_chunks(self):
        server = self.serve()
        body = json.dumps({"prompt": "Once upon a time"}).encode()
        want = self.ask(server, post("/tokenize", body)).json()
        head = "POST /tokenize HTTP/1.1\r\n" + HOST + "Content-Type: application/json\r\n"
        for size in (1, 7, len(body)):
            pieces = [body[i:i + size] for i in range(0, len(body), size)]
            chunks = b"".join(b"%X;ext=1\r\n%s\r\n" % (len(p), p) for p in pieces)
            data = (head + "Transfer-Encoding: Chunked\r\n\r\n").encode() + chunks
            data += b"0\r\nTrailer: x\r\n\r\n"
            connection = Raw(server)
            for _ in range(2):  # the next request follows the last chunk
                connection.send(data)
            for _ in range(2):
                reply = connection.read()
                self.assertEqual((reply.status, reply.json()), (200, want))
        connection = Raw(server)
        for byte in post("/tokenize", body):
            connection.send(bytes([byte]))
        self.assertEqual(connection.read().json(), want)

    def test_expect_100_continue(self):
        server = self.serve("--api-key", "k1")
        body = json.dumps({"prompt": "hello"}).encode()

        def head(length, *headers, path="/tokenize"):
            return get(path, "Content-Type: application/json", f"Content-Length: {length}",
                       "Expect: 100-continue", *headers, method="POST")

        connection = Raw(server).send(head(len(body), bearer("k1")))
        self.assertEqual(connection.read().status, 100)
        self.assertEqual(connection.send(body).read().status, 200)
        # A client that does not wait gets at most one 100, then its reply.
        connection = Raw(server).send(head(len(body), bearer("k1")).encode() + body)
        reply = connection.read()
        if reply.status == 100:
            reply = connection.read()
        self.assertEqual(reply.status, 200)
        for status, refused in ((401, head(len(body))),
                                (404, head(len(body), path="/nowhere")),
                                (405, head(len(body), path="/health")),
                                (413, head(1 << 40, bearer("k1")))):
            connection = Raw(server).send(refused)
            self.assertEqual(connection.read().status, status)
            self.assertTrue(connection.is_closed())
        self.assertEqual(self.ask(server, get("/health", "Expect: more")).status, 417)

    def test_json_carries_its_length_and_is_utf_8(self):
        server = self.serve()
        for path in ("/health", "/v1/models", "/nowhere/\xe9%C3%A9%FF"):
            reply = self.ask(server, get(path.replace("\xe9", "%E9")))
            self.assertEqual(reply.headers["content-type"], "application/json")
            self.assertEqual(int(reply.headers["content-length"]), len(reply.body))
            reply.body.decode("utf-8")
            self.assertFalse(reply.body.startswith(b"\xef\xbb\xbf"))


SMUGGLED = "GET /v1/models HTTP/1.1\r\n" + HOST + "X-Request-Id: smuggled\r\n\r\n"


class Framing(Http):
    """A message has one meaning. Anything else is refused, and later bytes are not read."""

    def corpus(self):
        head = "POST /tokenize HTTP/1.1\r\n" + HOST + "Content-Type: application/json\r\n"
        chunked = head + "Transfer-Encoding: chunked\r\n"
        body = '{"prompt":"a"}'
        n = len(body)
        for lengths in ("3\r\nContent-Length: 4", "3, 4", "3,3", "+3", "-3", "1 0", "0x10", "3.0",
                        "1e1", "", " ", "\t", "3;", "99999999999999999999999", "18446744073709551616",
                        "-0", "3\x00", "\xb2", "3\r\nContent-Length: 03"):
            yield f"length {lengths!r}", head + f"Content-Length: {lengths}\r\n\r\n{body}"
        for coding in ("gzip", "gzip, chunked", "chunked, gzip", "chunked, chunked", "identity",
                       "xchunked", "chunkedx", "chunked;q=1", "\x0bchunked", "chunked\x00", "",
                       "chunked\r\nTransfer-Encoding: chunked",
                       "chunked\r\nTransfer-Encoding: identity"):
            yield f"coding {coding!r}", head + f"Transfer-Encoding: {coding}\r\n\r\n0\r\n\r\n"
        for first, second in ((f"Content-Length: {n}", "Transfer-Encoding: chunked"),
                              ("Transfer-Encoding: chunked", f"Content-Length: {n}"),
                              ("Transfer-Encoding: chunked", "Content-Length: 0")):
            yield "both", head + f"{first}\r\n{second}\r\n\r\n0\r\n\r\n"
        yield "chunked in 1.0", ("POST /tokenize HTTP/1.0\r\nContent-Type: application/json\r\n"
                                 "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        for size in ("zz", "-1", "+1", " 1", "1 ", "0x1", "", "1\t", "FFFFFFFFFFFFFFFFF",
                     "10000000000000001", "1,1", "\x00", "1\x00"):
            yield f"chunk size {size!r}", chunked + f"\r\n{size}\r\na\r\n0\r\n\r\n"
        yield "chunk LF", chunked + "\r\n1\na\n0\n\n"
        yield "chunk CR", chunked + "\r\n1\ra\r0\r\r"
        yield "chunk too long", chunked + "\r\n1\r\nab\r\n0\r\n\r\n"
        yield "chunk too short", chunked + "\r\n3\r\na\r\n0\r\n\r\n"
        yield "chunk extension LF", chunked + "\r\n1;a\nb\r\na\r\n0\r\n\r\n"
        yield "chunk extension long", chunked + "\r\n1;" + "e" * 5000 + "\r\na\r\n0\r\n\r\n"
        yield "trailer LF", chunked + "\r\n0\r\nA: b\nC: d\r\n\r\n"
        yield "trailer long", chunked + "\r\n0\r\nA: " + "t" * 20000 + "\r\n\r\n"
        for field in ("Content-Length : 3", "Content-Length\t: 3", "Host : x", " X: y", "\tX: y",
                      "X y: z", "X", ": y", "X\x00: y", "X: a\x00b", "X: a\rb", "X: a\nb",
                      "X: a\x01b", "X(: y", "\xe9: y", "X: a\r\n b", "X: a\r\n\tb",
                      "Transfer-Encoding\x0b: chunked"):
            yield f"field {field!r}", head + field + "\r\n\r\n"
        for hosts in ("", HOST + "Host: y\r\n", HOST + HOST, "Host: a b\r\n", "Host: a/b\r\n",
                      "Host: a, b\r\n"):
            yield f"hosts {hosts!r}", f"GET /health HTTP/1.1\r\n{hosts}\r\n"
        for line in ("GET /health HTTP/1.1\nHost: x\n\n", "GET /health HTTP/1.1\r\nHost: x\n\r\n",
                     "GET /health HTTP/1.1\rHost: localhost\r\r", "GET  /health HTTP/1.1\r\n" + HOST + "\r\n",
                     " GET /health HTTP/1.1\r\n" + HOST + "\r\n", "GET /health HTTP/1.1 \r\n" + HOST + "\r\n",
                     "GET\t/health HTTP/1.1\r\n" + HOST + "\r\n", "GET /hea\x00lth HTTP/1.1\r\n" + HOST + "\r\n",
                     "GET /hea lth HTTP/1.1\r\n" + HOST + "\r\n", "GET /health HTTP/1.2\r\n" + HOST + "\r\n",
                     "GET /health HTTP/2.0\r\n" + HOST + "\r\n", "GET /health http/1.1\r\n" + HOST + "\r\n",
                     "GET /health HTTP/1.10\r\n" + HOST + "\r\n", "GET /health HTTP/11\r\n" + HOST + "\r\n",
                     "GET /health\r\n" + HOST + "\r\n", "GET\r\n\r\n", "\x00\r\n\r\n", "G@T /health HTTP/1.1\r\n" + HOST + "\r\n",
                     "GET health HTTP/1.1\r\n" + HOST + "\r\n", "CONNECT a:80 HTTP/1.1\r\n" + HOST + "\r\n",
                     "\r\n" * 100):
            yield f"line {line!r}", line

    def test_what_could_be_read_in_two_ways_is_refused_and_the_rest_dropped(self):
        server = self.serve()
        for name, data in self.corpus():
            with self.subTest(name):
                connection = Raw(server).try_send(data + SMUGGLED)
                reply = connection.read()
                self.assertIn(reply.status, (400, 501))
                self.assertEqual(reply.headers["connection"], "close")
                self.assertEqual(set(reply.json()["error"]), {"message", "type", "param", "code"})
                self.assertTrue(connection.is_closed(), connection.input)
                connection.close()
        self.assert_healthy(server)

    def test_cutting_the_bytes_differently_changes_nothing(self):
        server = self.serve()
        rng = random.Random(7)
        for name, data in rng.sample(list(self.corpus()), 20):
            with self.subTest(name):
                connection = Raw(server)
                data = (data + SMUGGLED).encode("latin-1")
                while data:
                    n = rng.randint(1, 40)
                    connection.try_send(data[:n])
                    data = data[n:]
                self.assertIn(connection.read().status, (400, 501))
                self.assertTrue(connection.is_closed(), connection.input)

    def test_good_requests_before_a_bad_one_are_answered(self):
        server = self.serve()
        connection = Raw(server).send(
            get("/health") + get("/health", "Content-Length: x") + SMUGGLED)
        self.assertEqual([connection.read().status for _ in range(2)], [200, 400])
        self.assertTrue(connection.is_closed())

    def test_what_only_looks_odd_is_served(self):
        server = self.serve()
        for data in ("\r\n" + get("/health"), get("/health", "X:"), get("/health", "X:\ty\t"),
                     get("/health", "X: \xe9\xff"), get("/health?a=%zz&&=#x"), get("//x@y/health"[1:] and "/health?"),
                     "GET http://else.where/health HTTP/1.1\r\n" + HOST + "\r\n",
                     get("/health", "Content-Length: 0"),
                     get("/health", "Content-Length: 3\r\nContent-Length: 3") + "abc",
                     get("/%68ealth"), "GET /health HTTP/1.1\r\nHost:\r\n\r\n",
                     "GET /health HTTP/1.0\r\n\r\n"):
            with self.subTest(data):
                self.assertEqual(self.ask(server, data).status, 200)

    def test_other_protocols_are_answered_or_closed(self):
        cert, key = make_certificate(self.path, "tls")
        secure = self.serve("--tls-cert", str(cert), "--tls-key", str(key))
        # The other server owns the data directory; a server without an admin key runs nevertheless.
        plain = self.serve(env={"TANDEM_ADMIN_KEY": ""})
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        hello = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="x")
        with contextlib.suppress(ssl.SSLWantReadError):
            hello.do_handshake()
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)
        rng = random.Random(3)
        for data in (outgoing.read(), preface, b"SSH-2.0-x\r\n", rng.randbytes(500), b"\x80\x2e\x01\x00\x02",
                     b"\x05\x01\x00"):
            with self.subTest(data[:20]):
                connection = Raw(plain).try_send(data)
                self.assertEqual(connection.read().status, 400)
                self.assertTrue(connection.is_closed())
        for data in (get("/health").encode(), post(CHAT, story()), b"CONNECT x:1 HTTP/1.1\r\n\r\n"):
            with self.subTest(data[:20]):
                connection = Raw(secure).try_send(data)
                reply = connection.read()
                self.assertEqual(reply.status, 400)
                self.assertIn("https", reply.json()["error"]["message"])
                self.assertTrue(connection.is_closed())
        for data in (preface, b"SSH-2.0-x\r\n", rng.randbytes(500), b"\x16\x03\x01\x02\x00" + rng.randbytes(512),
                     b"\x16\x03\x01\xff\xff", b"OPTIONS * HTTP/1.1\r\n\r\n"):
            with self.subTest(data[:20]):
                connection = Raw(secure).try_send(data)
                while connection.fill():
                    pass
                self.assertLess(len(connection.input), 100)  # at most an alert
        self.assert_healthy(plain)


def routes():
    """(method, path) of every endpoint of the handler files."""
    text = "".join(file.read_text() for file in (ROOT / "server" / "handlers").rglob("*.cc"))
    found = re.findall(r'\{(?:\.method = )?"(GET|POST|PUT|DELETE|PATCH)",\s*(?:\.pattern = )?"(/[^"]*)"', text)
    assert len(found) > 40
    return [(method, re.sub(r"\{\w+\+?\}", "tandem-stories", path)) for method, path in found]


class Routes(Http):
    def test_head_answers_as_get_without_the_body(self):
        server = self.serve()
        for path in sorted({p for m, p in routes() if m == "GET"}):
            with self.subTest(path):
                full = self.ask(server, get(path, bearer(ADMIN_KEY)))
                connection = Raw(server)
                connection.send(get(path, bearer(ADMIN_KEY), method="HEAD") + get("/health"))
                head = connection.read(head=True)
                self.assertEqual(head.status, full.status)
                volatile = {"x-request-id", "date", "openai-processing-ms"}
                if path == "/metrics":
                    volatile.add("content-length")
                self.assertEqual({k: v for k, v in head.headers.items() if k not in volatile},
                                 {k: v for k, v in full.headers.items() if k not in volatile})
                self.assertEqual(connection.read().json(), {"status": "ok"})  # in step

    def test_options_on_every_route_needs_no_key(self):
        server = self.serve("--api-key", "k1")
        for method, path in routes():
            with self.subTest(path):
                reply = self.ask(server, get(path, method="OPTIONS"))
                self.assertEqual((reply.status, reply.body), (204, b""))
                self.assertIn(method, reply.headers["allow"].split(", "))
                self.assertIn("OPTIONS", reply.headers["allow"].split(", "))
                self.assertNotIn("content-length", reply.headers)
        self.assertEqual(self.ask(server, get("/nowhere", method="OPTIONS")).status, 404)
        self.assertEqual(self.ask(server, get("*", method="OPTIONS")).status, 204)

    def test_unknown_routes_and_wrong_methods_come_before_keys(self):
        server = self.serve("--api-key", "k1")
        for path in ("/nowhere", "/v1", "/v1/", "/v1/nothing", "/health/", "/v1/models/", "/HEALTH",
                     "/v1/chat/completions/", "/admin", "/."[:1] + "x"):
            with self.subTest(path):
                reply = self.ask(server, get(path))
                self.assertEqual((reply.status, reply.code()), (404, "unknown_url"))
        for method, path, allow in (("DELETE", "/health", "GET, HEAD, OPTIONS"),
                                    ("GET", CHAT, "POST, OPTIONS"), ("TRACE", "/health", None),
                                    ("PATCH", "/v1/models", None), ("BREW", "/v1/models", None)):
            with self.subTest(path):
                reply = self.ask(server, get(path, method=method))
                self.assertEqual((reply.status, reply.code()), (405, "method_not_allowed"))
                self.assertIn("OPTIONS", reply.headers["allow"])
                if allow:
                    self.assertEqual(reply.headers["allow"], allow)

    def test_paths_are_decoded_once_and_never_climb(self):
        server = self.serve()
        self.assertEqual(self.ask(server, get("/v1/models/tandem%2Dstories?x=1&y")).status, 200)
        for path in ("/%00", "/v1/models/a%00b", "/../etc/passwd", "/v1/../health", "/v1/models/..",
                     "/v1/models/%2e%2e/x", "/v1/models/.%2E", "//health", "/v1//models",
                     "/v1/models/%252e%252e", "/%zz", "/%", "/%4", "/health%2F..%2Fhealth",
                     "/v1/models/..%5c..%5cx", "/./health", "/health/.", "/admin/jobs/%2e%2e/log"):
            with self.subTest(path):
                reply = self.ask(server, get(path, bearer(ADMIN_KEY)))
                self.assertIn(reply.status, (400, 404))


class Leaving(Http):
    """A client that leaves cancels its work, in any phase."""

    LEAVE = {"fin": Raw.close, "reset": Raw.reset,
             "half": lambda raw: raw.socket.shutdown(socket.SHUT_WR)}

    def leave_each_way(self, server, request, ready):
        for how, leave in self.LEAVE.items():
            with self.subTest(how):
                connection = Raw(server)
                connection.send(request)
                ready(connection)
                self.assertFalse(self.is_drained(server))
                leave(connection)
                self.assert_drained_soon(server)
                connection.close()

    def until_running(self, server):
        self.wait_until("running", lambda: self.stats(server)["running"] > 0)

    def test_in_a_stream(self):
        server = self.serve()
        self.leave_each_way(server, post(CHAT, long_story(n=64)),
                            lambda c: self.assertTrue(c.until(b"data: ")))

    def test_without_a_stream(self):
        server = self.serve()
        self.leave_each_way(server, post(CHAT, long_story(False, 64)),
                            lambda c: self.until_running(server))

    def test_during_prefill(self):
        server = self.serve("--prefill-chunk", "64")
        rng = random.Random(1)
        prompts = [[rng.randrange(100, 2000) for _ in range(900)] for _ in range(300)]
        for stream in (False, True):
            body = {"model": "tandem-stories", "prompt": prompts, "max_tokens": 1, "stream": stream}
            self.leave_each_way(server, post("/v1/completions", body),
                                lambda c: self.until_running(server))

    def test_while_queued(self):
        server = self.serve("--max-seqs", "1")
        # Many sequences, one after the other: later requests wait.
        first = Raw(server).send(post(CHAT, long_story(n=64)))
        self.assertTrue(first.until(b"data: "))
        for how, leave in self.LEAVE.items():
            for stream in (False, True):
                with self.subTest(how, stream=stream):
                    name = f"queued-{how}-{stream}"
                    second = Raw(server).send(
                        post(CHAT, story(stream=stream), f"X-Request-Id: {name}"))
                    time.sleep(0.1)
                    self.assertNotIn(name, server.log_path.read_text())
                    leave(second)
                    begin = time.monotonic()
                    gone = re.compile(f"request_id={name} .* status=499 .* completion_tokens=0 ")
                    while not gone.search(server.log_path.read_text()):
                        self.assertLess(time.monotonic() - begin, PROMPT_S)
                        time.sleep(0.005)
                    second.close()
        self.assertGreater(self.stats(server)["running"], 0)  # the neighbour still runs
        first.close()
        self.assert_drained_soon(server)

    def test_over_tls(self):
        cert, key = make_certificate(self.path, "tls")
        server = self.serve("--tls-cert", str(cert), "--tls-key", str(key))
        context = ssl.create_default_context(cafile=str(cert))

        def stats():
            reply = Raw(server, context).send(
                get("/admin/models", bearer(ADMIN_KEY), "Connection: close")).read()
            return reply.json()["data"][0]

        for leave in (lambda raw: raw.socket.unwrap(), Raw.close, Raw.reset):
            connection = Raw(server, context).send(post(CHAT, long_story(n=64)))
            self.assertTrue(connection.until(b"data: "))
            self.assertGreater(stats()["running"], 0)
            with contextlib.suppress(OSError):  # the stream runs until the close is read
                leave(connection)
            begin = time.monotonic()
            while stats()["running"] > 0:
                self.assertLess(time.monotonic() - begin, PROMPT_S)
            connection.close()

    def test_behind_more_requests_than_are_read(self):
        server = self.serve()
        connection = Raw(server).send(post(CHAT, long_story(n=64)))
        self.assertTrue(connection.until(b"data: "))
        connection.send(get("/health") * 1000)
        connection.socket.shutdown(socket.SHUT_WR)
        self.assert_drained_soon(server)

    def test_a_neighbour_notices_nothing(self):
        server = self.serve()
        request = story(stream=True, n=2, max_tokens=200, ignore_eos=True, temperature=0)
        want = self.ask(server, post(CHAT, request)).body
        stays = Raw(server).send(post(CHAT, request))
        goes = [Raw(server).send(post(CHAT, request)) for _ in range(8)]
        self.assertTrue(goes[0].until(b"data: "))
        for connection in goes:
            connection.reset()
        text = [re.findall(rb'"content":"([^"]*)"', body) for body in (stays.read().body, want)]
        self.assertEqual(sorted(text[0]), sorted(text[1]))


class SlowReader(Http):
    def request(self, prompts, tokens):
        return post("/v1/completions", {
            "model": "tandem-stories", "prompt": [f"Story number {i}." for i in range(prompts)],
            "max_tokens": tokens, "ignore_eos": True, "stream": True, "logprobs": 5})

    def test_is_paused_so_that_others_get_its_place_and_resumed(self):
        server = self.serve("--max-seqs", "4")
        slow = Raw(server, receive_buffer=4096).send(self.request(24, 300))
        self.assertTrue(slow.until(b"data: "))

        # First come, first served: without the pause this waits for the whole first request.
        other = self.ask(server, post(CHAT, story(max_tokens=20)))
        self.assertEqual(other.status, 200)
        # A paused request neither runs nor waits for a slot.
        self.wait_until("paused", lambda: (self.stats(server)["running"],
                                           self.stats(server)["waiting"]) == (0, 0))

        body = slow.read().body
        self.assertTrue(body.endswith(b"data: [DONE]\n\n"))
        self.assertEqual(body.count(b'"finish_reason":"length"'), 24)
        # More than the connection and the kernel can buffer: it was paused and not finished.
        self.assertGreater(len(body), 3 << 20)
        self.assert_drained_soon(server)

    def test_without_progress_is_reset_and_cancelled(self):
        server = self.serve("--write-timeout", "0.5")
        slow = Raw(server, receive_buffer=4096).send(self.request(200, 900))
        self.assertTrue(slow.until(b"data: "))

        self.wait_until("cancelled", lambda: self.is_drained(server))

        with self.assertRaises(ConnectionResetError):
            while slow.socket.recv(1 << 16):
                pass

    def test_with_progress_is_not(self):
        server = self.serve("--write-timeout", "1.5")
        slow = Raw(server, receive_buffer=4096).send(self.request(24, 200))
        end = time.monotonic() + 4
        while time.monotonic() < end:
            slow.input += slow.socket.recv(60000)
            time.sleep(0.2)
        self.assertTrue(slow.read().body.endswith(b"data: [DONE]\n\n"))


class Shutdown(Http):
    def test_running_requests_end_and_the_rest_is_told(self):
        for how in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(how):
                server = self.serve("--drain-timeout", "600")
                idle = Raw(server).send(get("/health"))
                idle.read()
                unused = Raw(server)
                running = Raw(server).send(post(CHAT, long_story(n=8)))
                self.assertTrue(running.until(b"data: "))
                plain = Raw(server).send(post(CHAT, story(max_tokens=300, ignore_eos=True)))
                behind = Raw(server).send(post(CHAT, story(stream=True, max_tokens=300, ignore_eos=True)))
                self.assertTrue(behind.until(b"data: "))
                behind.send(get("/v1/models"))
                late, watcher = Raw(server).send("GET /v1/mod"), Raw(server).send("GET /rea")
                self.assert_healthy(server)  # everything above was read

                server.process.send_signal(how)

                self.assertTrue(idle.is_closed())
                self.assertTrue(unused.is_closed())
                reply = Raw(server).send(get("/ready")).read()
                self.assertEqual((reply.status, reply.json()), (503, {"status": "draining"}))
                self.assertEqual(reply.headers["connection"], "close")
                reply = Raw(server).send(get("/v1/models")).read()
                self.assertEqual((reply.status, reply.code()), (503, "shutting_down"))
                reply = late.send("els HTTP/1.1\r\n" + HOST + "\r\n").read()
                self.assertEqual((reply.status, reply.code()), (503, "shutting_down"))
                self.assertGreaterEqual(int(reply.headers["retry-after"]), 1)
                self.assertTrue(late.is_closed())
                reply = watcher.send("dy HTTP/1.1\r\n" + HOST + "\r\n").read()
                self.assertEqual((reply.status, reply.json()), (503, {"status": "draining"}))
                self.assertIn("retry-after", reply.headers)
                self.assertEqual(plain.read().status, 200)
                self.assertTrue(behind.read().body.endswith(b"data: [DONE]\n\n"))
                reply = behind.read()
                self.assertEqual((reply.status, reply.code()), (503, "shutting_down"))
                body = running.read().body
                self.assertNotIn(b'"error"', body)
                self.assertEqual(body.count(b'"finish_reason":"length"'), 8)
                self.assertEqual(server.process.wait(PATIENCE_S), 0)

    def test_what_outlasts_the_drain_is_ended_with_an_error(self):
        server = self.serve("--drain-timeout", "0.3")
        stream = Raw(server).send(post(CHAT, long_story(n=64)))
        self.assertTrue(stream.until(b"data: "))
        plain = Raw(server).send(post(CHAT, long_story(False, 64)))
        self.wait_until("running", lambda: self.stats(server)["running"] > 1)

        server.process.send_signal(signal.SIGTERM)

        events = stream.read().body.decode().strip().split("\n\n")
        self.assertEqual(events[-1], "data: [DONE]")
        self.assertEqual(json.loads(events[-2][6:])["error"]["code"], "shutting_down")
        reply = plain.read()
        self.assertEqual((reply.status, reply.code()), (503, "shutting_down"))
        self.assertIn("retry-after", reply.headers)
        self.assertEqual(server.process.wait(PATIENCE_S), 0)

    def test_a_second_signal_exits_at_once(self):
        server = self.serve("--drain-timeout", "600")
        stream = Raw(server).send(post(CHAT, long_story(n=128)))
        self.assertTrue(stream.until(b"data: "))
        idle = Raw(server)
        server.process.send_signal(signal.SIGTERM)
        self.assertTrue(idle.is_closed())  # the first is noticed
        begin = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        self.assertNotEqual(server.process.wait(PATIENCE_S), 0)
        self.assertLess(time.monotonic() - begin, PROMPT_S)

    def test_a_service_manager_is_told(self):
        for abstract in (False, True):
            with self.subTest(abstract=abstract):
                path = f"@tandem-{os.getpid()}" if abstract else str(self.path / "notify")
                manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                manager.bind(path.replace("@", "\0") if abstract else path)
                manager.settimeout(PATIENCE_S)
                server = self.serve(env={"NOTIFY_SOCKET": path})
                self.assertEqual(manager.recv(1000), b"READY=1")
                server.process.send_signal(signal.SIGHUP)
                reloading, clock = manager.recv(1000).split(b"\n")
                self.assertEqual(reloading, b"RELOADING=1")
                self.assertRegex(clock, rb"MONOTONIC_USEC=\d+")
                self.assertEqual(manager.recv(1000), b"READY=1")
                self.assertEqual(server.stop(), 0)
                self.assertEqual(manager.recv(1000), b"STOPPING=1")
                manager.close()

    def test_a_service_manager_that_is_gone_is_no_obstacle(self):
        server = self.serve(env={"NOTIFY_SOCKET": str(self.path / "nobody")})
        self.assert_healthy(server)
        self.assertEqual(server.stop(), 0)


class HealthPort(Http):
    def serve_with_health_port(self, *arguments):
        """The server, and the health port in the place of a server."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = self.serve("--health-port", str(port), *arguments)
        return server, types.SimpleNamespace(address=(server.address[0], port))

    def test_it_answers_beside_the_main_port_and_closes_last(self):
        server, health = self.serve_with_health_port("--drain-timeout", "600")
        self.assertEqual(server.process.stdout.readline(),
                         "/health, /ready and /metrics also on http://%s:%d\n" % health.address)
        self.assertEqual(self.ask(health, get("/health")).json(), {"status": "ok"})
        self.assertEqual(self.ask(health, get("/ready")).json(), {"status": "ready"})
        self.assertIn(b"tandem:ready 1\n", self.ask(health, get("/metrics")).body)
        self.assertEqual(self.ask(health, get("/health", method="HEAD"), head=True).status, 200)
        reply = self.ask(health, post(CHAT, story()))
        self.assertEqual((reply.status, reply.code()), (404, "unknown_url"))
        self.assertIn(f"port {server.address[1]}", reply.json()["error"]["message"])
        running = Raw(server).send(post(CHAT, long_story(n=8)))
        self.assertTrue(running.until(b"data: "))

        server.process.send_signal(signal.SIGTERM)

        self.wait_until("draining", lambda: self.ask(health, get("/ready")).status == 503)
        for port in (health, server):  # both listen until the stream has ended
            reply = self.ask(port, get("/ready"))
            self.assertEqual((reply.status, reply.json()), (503, {"status": "draining"}))
        self.assertEqual(self.ask(health, get("/health")).status, 200)
        self.assertTrue(running.read().body.endswith(b"data: [DONE]\n\n"))
        self.assertEqual(server.process.wait(PATIENCE_S), 0)

    def test_with_tls_it_has_the_same_certificate(self):
        certificate, key = make_certificate(self.path, "first")
        server, health = self.serve_with_health_port("--tls-cert", str(certificate),
                                                     "--tls-key", str(key))
        context = ssl.create_default_context(cafile=str(certificate))
        for port in (server, health):
            reply = Raw(port, tls=context).send(get("/health")).read()
            self.assertEqual(reply.json(), {"status": "ok"})
        second, second_key = make_certificate(self.path, "second")
        certificate.write_bytes(second.read_bytes())
        key.write_bytes(second_key.read_bytes())
        server.process.send_signal(signal.SIGHUP)
        for port in (server, health):
            self.wait_until("reloaded", lambda: ssl.get_server_certificate(port.address).strip()
                            == second.read_text().strip())


class Tls(Http):
    def setUp(self):
        super().setUp()
        self.cert, self.key = make_certificate(self.path, "first")
        self.context = ssl.create_default_context(cafile=str(self.cert))

    def start(self, *arguments):
        server = self.serve("--tls-cert", str(self.cert), "--tls-key", str(self.key), *arguments)
        return server

    def name(self, server):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = Raw(server, context)
        shown = ssl.DER_cert_to_PEM_cert(connection.socket.getpeercert(True))
        connection.close()
        return shown.strip()

    def test_serves_versions_12_and_13_only(self):
        server = self.start()
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            self.context.minimum_version = self.context.maximum_version = version
            connection = Raw(server, self.context)
            self.assertEqual(connection.socket.version(), version.name.replace("_", "."))
            connection.send(get("/health") + get("/version"))
            self.assertEqual(connection.read().json(), {"status": "ok"})
            self.assertEqual(connection.read().status, 200)
            reply = connection.send(post(CHAT, story(stream=True, max_tokens=30))).read()
            self.assertTrue(reply.body.endswith(b"data: [DONE]\n\n"))
        for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
            old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            old.load_verify_locations(str(self.cert))
            with contextlib.suppress(ValueError, ssl.SSLError):
                old.set_ciphers("ALL:@SECLEVEL=0")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                old.minimum_version = old.maximum_version = version
            with self.assertRaises((ssl.SSLError, ConnectionError)):
                Raw(server, old)
        self.assertEqual(server.stop(), 0)

    def test_protocols_are_negotiated(self):
        server = self.start()
        self.context.set_alpn_protocols(["h2", "http/1.1"])
        self.assertEqual(Raw(server, self.context).socket.selected_alpn_protocol(), "http/1.1")
        self.context.set_alpn_protocols(["h2"])
        with self.assertRaises((ssl.SSLError, ConnectionError)):
            Raw(server, self.context)

    def test_large_bodies_both_ways_and_the_same_rules(self):
        server = self.start("--max-body", "1M")
        text = "word " * 20000
        connection = Raw(server, self.context).send(post("/tokenize", {"prompt": text}))
        self.assertGreater(connection.read().json()["count"], 10000)
        connection.send("POST /tokenize HTTP/1.1\r\n" + HOST + "Content-Length: 9999999\r\n\r\n")
        self.assertEqual(connection.read().status, 413)
        self.assertTrue(connection.is_closed())
        connection = Raw(server, self.context).send(get("/health", "Connection: close"))
        connection.read()
        # The reply ends with close_notify, not only with the end of TCP.
        self.assertEqual(connection.socket.recv(10), b"")
        connection = Raw(server, self.context).send(
            post(CHAT, story(stream=True, max_tokens=20), version="1.0"))
        self.assertTrue(connection.read().body.endswith(b"data: [DONE]\n\n"))
        connection.socket.unwrap()

    def test_a_new_certificate_is_shown_after_sighup_and_a_broken_one_is_not(self):
        server = self.start()
        lasting = Raw(server, self.context)
        first = self.cert.read_text().strip()
        self.assertEqual(self.name(server), first)

        second_cert, second_key = make_certificate(self.path, "second")
        self.cert.write_bytes(second_cert.read_bytes())
        self.key.write_bytes(second_key.read_bytes())
        server.process.send_signal(signal.SIGHUP)
        second = second_cert.read_text().strip()
        self.wait_until("reloaded", lambda: self.name(server) == second)
        self.assertEqual(lasting.send(get("/health")).read().status, 200)

        third_cert, _ = make_certificate(self.path, "third")
        for broken in (third_cert.read_bytes(), b"", b"not PEM", None):
            if broken is None:
                self.cert.unlink()
            else:
                self.cert.write_bytes(broken)
            errors = server.log_path.read_text().count("tls_certificate_kept")
            server.process.send_signal(signal.SIGHUP)
            self.wait_until("logged", lambda: server.log_path.read_text().count(
                "tls_certificate_kept") > errors)
            self.assertEqual(self.name(server), second)
        self.assertNotIn("PRIVATE KEY", server.log_path.read_text())
        self.assertEqual(server.stop(), 0)

    def test_a_handshake_has_its_time(self):
        server = self.start("--header-timeout", "0.3")
        begin = time.monotonic()
        silent, dribble = Raw(server), Raw(server)
        for byte in b"\x16\x03\x01\x02\x00" + bytes(40):
            dribble.try_send(bytes([byte]))
            time.sleep(0.02)
        self.assertTrue(silent.is_closed())
        while dribble.fill():
            pass
        self.assertLess(time.monotonic() - begin, 10)
        self.assertEqual(Raw(server, self.context).send(get("/health")).read().status, 200)

    def test_a_slow_reader_is_paused_here_too(self):
        server = self.start("--write-timeout", "0.5")
        slow = Raw(server, self.context, receive_buffer=4096)
        slow.send(post("/v1/completions", {
            "model": "tandem-stories", "prompt": [f"{i}" for i in range(200)], "max_tokens": 900,
            "ignore_eos": True, "stream": True, "logprobs": 5}))

        def running():
            reply = Raw(server, self.context).send(
                get("/admin/models", bearer(ADMIN_KEY), "Connection: close")).read()
            return reply.json()["data"][0]["running"]

        self.wait_until("running", lambda: running() > 0)
        self.wait_until("cancelled", lambda: running() == 0)

    def test_pairs_that_cannot_serve_refuse_to_start(self):
        other_cert, _ = make_certificate(self.path, "other")
        for arguments, needle in (
                (["--tls-cert", str(self.cert)], "--tls-key"),
                (["--tls-key", str(self.key)], "--tls-cert"),
                (["--tls-cert", str(other_cert), "--tls-key", str(self.key)], "--tls-key"),
                (["--tls-cert", str(self.key), "--tls-key", str(self.key)], "--tls-cert"),
                (["--tls-cert", str(self.path / "no"), "--tls-key", str(self.key)], "no")):
            done = refused_start(*arguments)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(needle, done.stderr)


def refused_start(*arguments):
    return subprocess.run([harness.BINARY, "serve", "--port", "0", *arguments],
                          capture_output=True, text=True, timeout=PATIENCE_S)


class Keys(Http):
    def test_who_may_do_what(self):
        server = self.serve("--api-key", "one", "--api-key", "two")
        open_routes = ("/", "/health", "/ready", "/version")
        api_routes = ("/v1/models", "/v1/models/none")
        admin_routes = ("/admin/models", "/admin/jobs")
        for path in open_routes:
            for header in ("X: y", bearer("one"), bearer("wrong")):
                self.assertEqual(self.ask(server, get(path, header)).status, 200, path)
        for path in api_routes:
            found = 404 if path.endswith("none") else 200
            for header, want in (("X: y", 401), (bearer("wrong"), 401), (bearer("one"), found),
                                 (bearer("two"), found), (bearer(ADMIN_KEY), found)):
                self.assertEqual(self.ask(server, get(path, header)).status, want, (path, header))
        for path in admin_routes:
            for header, want in (("X: y", 401), (bearer("wrong"), 401), (bearer("one"), 403),
                                 (bearer(ADMIN_KEY), 200)):
                self.assertEqual(self.ask(server, get(path, header)).status, want, (path, header))
        reply = self.ask(server, get("/admin/models", bearer("one")))
        self.assertEqual(reply.code(), "insufficient_permissions")
        self.assertEqual(reply.json()["error"]["type"], "permission_error")
        for path in ("/tokenize", "/detokenize", CHAT, "/v1/completions"):
            self.assertEqual(self.ask(server, post(path, {})).status, 401)
            self.assertEqual(self.ask(server, post(path, {}, bearer("one"))).status, 400)

    def test_every_route_but_the_public_ones_refuses_without_a_key(self):
        server = self.serve("--api-key", "one", "--metrics-key", "two")
        document = self.ask(server, get("/openapi.json")).json()
        public = {"/", "/health", "/ready", "/version", "/openapi.json", "/docs", "/console/{file}",
                  "/api/version"}
        asked = set()
        for path, item in document["paths"].items():
            for method in {"get", "put", "post", "delete"} & set(item):
                target = re.sub(r"\{\w+\}", "x", path.replace("{file}", "app.js"))
                reply = self.ask(server, get(target, method=method.upper()))
                if path in public:
                    self.assertEqual(reply.status, 200, (method, path))
                    continue
                self.assertEqual(reply.status, 401, (method, path))
                asked.add((method, path))
                error = reply.json()["error"]
                # Ollama's errors are a text; Anthropic's have a type in place of a code.
                if path.startswith("/api/"):
                    self.assertIn("key", error, (method, path))
                elif path.startswith("/v1/messages"):
                    self.assertEqual(error["type"], "authentication_error", (method, path))
                else:
                    self.assertEqual(error["code"], "invalid_api_key", (method, path))
        self.assertGreater(len(asked), 40)

    def test_without_keys(self):
        server = self.serve(env={"TANDEM_ADMIN_KEY": ""})
        self.assertEqual(self.ask(server, get("/v1/models")).status, 200)
        self.assertEqual(self.ask(server, get("/v1/models", bearer("any"))).status, 200)
        for header in ("X: y", bearer("any")):
            reply = self.ask(server, get("/admin/models", header))
            self.assertEqual((reply.status, reply.code()), (403, "admin_disabled"))

    def test_a_bearer_token_or_x_api_key_counts_and_wrong_keys_are_all_alike(self):
        server = self.serve("--api-key", "secret-key")
        for good in ("Authorization: Bearer secret-key", "Authorization: bearer secret-key",
                     "Authorization: BEARER secret-key", "X-Api-Key: secret-key"):
            self.assertEqual(self.ask(server, get("/v1/models", good)).status, 200)
        missing, incorrect = set(), set()
        for header in ("X: y", "Authorization: secret-key", "Authorization: Basic secret-key",
                       "Authorization: Bearer secret-key x", "Authorization: Bearer  secret-key",
                       "Authorization: Bearer", "Authorization:", "Api-Key: secret-key",
                       bearer("secret-key") + "\r\n" + bearer("secret-key")):
            reply = self.ask(server, get("/v1/models?api_key=secret-key&key=secret-key", header))
            self.assertEqual((reply.status, reply.headers["www-authenticate"]), (401, "Bearer"), header)
            self.assertEqual(reply.code(), "invalid_api_key")
            missing.add(reply.body)
        for key in ("secret-kez", "s", "secret-key2", "SECRET-KEY", "a" * 4000, "\xff"):
            reply = self.ask(server, get("/v1/models", bearer(key)))
            self.assertEqual((reply.status, reply.headers["www-authenticate"]), (401, "Bearer"))
            self.assertEqual(reply.code(), "invalid_api_key")
            incorrect.add(reply.body)
        self.assertEqual((len(missing), len(incorrect)), (1, 1))
        self.assertNotEqual(missing, incorrect)

    def test_keys_come_before_the_body_and_the_resource(self):
        server = self.serve("--api-key", "k1")
        self.assertEqual(self.ask(server, post(CHAT, b"{not json")).status, 401)
        self.assertEqual(self.ask(server, get("/v1/models/none")).status, 401)
        # A large body is skipped, and the connection continues.
        connection = Raw(server)
        head = get("/tokenize", "Content-Length: 20000000", method="POST")
        connection.send(head).send(b"x" * 20000000)
        connection.send(get("/health"))
        self.assertEqual(connection.read().status, 401)
        self.assertEqual(connection.read().status, 200)

    def test_keys_are_never_logged(self):
        file = self.path / "keys"
        file.write_text("file-secret-1\n")
        server = self.serve("--api-key", "flag-secret-2", "--api-key-file", str(file),
                            "--log-level", "trace", env={"TANDEM_API_KEY": "env-secret-3"})
        for key in ("file-secret-1", "flag-secret-2", "env-secret-3", "wrong-secret-4"):
            self.ask(server, get(f"/v1/models?key={key}", bearer(key)))
            self.ask(server, post(CHAT, b"{", bearer(key)))
        server.process.send_signal(signal.SIGHUP)
        self.wait_until("reloaded", lambda: "api_keys_reloaded" in server.log_path.read_text())
        self.assertEqual(server.stop(), 0)
        log = server.log_path.read_text()
        self.assertGreater(len(log), 100)
        self.assertNotIn("-secret-", log)

    def test_a_key_file_is_read_again(self):
        file = self.path / "keys"
        file.write_text("# comment\r\nold-key \r\n\r\n")
        server = self.serve("--api-key-file", str(file))

        def status(key):
            return self.ask(server, get("/v1/models", bearer(key))).status

        self.assertEqual((status("old-key"), status("new-key"), status("# comment")), (200, 401, 401))
        running = Raw(server).send(post(CHAT, long_story(n=8), bearer("old-key")))
        self.assertTrue(running.until(b"data: "))
        file.write_text("new-key\n")
        server.process.send_signal(signal.SIGHUP)
        self.wait_until("new key", lambda: status("new-key") == 200)
        self.assertEqual(status("old-key"), 401)
        self.assertTrue(running.read().body.endswith(b"data: [DONE]\n\n"))
        # A broken file changes nothing.
        for broken in ("", "# nothing\n", None):
            file.unlink() if broken is None else file.write_text(broken)
            kept = server.log_path.read_text().count("api_keys_kept")
            server.process.send_signal(signal.SIGHUP)
            self.wait_until("kept", lambda: server.log_path.read_text().count("api_keys_kept") > kept)
            self.assertEqual((status("new-key"), status("old-key")), (200, 401))

    def test_thousands_of_keys_and_thousands_of_wrong_ones(self):
        keys = [f"key-{i:06}-{i * 7919 % 99991}" for i in range(5000)]
        file = self.path / "keys"
        file.write_text("\n".join(keys))
        server = self.serve("--api-key-file", str(file))
        connection = Raw(server)
        begin = time.monotonic()
        bodies = set()
        for i in range(3000):
            reply = connection.send(get("/v1/models", bearer(f"wrong-{i}"))).read()
            self.assertEqual(reply.status, 401)
            bodies.add(reply.body)
        self.assertEqual(len(bodies), 1)
        self.assertLess(time.monotonic() - begin, 60)
        for key in (keys[0], keys[2500], keys[-1]):
            self.assertEqual(connection.send(get("/v1/models", bearer(key))).read().status, 200)

    def test_an_address_that_others_reach_needs_a_key(self):
        for host in ("0.0.0.0", "::"):
            done = refused_start("--host", host)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("--api-key", done.stderr)
        for more in (["--api-key", "k1"], ["--insecure"]):
            server = self.serve("--host", "0.0.0.0", *more)
            server.address = ("127.0.0.1", server.address[1])
            self.assert_healthy(server)
            self.assertEqual(server.stop(), 0)
        default = self.serve()
        self.assertEqual(default.address[0], "127.0.0.1")


class HeadersOfAnswers(Http):
    def test_every_answer_has_its_id_and_server(self):
        server = self.serve()
        seen = set()
        for data in (get("/health"), get("/nowhere"), get("/health", method="DELETE"), "x\r\n",
                     post(CHAT, {}), post(CHAT, story(max_tokens=3)),
                     post(CHAT, story(stream=True, max_tokens=3)), get("/health", method="OPTIONS"),
                     get("/x" * 5000), get("/health", "Content-Length: 1", "Transfer-Encoding: chunked")):
            reply = self.ask(server, data)
            self.assertRegex(reply.headers["x-request-id"], r"^req_\w{16,}$")
            self.assertEqual(reply.headers["server"], "tandem")
            self.assertRegex(reply.headers["date"], r"^\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT$")
            seen.add(reply.headers["x-request-id"])
        self.assertEqual(len(seen), 10)

    def test_a_harmless_id_of_the_client_is_kept(self):
        server = self.serve()
        for good in ("a", "A-b_c.9", "x" * 128):
            for path in ("/health", "/nowhere", CHAT):
                reply = self.ask(server, get(path, f"X-Request-Id: {good}"))
                self.assertEqual(reply.headers["x-request-id"], good)
        reply = self.ask(server, get(CHAT, "X-Request-Id: mine", "Content-Length: 99999999999", method="POST"))
        self.assertEqual((reply.status, reply.headers["x-request-id"]), (413, "mine"))
        for bad in ("", "x" * 129, "a b", "a/b", "a\xe9", "a,b", "<x>"):
            reply = self.ask(server, get("/health", f"X-Request-Id: {bad}"))
            self.assertRegex(reply.headers["x-request-id"], r"^req_\w+$")

    def test_processing_time_on_the_api_only(self):
        server = self.serve()
        for data in (get("/v1/models"), get("/v1/nothing"), post(CHAT, {}), post(CHAT, story(max_tokens=3)),
                     post(CHAT, story(stream=True, max_tokens=3))):
            self.assertRegex(self.ask(server, data).headers["openai-processing-ms"], r"^\d+$")
        self.assertNotIn("openai-processing-ms", self.ask(server, get("/health")).headers)

    def test_busy_answers_say_when_to_come_back(self):
        server = self.serve("--max-seqs", "1", "--max-queue", "1")
        first = Raw(server).send(post(CHAT, long_story(n=64)))
        self.assertTrue(first.until(b"data: "))
        others = [Raw(server).send(post(CHAT, story(stream=False))) for _ in range(3)]
        sockets = [other.socket for other in others]
        self.wait_until("one waits, two are refused",
                        lambda: len(select.select(sockets, [], [], 0)[0]) == 2)
        reply = self.ask(server, post(CHAT, story()))
        self.assertEqual((reply.status, reply.code()), (503, "server_overloaded"))
        self.assertGreaterEqual(int(reply.headers["retry-after"]), 1)
        self.assertEqual(int(reply.headers["retry-after-ms"]), 1000 * int(reply.headers["retry-after"]))
        self.assertNotIn("x-should-retry", reply.headers)
        for connection in (first, *others):
            connection.close()

    PREFLIGHT = ("Origin: http://localhost:3000", "Access-Control-Request-Method: POST",
                 "Access-Control-Request-Headers: authorization, content-type, x-stainless-lang")

    def test_pages_of_this_machine_may_use_an_open_server(self):
        server = self.serve()
        for origin, allowed in (("http://localhost", True), ("http://localhost:3000", True),
                                ("https://127.0.0.1:5173", True), ("http://[::1]:80", True),
                                ("app://obsidian.md", True), ("vscode-webview://0a1b", True),
                                ("app.evil.example://x", False), ("https://app", False),
                                ("chrome-extension://abc", False), ("file://", False),
                                ("https://evil.example", False), ("http://localhost.evil.example", False),
                                ("http://127.0.0.1.evil.example", False), ("null", False),
                                ("http://evil.example/localhost", False), ("localhost", False),
                                ("http://localhost@evil.example", False)):
            for data in (get("/v1/models", f"Origin: {origin}"), get("/nowhere", f"Origin: {origin}"),
                         get("/v1/models", f"Origin: {origin}", method="OPTIONS")):
                headers = self.ask(server, data).headers
                self.assertEqual(headers.get("access-control-allow-origin"), origin if allowed else None)
                self.assertEqual(headers["vary"], "Origin")
        self.assertNotIn("access-control-allow-origin", self.ask(server, get("/health")).headers)

    def test_any_page_may_use_a_server_with_keys(self):
        server = self.serve("--api-key", "k1")
        for data in (get("/v1/models", "Origin: https://x.example"), get("/v1/models", bearer("k1")),
                     get("/nowhere"), get("/health"), "bad\r\n", get("/x" * 9000)):
            headers = self.ask(server, data).headers
            self.assertEqual(headers["access-control-allow-origin"], "*")
            self.assertEqual(
                set(headers["access-control-expose-headers"].split(", ")),
                {"x-request-id", "openai-processing-ms", "retry-after", "x-ignored-params",
                 "x-prefix-key"})
        reply = self.ask(server, get(CHAT, *self.PREFLIGHT, method="OPTIONS"))
        self.assertEqual(reply.status, 204)
        self.assertEqual(reply.headers["access-control-allow-methods"], "GET, POST, PUT, DELETE, OPTIONS")
        allowed = reply.headers["access-control-allow-headers"].split(", ")
        for name in ("authorization", "content-type", "user-agent", "x-request-id", "openai-organization",
                     "openai-project", "x-stainless-lang", "x-stainless-retry-count",
                     "x-stainless-timeout", "x-stainless-package-version"):
            self.assertIn(name, allowed)
        self.assertEqual(reply.headers["access-control-max-age"], "600")

    def test_a_configured_origin_replaces_both(self):
        server = self.serve("--cors-origin", "https://app.example")
        for origin, status in (("https://app.example", 200), ("http://localhost:3000", 403),
                               ("https://evil.example", 403)):
            reply = self.ask(server, get("/v1/models", f"Origin: {origin}"))
            self.assertEqual(reply.status, status)
            self.assertEqual(reply.headers["access-control-allow-origin"], "https://app.example")


class Limits(Http):
    def memory(self, server, field):
        """Bytes of the server's process: VmRSS now, VmHWM at most."""
        with open(f"/proc/{server.process.pid}/status", encoding="ascii") as file:
            return int(re.search(field + r":\s+(\d+) kB", file.read())[1]) << 10

    def test_unfinished_bodies_share_one_budget_and_their_memory_returns(self):
        server = self.serve("--body-memory", "64M")
        before = self.memory(server, "VmRSS")
        head = "POST /tokenize HTTP/1.1\r\n" + HOST + f"Content-Length: {31 << 20}\r\n\r\n"
        connections = [Raw(server).send(head) for _ in range(12)]
        for _ in range(30):
            for connection in connections:
                connection.send(b" " * (1 << 20))
        self.assert_healthy(server)
        # Without the budget they take 360 MiB; a growing body exists twice for a moment.
        self.assertLess(self.memory(server, "VmHWM") - before, 160 << 20)
        for connection in connections:
            connection.close()
        self.wait_until("memory returned",
                        lambda: self.memory(server, "VmRSS") - before < 24 << 20)

    def test_announced_bodies_are_refused_unread(self):
        server = self.serve("--max-body", "1M")
        head = "POST /tokenize HTTP/1.1\r\n" + HOST + "Content-Type: application/json\r\n"
        for announced in (f"Content-Length: {(1 << 20) + 1}\r\n\r\n",
                          "Transfer-Encoding: chunked\r\n\r\n100001\r\n"):
            connection = Raw(server).send(head + announced)  # no byte more
            reply = connection.read()
            self.assertEqual((reply.status, reply.code()), (413, "request_too_large"))
            self.assertEqual(reply.headers["connection"], "close")
            self.assertTrue(connection.is_closed())
        chunks = (head + "Transfer-Encoding: chunked\r\n\r\n").encode() + b"10000\r\n" + b" " * 65536 + b"\r\n"
        connection = Raw(server).send(chunks)
        for _ in range(16):
            connection.try_send(b"10000\r\n" + b" " * 65536 + b"\r\n")
        self.assertEqual(connection.read().status, 413)
        fits = json.dumps({"prompt": "a"}).encode().ljust(1 << 20)
        self.assertEqual(self.ask(server, post("/tokenize", fits)).status, 200)

    def test_the_default_body_limit_is_32_mib(self):
        server = self.serve()
        for length, want in (((32 << 20) + 1, 413), (32 << 20, 100)):
            reply = self.ask(server, get("/tokenize", f"Content-Length: {length}",
                                         "Expect: 100-continue", method="POST"))
            self.assertEqual(reply.status, want)

    def test_request_lines_and_headers(self):
        server = self.serve()
        line = len("GET / HTTP/1.1")
        for path_bytes, want in ((8000, 404), (8192 - line - 20, 404), (8300, 414), (100000, 414)):
            reply = self.ask(server, get("/" + "a" * path_bytes))
            self.assertEqual(reply.status, want, path_bytes)
            if want == 414:
                self.assertEqual((reply.code(), reply.headers["connection"]), ("uri_too_long", "close"))
        for headers, want in ((["X: " + "a" * 32000], 200), (["X: " + "a" * 33000], 431),
                              (["X: " + "a" * 300] * 99, 200), (["X: y"] * 99, 200),
                              (["X: y"] * 100, 431), (["X: " + "a" * 400] * 90, 431)):
            connection = Raw(server).try_send(get("/health", *headers))
            reply = connection.read()
            self.assertEqual(reply.status, want, len(headers))
            if want == 431:
                self.assertEqual((reply.code(), reply.headers["connection"]), ("headers_too_large", "close"))
                self.assertTrue(connection.is_closed())
        # Refused before all of it has arrived.
        self.assertEqual(self.ask(server, "GET /" + "a" * 9000).status, 414)
        self.assertEqual(self.ask(server, "GET / HTTP/1.1\r\nX: " + "a" * 40000).status, 431)

    def test_a_dribbled_head_gets_no_more_time(self):
        server = self.serve("--header-timeout", "0.5")
        connection = Raw(server)
        begin = time.monotonic()
        for byte in get("/health", "X: " + "a" * 1000):
            connection.try_send(byte)
            if time.monotonic() - begin > 1.5:
                break
            time.sleep(0.02)
        reply = connection.read()
        self.assertEqual((reply.status, reply.code()), (408, "request_timeout"))
        self.assertTrue(connection.is_closed())

    def test_a_body_may_be_slow_but_not_stand_still(self):
        server = self.serve("--body-timeout", "0.6")
        body = json.dumps({"prompt": "hello"}).encode()
        request = post("/tokenize", body)
        connection = Raw(server).send(request[:-len(body)])
        for byte in body:  # in total longer than the timeout
            connection.send(bytes([byte]))
            time.sleep(0.08)
        self.assertEqual(connection.read().status, 200)
        for framing in (request[:-3], get("/tokenize", "Transfer-Encoding: chunked", method="POST").encode() + b"5\r\nab"):
            connection = Raw(server).send(framing)
            reply = connection.read()
            self.assertEqual((reply.status, reply.code()), (408, "request_timeout"))
            self.assertTrue(connection.is_closed())

    def test_idle_connections_are_closed_and_busy_ones_are_not(self):
        server = self.serve("--keep-alive-timeout", "0.3")
        used = Raw(server).send(get("/health"))
        used.read()
        self.assertTrue(used.is_closed())
        self.assertTrue(Raw(server).is_closed())
        busy = Raw(server).send(post(CHAT, long_story(n=16)))
        self.assertTrue(busy.read().body.endswith(b"data: [DONE]\n\n"))

    def test_connections_beyond_the_limit_are_told(self):
        server = self.serve("--max-connections", "5")
        held = [Raw(server).send(get("/health")) for _ in range(5)]
        for connection in held:
            self.assertEqual(connection.read().status, 200)
        extra = Raw(server)
        reply = extra.read()
        self.assertEqual((reply.status, reply.code()), (503, "server_overloaded"))
        self.assertIn("retry-after", reply.headers)
        self.assertTrue(extra.is_closed())
        extra.close()
        held.pop().close()

        def is_let_in():
            connection = Raw(server).try_send(get("/health"))
            status = connection.read().status
            connection.close()
            return status == 200

        self.wait_until("room", is_let_in)


class Load(Http):
    """Clients cannot affect other clients' connections or leave anything behind."""

    def setUp(self):
        super().setUp()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))

    def descriptors(self, server):
        return len(os.listdir(f"/proc/{server.process.pid}/fd"))

    def test_health_answers_at_once_whatever_else_goes_on(self):
        server = self.serve()
        at_rest = self.descriptors(server)
        idle = [Raw(server).send(get("/health")) for _ in range(1000 if FULL else 200)]
        for connection in idle:
            connection.read()
        work = [Raw(server).send(post(CHAT, dict(long_story(False, 32), max_tokens=200, logprobs=True,
                                                 top_logprobs=20))) for _ in range(2)]
        request = post(CHAT, story(stream=True, max_tokens=2))
        n_drops = 10000 if FULL else 1000

        def drop():
            rng = random.Random(5)
            for i in range(n_drops):
                connection = Raw(server)
                connection.try_send(request[:rng.randrange(len(request) + 1)])
                connection.reset() if i % 2 else connection.close()

        times = []
        probe = Raw(server)
        # A separate process: threads of this one would wait for each other.
        dropping = multiprocessing.get_context("fork").Process(target=drop)
        dropping.start()
        while dropping.is_alive():
            begin = time.monotonic()
            self.assertEqual(probe.send(get("/health")).read().status, 200)
            times.append(time.monotonic() - begin)
            time.sleep(0.002)
        self.assertEqual(dropping.exitcode, 0)
        times.sort()
        print(f"\n/health: {len(times)} answers, median {statistics.median(times) * 1e3:.2f} ms, "
              f"p99 {times[len(times) * 99 // 100] * 1e3:.2f} ms, longest {times[-1] * 1e3:.1f} ms")
        # The target is 5 ms; this test itself keeps the machine busy.
        self.assertLess(statistics.median(times), 0.05)
        self.assertLess(times[-1], 2)

        for connection in work:
            self.assertEqual(connection.read().status, 200)
        for connection in idle + work + [probe]:
            connection.close()
        self.wait_until("descriptors returned", lambda: self.descriptors(server) <= at_rest)
        self.wait_until("work gone", lambda: self.is_drained(server))
        self.assertEqual(server.stop(), 0)

    def test_random_bytes_harm_nobody(self):
        server = self.serve("--api-key", "k1")
        at_rest = self.descriptors(server)
        good = post(CHAT, story(max_tokens=1), bearer("k1"))
        rng = random.Random(11)
        for i in range(3000 if FULL else 400):
            data = bytearray(good * 2)
            for _ in range(rng.randrange(1, 6)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            connection = Raw(server).try_send(bytes(data))
            connection.socket.shutdown(socket.SHUT_WR)
            while connection.fill():
                pass
            self.assertRegex(connection.input[:9], rb"^(HTTP/1\.1 |$)")
            connection.close()
        self.wait_until("descriptors returned", lambda: self.descriptors(server) <= at_rest)
        self.assert_healthy(server)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    harness.main()
