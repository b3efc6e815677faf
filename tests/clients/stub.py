"""A proxy in front of the program that refuses a request as often as its client asks.

`x-stub-fail: STATUS*TIMES` with `x-stub-id: ID` makes the first TIMES requests of that ID fail with
STATUS, in the program's error format. It forwards later ones. `x-stub-retry-after: SECONDS` and
`x-stub-should-retry: VALUE` add the headers of that name. `GET /stub/ID` returns the arrival times,
in seconds, of that ID's requests.
"""

import http.client
import http.server
import json
import sys
import threading
import time

TYPES = {409: "conflict_error", 429: "rate_limit_error"}
CODES = {409: "already_exists", 429: "rate_limit_exceeded", 503: "server_overloaded"}


def start(upstream):
    """Serves until this process ends; returns the address."""
    arrivals = {}
    lock = threading.Lock()  # guards arrivals

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def send_body(self, status, content_type, body, headers=()):
            self.send_response(status)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(body)))
            for name, value in headers:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def refuse(self, status):
            headers = [("x-request-id", "req_stub")]
            if delay := self.headers.get("x-stub-retry-after"):
                headers += [("retry-after", delay), ("retry-after-ms", str(int(delay) * 1000))]
            if should := self.headers.get("x-stub-should-retry"):
                headers.append(("x-should-retry", should))
            error = {"message": "refused by the stub", "type": TYPES.get(status, "server_error"),
                     "param": None, "code": CODES[status]}
            self.send_body(status, "application/json", json.dumps({"error": error}).encode(),
                           headers)

        def pass_on(self, body):
            connection = http.client.HTTPConnection(*upstream, timeout=60)
            headers = {name: value for name, value in self.headers.items()
                       if not name.lower().startswith("x-stub") and name.lower() != "connection"}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
            self.send_body(answer.status, answer.headers["content-type"], text,
                           [("x-request-id", answer.headers["x-request-id"])])
            connection.close()

        def serve(self):
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if self.path.startswith("/stub/"):
                with lock:
                    seen = arrivals.get(self.path.removeprefix("/stub/"), [])
                    text = json.dumps(seen).encode()
                return self.send_body(200, "application/json", text)
            with lock:
                mine = arrivals.setdefault(self.headers["x-stub-id"], [])
                mine.append(time.monotonic())
                count = len(mine)
            status, _, times = self.headers.get("x-stub-fail", "0*0").partition("*")
            if count <= int(times):
                return self.refuse(int(status))
            return self.pass_on(body)

        do_GET = do_POST = serve

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request, client_address):
            # Clients may drop connections at any time; that is not an error.
            if not isinstance(sys.exc_info()[1], ConnectionError):
                super().handle_error(request, client_address)

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address
