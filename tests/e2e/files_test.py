#!/usr/bin/env python3
"""Uploaded files, in valid and invalid forms.

`files_test.py BINARY [unittest arguments]`.
"""

import http.client
import json
import os
import pathlib
import resource
import socket
import threading
import time

import harness
from harness import ADMIN_KEY, PATIENCE_S, Case

BOUNDARY = "x-b0undary"
TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def part(disposition, content, more=""):
    if isinstance(content, str):
        content = content.encode()
    if isinstance(disposition, str):
        disposition = disposition.encode()
    return (f"--{BOUNDARY}\r\nContent-Disposition: form-data; ".encode() + disposition +
            f"\r\n{more}\r\n".encode() + content + b"\r\n")


def field(name, value):
    return part(f'name="{name}"', value)


def file_part(content, filename="chats.jsonl", name="file"):
    return part(f'name="{name}"; filename="{filename}"', content,
                "Content-Type: application/octet-stream\r\n")


END = f"--{BOUNDARY}--\r\n".encode()
PURPOSE = field("purpose", "fine-tune")


class FilesCase(Case):
    def ask(self, server, method, path, body=None, headers=None):
        """(status, headers, bytes)"""
        connection = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def send(self, server, *parts, content_type=TYPE, headers=None):
        status, answer_headers, body = self.ask(
            server, "POST", "/v1/files", b"".join(parts),
            dict(headers or {}, **({"Content-Type": content_type} if content_type else {})))
        return status, answer_headers, json.loads(body)

    def upload(self, server, content, *more, filename="chats.jsonl"):
        status, _, answer = self.send(server, PURPOSE, *more, file_part(content, filename), END)
        self.assertEqual(status, 200, answer)
        return answer

    def refused(self, server, parts, param, code="invalid_value", status=400, **more):
        got, _, answer = self.send(server, *parts, **more)
        self.assertEqual(got, status, answer)
        self.assertEqual((answer["error"]["param"], answer["error"]["code"]), (param, code), answer)

    def listed(self, server, query=""):
        status, _, body = self.ask(server, "GET", "/v1/files" + query)
        self.assertEqual(status, 200, body)
        return json.loads(body)

    def on_disk(self):
        return sorted(entry.name for entry in (self.path / "data" / "files").iterdir())

    def wait_for(self, truth):
        deadline = time.monotonic() + PATIENCE_S
        while not truth():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)


class Uploads(FilesCase):
    def test_a_file_comes_back_as_it_was_also_after_a_restart(self):
        server = self.serve()
        content = bytes(range(256)) * 300 + f"\r\n--{BOUNDARY}x\r\n--{BOUNDARY[:-1]}\r\n".encode()
        before = int(time.time())
        file = self.upload(server, content, filename="a b.bin")
        self.assertEqual(set(file), {"id", "object", "bytes", "created_at", "filename", "purpose",
                                     "status"})
        self.assertRegex(file["id"], r"^file-[0-9a-f]{24}$")
        self.assertEqual((file["object"], file["bytes"], file["filename"], file["purpose"],
                          file["status"]),
                         ("file", len(content), "a b.bin", "fine-tune", "processed"))
        self.assertLess(abs(file["created_at"] - before), PATIENCE_S)

        def check():
            self.assertEqual(json.loads(self.ask(server, "GET", f"/v1/files/{file['id']}")[2]), file)
            status, headers, body = self.ask(server, "GET", f"/v1/files/{file['id']}/content")
            self.assertEqual((status, body), (200, content))
            self.assertEqual(headers["Content-Type"], "application/octet-stream")
            self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
            self.assertEqual(headers["Content-Length"], str(len(content)))
            self.assertEqual(self.listed(server)["data"], [file])

        check()
        self.assertEqual(server.stop(), 0)
        server = self.serve()
        check()
        server.kill()
        server = self.serve()
        check()

        status, _, body = self.ask(server, "DELETE", f"/v1/files/{file['id']}")
        self.assertEqual((status, json.loads(body)),
                         (200, {"id": file["id"], "object": "file", "deleted": True}))
        for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            status, _, body = self.ask(server, method, f"/v1/files/{file['id']}{path}")
            self.assertEqual(status, 404)
            self.assertEqual(json.loads(body)["error"]["code"], "file_not_found")
        self.assertEqual(self.on_disk(), [])

    def test_forms_as_clients_write_them(self):
        server = self.serve()

        def named(disposition):
            status, _, answer = self.send(server, part(disposition, "abc"), PURPOSE, END)
            self.assertEqual(status, 200, answer)
            return answer["filename"]

        self.assertEqual(named('name="file"; filename="x.jsonl"'), "x.jsonl")
        self.assertEqual(named("name=file; filename=x.jsonl"), "x.jsonl")
        self.assertEqual(named('name="file"; filename="../../etc/passwd"'), "passwd")
        self.assertEqual(named('name="file"; filename="C:\\dir\\x.txt"'), "x.txt")
        self.assertEqual(named('name="file"; filename="äé€😀.txt"'), "äé€😀.txt")
        self.assertEqual(named('name="file"; filename="x"; filename*=UTF-8\'\'%c3%a4%20b'), "ä b")
        self.assertEqual(named('name="file"; filename="a\x7f\u0085b"'), "ab")
        self.assertEqual(named(b'name="file"; filename="a\xffb"'), "a\N{REPLACEMENT CHARACTER}b")
        self.assertEqual(named(f'name="file"; filename="{"é" * 200}"'), "é" * 127)
        # Preamble, white space after boundaries, epilogue.
        body = (b"preamble\r\n" + PURPOSE.replace(f"--{BOUNDARY}\r\n".encode(),
                                                  f"--{BOUNDARY} \t\r\n".encode()) +
                file_part("abc") + END + b"epilogue\r\n--more")
        self.assertEqual(self.send(server, body)[2]["bytes"], 3)
        # A quoted boundary; capitals; other parts.
        status, headers, answer = self.send(
            server, field("other", "1"), PURPOSE, file_part("abc"), END,
            content_type=f'Multipart/Form-Data; charset=utf-8; Boundary="{BOUNDARY}"')
        self.assertEqual((status, headers["x-ignored-params"]), (200, "other"), answer)
        # Chunked, in pieces of one byte.
        body = PURPOSE + file_part("abc\r\n-") + END
        pieces = (body[i:i + 1] for i in range(len(body)))
        connection = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
        connection.request("POST", "/v1/files", pieces, {"Content-Type": TYPE},
                           encode_chunked=True)
        response = connection.getresponse()
        self.assertEqual((response.status, json.loads(response.read())["bytes"]), (200, 6))
        connection.close()

    def test_what_is_missing_or_wrong_is_named(self):
        server = self.serve()
        file = file_part("abc")
        missing = "missing_required_parameter"
        self.refused(server, [END], "file", missing)
        self.refused(server, [PURPOSE, END], "file", missing)
        self.refused(server, [PURPOSE, field("file", "abc"), END], "file")
        self.refused(server, [PURPOSE, file_part(""), END], "file")
        self.refused(server, [PURPOSE, file, file, END], "file")
        for name in ("", "..", ".", "/", "a/..", "\x7f"):
            self.refused(server, [PURPOSE, file_part("abc", name), END], "file")
        self.refused(server, [file, END], "purpose", missing)
        self.refused(server, [file, field("purpose", "play"), END], "purpose")
        self.refused(server, [file, field("purpose", ""), END], "purpose")
        self.refused(server, [file, PURPOSE, PURPOSE, END], "purpose")
        anchor = field("expires_after[anchor]", "created_at")
        self.refused(server, [file, PURPOSE, anchor, END], "expires_after[seconds]", missing)
        self.refused(server, [file, PURPOSE, field("expires_after[seconds]", "3600"), END],
                     "expires_after[anchor]", missing)
        self.refused(server, [file, PURPOSE, field("expires_after[anchor]", "now"),
                              field("expires_after[seconds]", "3600"), END],
                     "expires_after[anchor]")
        for seconds in ("3599", "2592001", "x", "", "3600.5", "-1", "9" * 30):
            self.refused(server, [file, PURPOSE, anchor, field("expires_after[seconds]", seconds),
                                  END], "expires_after[seconds]")
        for purpose in ("fine-tune", "assistants", "batch", "user_data", "vision", "evals"):
            self.assertEqual(self.send(server, file, field("purpose", purpose), END)[0], 200)
        file = self.upload(server, "abc", anchor, field("expires_after[seconds]", "2592000"))
        self.assertEqual(file["expires_at"], file["created_at"] + 2592000)

        # Refused uploads leave no file.
        self.assertEqual(len(self.on_disk()), 7)

    def test_forms_that_are_none(self):
        server = self.serve()
        file = file_part("abc")
        self.refused(server, [PURPOSE, file], None)  # no closing boundary
        self.refused(server, [PURPOSE, file, END[:-3]], None)
        self.refused(server, [b""], None)
        self.refused(server, [b"abc"], None)
        self.refused(server, [PURPOSE, file, END], None, content_type="multipart/form-data")
        self.refused(server, [PURPOSE, file, END], None,
                     content_type="multipart/form-data; boundary=" + "x" * 71)
        self.refused(server, [PURPOSE, file] + [field(f"f{i}", "1") for i in range(63)] + [END],
                     None)
        self.refused(server, [PURPOSE, part('name="file"; filename="x"', "abc",
                                            "X: " + "x" * 8192 + "\r\n"), END], None)
        self.refused(server, [PURPOSE, part('name="file"; filename="x"', "YWJj",
                                            "Content-Transfer-Encoding: base64\r\n"), END], None)
        for wrong in ("application/json", "multipart/mixed; boundary=x", None):
            self.refused(server, [PURPOSE, file, END], None, "unsupported_media_type", 415,
                         content_type=wrong)
        self.assertEqual(self.on_disk(), [])

    def test_too_large_is_413_announced_or_not(self):
        server = self.serve("--max-file", "100000")
        self.upload(server, "x" * 100000)
        self.refused(server, [PURPOSE, file_part("x" * 100001), END], "file", "request_too_large",
                     413)
        self.refused(server, [PURPOSE, file_part("x" * (3 << 20)), END], None,
                     "request_too_large", 413)
        connection = socket.create_connection(server.address, timeout=PATIENCE_S)
        connection.sendall(f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: {TYPE}\r\n"
                           "Transfer-Encoding: chunked\r\n\r\n".encode())
        piece = b"x" * 65536
        for _ in range(40):
            try:
                connection.sendall(b"10000\r\n" + piece + b"\r\n")
            except OSError:
                break  # refused already
        self.assertTrue(connection.recv(64).startswith(b"HTTP/1.1 413 "))
        connection.close()
        self.assertEqual(len(self.on_disk()), 1)

    def test_an_upload_takes_no_memory(self):
        server = self.serve("--max-file", "1G")
        self.upload(server, "warm")

        def peak():
            status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
            return int(status.split("VmHWM:")[1].split()[0]) << 10

        before = peak()
        piece = os.urandom(1 << 20)
        n_pieces = 200
        head, tail = PURPOSE + file_part("")[:-2], b"\r\n" + END
        connection = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
        connection.putrequest("POST", "/v1/files")
        connection.putheader("Content-Type", TYPE)
        connection.putheader("Content-Length", str(len(head) + n_pieces * len(piece) + len(tail)))
        connection.endheaders(head)
        for _ in range(n_pieces):
            connection.send(piece)
        connection.send(tail)
        response = connection.getresponse()
        file = json.loads(response.read())
        self.assertEqual((response.status, file["bytes"]), (200, n_pieces * len(piece)), file)

        connection.request("GET", f"/v1/files/{file['id']}/content")
        response = connection.getresponse()
        for _ in range(n_pieces):
            self.assertEqual(response.read(len(piece)), piece)
        self.assertEqual(response.read(), b"")
        connection.close()
        # Buffers of the request threads and pages of the program, a third of the file at most.
        self.assertLess(peak() - before, 64 << 20)

    def test_what_breaks_off_leaves_nothing(self):
        server = self.serve()
        begun = (f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: {TYPE}\r\n"
                 "Content-Length: 1000000\r\n\r\n").encode() + PURPOSE + file_part("x" * 5000)
        connection = socket.create_connection(server.address, timeout=PATIENCE_S)
        connection.sendall(begun)
        self.wait_for(lambda: len(self.on_disk()) == 1)
        self.assertTrue(self.on_disk()[0].endswith(".part"))
        connection.close()
        self.wait_for(lambda: not self.on_disk())

        # The next server removes the leftovers of a killed one.
        connection = socket.create_connection(server.address, timeout=PATIENCE_S)
        connection.sendall(begun)
        self.wait_for(lambda: len(self.on_disk()) == 1)
        server.kill()
        connection.close()
        self.assertEqual(len(self.on_disk()), 1)
        server = self.serve()
        self.assertEqual(self.on_disk(), [])

        # A stopping server does not wait for an upload.
        connection = socket.create_connection(server.address, timeout=PATIENCE_S)
        connection.sendall(begun)
        self.wait_for(lambda: len(self.on_disk()) == 1)
        self.assertEqual(server.stop(), 0)
        connection.close()
        self.assertEqual(self.on_disk(), [])

    def test_a_full_disk_is_507_and_leaves_nothing(self):
        server = self.serve()
        pid = server.process.pid
        limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (100000, limits[1]))
        self.refused(server, [PURPOSE, file_part("x" * 300000), END], None, "insufficient_storage",
                     507)
        self.assertEqual(self.on_disk(), [])
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
        self.upload(server, "x" * 300000)

    def test_a_full_disk_still_deletes(self):
        server = self.serve()
        kept, file = self.upload(server, "x" * 3000)["id"], self.upload(server, "y" * 3000)["id"]
        limits = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1, limits[1]))
        status, _, body = self.ask(server, "DELETE", f"/v1/files/{file}")
        self.assertEqual((status, json.loads(body)["deleted"]), (200, True), body)
        self.assertEqual(self.ask(server, "GET", f"/v1/files/{file}")[0], 404)
        self.assertEqual([one["id"] for one in self.listed(server)["data"]], [kept])
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, limits)
        server.stop()
        server = self.serve()
        self.assertEqual([one["id"] for one in self.listed(server)["data"]], [kept])
        self.assertEqual(self.on_disk(), [kept])

    def test_many_at_once(self):
        server = self.serve()
        contents = [os.urandom(200000 + i) for i in range(16)]
        ids = [None] * len(contents)

        def send(i):
            ids[i] = self.upload(server, contents[i])["id"]

        threads = [threading.Thread(target=send, args=(i,)) for i in range(len(contents))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(set(ids)), len(contents))
        for i, content in enumerate(contents):
            self.assertEqual(self.ask(server, "GET", f"/v1/files/{ids[i]}/content")[2], content)


class Lists(FilesCase):
    def test_pages_filters_and_orders(self):
        server = self.serve()
        self.assertEqual(self.listed(server), {"object": "list", "data": [], "first_id": None,
                                               "last_id": None, "has_more": False})
        ids = []
        for purpose in ("batch", "evals", "batch", "evals", "batch"):
            ids.append(self.send(server, field("purpose", purpose), file_part("x"), END)[2]["id"])

        def page(query):
            answer = self.listed(server, query)
            found = [file["id"] for file in answer["data"]]
            self.assertEqual((answer["first_id"], answer["last_id"]),
                             (found[0], found[-1]) if found else (None, None))
            return found, answer["has_more"]

        self.assertEqual(page(""), (ids[::-1], False))
        self.assertEqual(page("?order=asc"), (ids, False))
        self.assertEqual(page("?limit=2"), (ids[:2:-1], True))
        self.assertEqual(page(f"?limit=3&after={ids[3]}"), (ids[2::-1], False))
        self.assertEqual(page(f"?order=asc&limit=2&after={ids[0]}&purpose=batch"),
                         ([ids[2], ids[4]], False))
        self.assertEqual(page("?purpose=vision"), ([], False))
        self.assertEqual(page("?after=file-unknown"), ([], False))
        for query, param in (("limit=0", "limit"), ("limit=10001", "limit"), ("limit=x", "limit"),
                             ("limit=", "limit"), ("order=up", "order"), ("purpose=play", "purpose")):
            status, _, body = self.ask(server, "GET", "/v1/files?" + query)
            self.assertEqual((status, json.loads(body)["error"]["param"]), (400, param), query)


class Contents(FilesCase):
    def test_ranges(self):
        server = self.serve()
        content = os.urandom(3 << 20)
        path = f"/v1/files/{self.upload(server, content)['id']}/content"
        size = len(content)

        def get(value, method="GET", **more):
            return self.ask(server, method, path, headers=dict({"Range": value}, **more))

        for value, begin, end in (("bytes=0-0", 0, 1), ("bytes=5-", 5, size),
                                  ("bytes=-7", size - 7, size), (f"bytes=9-{size * 2}", 9, size)):
            status, headers, body = get(value)
            self.assertEqual(status, 206, value)
            self.assertEqual(body, content[begin:end], value)
            self.assertEqual(headers["Content-Range"], f"bytes {begin}-{end - 1}/{size}")
        for value in ("bytes=2-1", "bytes=a-b", "lines=1-2", "bytes=0-1,3-4"):
            status, _, body = get(value)
            self.assertEqual((status, body), (200, content), value)
        self.assertEqual(get("bytes=0-1", **{"If-Range": '"x"'})[0], 200)
        status, headers, _ = get(f"bytes={size}-")
        self.assertEqual((status, headers["Content-Range"]), (416, f"bytes */{size}"))

        status, headers, body = self.ask(server, "HEAD", path)
        self.assertEqual((status, headers["Content-Length"], headers["Accept-Ranges"], body),
                         (200, str(size), "bytes", b""))
        self.assertEqual(get("bytes=0-9", "HEAD")[1]["Content-Length"], "10")

    def test_a_reader_that_stops_holds_nobody_up(self):
        server = self.serve()
        path = f"/v1/files/{self.upload(server, os.urandom(16 << 20))['id']}/content"
        slow = []
        for _ in range(8):
            slow.append(socket.create_connection(server.address, timeout=PATIENCE_S))
            slow[-1].sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        self.assertEqual(len(self.ask(server, "GET", path)[2]), 16 << 20)
        self.upload(server, "more")
        for connection in slow:
            connection.close()
        self.assertEqual(server.stop(), 0)


class Access(FilesCase):
    def test_who_may(self):
        server = self.serve("--api-key", "secret")
        for method, path in (("POST", "/v1/files"), ("GET", "/v1/files"),
                             ("GET", "/v1/files/file-x"), ("DELETE", "/v1/files/file-x"),
                             ("GET", "/v1/files/file-x/content")):
            body = PURPOSE + file_part("abc") + END if method == "POST" else None
            for key in (None, "wrong"):
                headers = {"Content-Type": TYPE}
                if key:
                    headers["Authorization"] = f"Bearer {key}"
                status, _, answer = self.ask(server, method, path, body, headers)
                self.assertEqual((status, json.loads(answer)["error"]["code"]),
                                 (401, "invalid_api_key"))
        for key in ("secret", ADMIN_KEY):
            self.assertEqual(self.send(server, PURPOSE, file_part("abc"), END,
                                       headers={"Authorization": f"Bearer {key}"})[0], 200)

    def test_pages_of_the_web_cannot_fill_an_open_server(self):
        server = self.serve()
        form = (PURPOSE, file_part("abc"), END)
        self.assertEqual(self.send(server, *form, headers={"Origin": "https://evil.example"})[0], 403)
        self.assertEqual(self.send(server, *form, headers={"Origin": "http://localhost:3000"})[0],
                         200)

    def test_without_an_admin_key_and_without_a_directory_of_its_own(self):
        first = self.serve(env={"TANDEM_ADMIN_KEY": ""})
        self.upload(first, "abc")
        second = self.serve(env={"TANDEM_ADMIN_KEY": ""})
        status, _, answer = self.send(second, PURPOSE, file_part("abc"), END)
        self.assertEqual(status, 503, answer)
        self.assertIn("data directory", answer["error"]["message"])
        self.assertEqual(second.request("GET", "/ready")[0], 200)
        self.wait_until("logged", lambda: "no_files_and_jobs" in second.log_path.read_text())


if __name__ == "__main__":
    harness.main()
