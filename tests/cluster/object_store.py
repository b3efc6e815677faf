"""An S3 server in memory: objects, ranges, lists and multipart uploads, and outages on demand.

It checks no signatures: tests/objects does.
"""

import hashlib
import http.server
import socketserver
import threading
import urllib.parse
from xml.sax.saxutils import escape


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        pass  # some tests kill clients


class ObjectStore:
    KEYS = {"AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": "a-key-of-the-test",
            "AWS_REGION": "eu-central-1"}

    def __init__(self):
        self.lock = threading.Lock()
        self.objects = {}   # key -> bytes
        self.uploads = {}   # id -> [key, {number: bytes}]
        self.status = None  # of every answer, in an outage
        self.log = []       # (method, key)
        store = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self):
                store.handle(self)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_one

            def log_message(self, *arguments):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def environment(self):
        return {**self.KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server.server_port}"}

    def keys(self, prefix=""):
        with self.lock:
            return sorted(key for key in self.objects if key.startswith(prefix))

    def handle(self, request):
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        path, _, query = request.path.partition("?")
        key = urllib.parse.unquote(path).partition("/")[2].partition("/")[2]
        query = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        with self.lock:
            self.log.append((request.command, key))
            status, fields, answer = (self.status, {}, b"") if self.status else \
                self.answer(request, key, query, body)
        request.send_response(status)
        for name, value in fields.items():
            request.send_header(name, value)
        if "Content-Length" not in fields:
            request.send_header("Content-Length", str(len(answer)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(answer)

    def answer(self, request, key, query, body):
        upload = query.get("uploadId")
        if not key:
            return 200, {}, self.listing(query)
        if request.command == "PUT":
            if upload:
                self.uploads[upload][1][int(query["partNumber"])] = body
            else:
                self.objects[key] = body
            return 200, {"ETag": self.etag(body)}, b""
        if request.command == "POST" and not upload:
            name = f"upload-{len(self.log)}"
            self.uploads[name] = [key, {}]
            return 200, {}, (f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId>"
                             "</InitiateMultipartUploadResult>").encode()
        if request.command == "POST":
            parts = self.uploads.pop(upload)[1]
            self.objects[key] = b"".join(parts[number] for number in sorted(parts))
            return 200, {}, b"<CompleteMultipartUploadResult/>"
        if request.command == "DELETE":
            (self.uploads if upload else self.objects).pop(upload or key, None)
            return 204, {}, b""
        return self.content(request, key)

    def content(self, request, key):
        if key not in self.objects:
            return 404, {}, b""
        whole = self.objects[key]
        fields = {"ETag": self.etag(whole)}
        wanted = request.headers.get("Range")
        if wanted is None:
            return 200, {**fields, "Content-Length": str(len(whole))}, whole
        first, last = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
        fields["Content-Range"] = f"bytes {first}-{last}/{len(whole)}"
        return 206, fields, whole[first:last + 1]

    def listing(self, query):
        prefix = query.get("prefix", "")
        if "uploads" in query:
            entries = "".join(f"<Upload><Key>{escape(key)}</Key><UploadId>{name}</UploadId></Upload>"
                              for name, (key, _) in self.uploads.items() if key.startswith(prefix))
            return f"<ListMultipartUploadsResult>{entries}</ListMultipartUploadsResult>".encode()
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(whole)}</Size>"
            f"<ETag>{escape(self.etag(whole))}</ETag></Contents>"
            for key, whole in sorted(self.objects.items()) if key.startswith(prefix))
        return (f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}"
                "</ListBucketResult>").encode()

    @staticmethod
    def etag(content):
        return '"' + hashlib.md5(content).hexdigest() + '"'
