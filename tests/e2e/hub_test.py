#!/usr/bin/env python3
"""Pulls from a hub: a local server that speaks its protocol, honest or hostile.

`hub_test.py BINARY [unittest arguments]`. 127.0.0.1 and localhost count as two hosts: the hub, and
the host of large files.
"""

import base64
import contextlib
import hashlib
import http.server
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import socket
import socketserver
import ssl
import subprocess
import threading
import time

import harness
from harness import PATIENCE_S, ROOT, make_certificate, story

COMMIT = "c" * 40
TOKEN = "hf_e2eSecretToken"
STORIES = ROOT / "config" / "models" / "tandem-stories"
MIB = 1 << 20


def stories():
    return {path.name: path.read_bytes() for path in STORIES.iterdir()}


def large(mib):
    """A model with one large file."""
    return {"config.json": b"{}", "model.safetensors": random.Random(mib).randbytes(mib * MIB)}


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def git_sha1(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        pass  # some tests disconnect clients


class Hub:
    """A hub with one model, org/name. Tests change its replies through its attributes."""

    def __init__(self, files, certificate=None):
        self.files = files
        self.commit = COMMIT
        self.log = []  # (method, path, headers)
        self.sent = 0  # bytes of large files
        self.hook = None  # called with each request; true: it has replied
        self.bytes_per_s = None
        self.listed = {}  # name -> changes of its entry in the file list
        self.extra = []  # more entries
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                hub.log.append((self.command, self.path, dict(self.headers)))
                if not (hub.hook and hub.hook(self)):
                    hub.answer(self)

            do_HEAD = do_GET

            def reply(self, status, body=b"", length=None, **fields):
                self.send_response(status)
                for name, value in fields.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body) if length is None else length))
                self.end_headers()
                if self.command != "HEAD":
                    hub.write(self.wfile, body)

        self.server = Server(("127.0.0.1", 0), Handler)
        scheme = "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            scheme = "https"
        self.port = self.server.server_address[1]
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self.cdn = f"{scheme}://localhost:{self.port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def write(self, stream, body):
        if not self.bytes_per_s:
            stream.write(body)
            return
        for begin in range(0, len(body), 65536):
            stream.write(body[begin:begin + 65536])
            time.sleep(65536 / self.bytes_per_s)

    def entry(self, name):
        content = self.files[name]
        entry = {"rfilename": name, "size": len(content), "blobId": git_sha1(content)}
        if self.is_large(name):
            entry["lfs"] = {"sha256": sha256(content), "size": len(content), "pointerSize": 134}
        return dict(entry, **self.listed.get(name, {}))

    @staticmethod
    def is_large(name):
        return name.endswith((".safetensors", ".gguf", ".bin"))

    def answer(self, request):
        path = request.path.split("?")[0]
        if path.startswith("/api/models/org/name/revision/"):
            if path.rsplit("/", 1)[1] not in ("main", COMMIT, self.commit):
                return request.reply(404, X_Error_Code="RevisionNotFound")
            body = {"id": "org/name", "sha": self.commit,
                    "siblings": [self.entry(name) for name in self.files] + self.extra}
            return request.reply(200, json.dumps(body).encode(), Content_Type="application/json")
        if path == f"/api/models/org/name/tree/{self.commit}":  # the request of other clients for the list
            body = [{"type": "file", "path": entry["rfilename"], "size": entry["size"],
                     "oid": entry["blobId"],
                     **({"lfs": dict(entry["lfs"], oid=entry["lfs"]["sha256"])} if "lfs" in entry
                        else {})} for entry in map(self.entry, self.files)]
            return request.reply(200, json.dumps(body).encode(), Content_Type="application/json")
        if path.startswith("/api/"):
            return request.reply(401, X_Error_Code="RepoNotFound")
        name = path.split("/", 5)[-1] if path.startswith("/org/name/resolve/") else path[5:]
        if name not in self.files:
            return request.reply(404, X_Error_Code="EntryNotFound")
        content = self.files[name]
        if path.startswith("/cdn/"):
            return self.send_large(request, content)
        if self.is_large(name):
            return request.reply(
                302, Location=f"{self.cdn}/cdn/{name}?Signature=sEcReTsIgNaTuRe",
                X_Linked_Etag=f'"{sha256(content)}"', X_Linked_Size=str(len(content)),
                X_Repo_Commit=self.commit)
        return request.reply(200, content, ETag=f'"{git_sha1(content)}"', X_Repo_Commit=self.commit)

    def send_large(self, request, content):
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
        if not asked:
            self.sent += len(content)
            return request.reply(200, content, ETag='"cdn"')
        first = int(asked[1])
        last = min(int(asked[2] or len(content)), len(content) - 1)
        self.sent += last + 1 - first
        return request.reply(206, content[first:last + 1], ETag='"cdn"',
                             Content_Range=f"bytes {first}-{last}/{len(content)}")

    def asked(self, prefix):
        return [entry for entry in list(self.log) if entry[1].startswith(prefix)]


class Proxy:
    """Opens tunnels and forwards plain requests for clients with the password."""

    def __init__(self):
        self.opened = []
        self.port = None
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://us%40er:p%3Ass@127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def close(self):
        self.listener.close()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, client):
        with contextlib.suppress(OSError), client:
            head = b""
            while b"\r\n\r\n" not in head:
                got = client.recv(65536)
                if not got:
                    return
                head += got
            credentials = base64.b64encode(b"us@er:p:ss")
            method, target, _ = head.split(b"\r\n")[0].split(b" ")
            if b"Proxy-Authorization: Basic " + credentials not in head:
                client.sendall(b"HTTP/1.1 407 Who\r\nContent-Length: 0\r\n\r\n")
                return
            self.opened.append((method.decode(), target.decode()))
            authority = target if method == b"CONNECT" else target.split(b"/")[2]
            host, port = authority.decode().rsplit(":", 1)
            with socket.create_connection((host, int(port))) as server:
                if method == b"CONNECT":
                    client.sendall(b"HTTP/1.1 200 Yes\r\n\r\n")
                else:
                    path = b"/" + target.split(b"/", 3)[3]
                    server.sendall(head.replace(target, path, 1))
                while True:
                    for ready in select.select([client, server], [], [])[0]:
                        got = ready.recv(65536)
                        if not got:
                            return
                        (server if ready is client else client).sendall(got)


class HubCase(harness.Case):
    def setUp(self):
        super().setUp()
        self.home = self.path / "hf"
        self.folder = self.home / "hub" / "models--org--name"

    def hub(self, files=None, **options):
        hub = Hub(stories() if files is None else files, **options)
        self.addCleanup(hub.close)
        return hub

    def environment(self, hub=None, **variables):
        kept = {name: value for name, value in os.environ.items()
                if not name.lower().endswith("_proxy") and not name.startswith(("HF_", "SSL_"))}
        kept.update({"HF_HOME": str(self.home)})
        if hub:
            kept["HF_ENDPOINT"] = hub.url
        kept.update(variables)
        return kept

    def start(self, hub, model="org/name", *arguments, limit=None, **variables):
        def restrict():
            if limit:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return subprocess.Popen([harness.BINARY, "pull", model, *arguments],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=self.environment(hub, **variables), preexec_fn=restrict)

    def pull(self, hub, *arguments, code=0, **options):
        """(printed path, log)"""
        process = self.start(hub, *arguments, **options)
        out, log = process.communicate(timeout=PATIENCE_S)
        self.assertEqual(process.returncode, code, log)
        self.assertNotIn(TOKEN, out + log)
        self.assertNotIn("sEcReTsIgNaTuRe", out + log)
        return out.strip(), log

    def expect_snapshot(self, hub, path=None):
        snapshot = self.folder / "snapshots" / COMMIT
        if path is not None:
            self.assertEqual(path, str(snapshot))
        for entry in snapshot.iterdir():
            self.assertEqual(entry.read_bytes(), hub.files[entry.name], entry.name)
            expected = sha256 if hub.is_large(entry.name) else git_sha1
            self.assertEqual(os.readlink(entry), "../../blobs/" + expected(hub.files[entry.name]))
        self.assertEqual(list((self.folder / "blobs").glob("*.incomplete")), [])
        self.assertEqual((self.folder / "refs" / "main").read_text(), COMMIT)

    def incomplete_bytes(self):
        total = 0
        for path in self.folder.glob("blobs/*.incomplete"):
            try:
                total += path.stat().st_size
            except FileNotFoundError:  # completed after it was listed
                pass
        return total

    def wait_for(self, what, condition):
        end = time.monotonic() + PATIENCE_S
        while not condition():
            self.assertLess(time.monotonic(), end, f"still not: {what}")
            time.sleep(0.02)


class Looking(HubCase):
    """`tandem models ORG/NAME`: what to expect of a model, before it is downloaded."""

    def look(self, hub, *arguments, code=0, model="org/name", **variables):
        done = subprocess.run([harness.BINARY, "models", model, *arguments], capture_output=True, text=True,
                              check=False, timeout=PATIENCE_S, env=self.environment(hub, **variables))
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def test_a_model_is_described_by_its_headers_and_nothing_is_kept(self):
        hub = self.hub()
        described = json.loads(self.look(hub, "--json"))
        self.assertFalse(self.folder.exists())
        self.assertLess(hub.sent, len(hub.files["model.safetensors"]) // 4)
        self.assertEqual(described["download_bytes"], len(hub.files["model.safetensors"]))
        # The same figures as those of the directory, which is read on this machine.
        local = json.loads(self.look(hub, "--json", model=str(STORIES)))
        self.assertIsNone(local["download_bytes"])
        for key in ("family", "architecture", "tensors", "parameters", "active_parameters", "context"):
            self.assertEqual(described[key], local[key], key)
        exact = ("dtype", "is_default", "weight_bytes", "read_bytes_per_token", "kv_bytes_per_1k_tokens",
                 "memory_bytes", "max_model_len", "fitting_context", "fits")
        self.assertEqual([[row[key] for key in exact] for row in described["dtypes"]],
                         [[row[key] for key in exact] for row in local["dtypes"]])
        for row in described["dtypes"]:
            self.assertGreater(row["estimated_decode_tokens_per_second"], 0)
        self.assertLessEqual({"bf16", "int8", "int4"}, {row["dtype"] for row in described["dtypes"]})

    def test_the_table_says_what_is_measured_and_what_is_estimated(self):
        text = self.look(self.hub())
        self.assertRegex(text, r"(?m)^org/name: .* \(\w+\)$")
        self.assertRegex(text, r"(?m)^DTYPE +WEIGHTS +READ/TOKEN +KV/1K TOKENS +MEMORY +FITS +TOKENS/S")
        self.assertRegex(text, r"(?m)^int4 ")
        self.assertRegex(text, r"(?m)^measured now, \d+ threads: .*GB/s")
        self.assertIn("estimated: ", text)

    def test_memory_and_context_are_those_of_the_flags(self):
        hub = self.hub()
        little = json.loads(self.look(hub, "--json", "--memory", "1M"))
        self.assertEqual({row["fitting_context"] for row in little["dtypes"]}, {0})
        short = json.loads(self.look(hub, "--json", "--max-model-len", "64"))
        self.assertEqual({row["max_model_len"] for row in short["dtypes"]}, {64})

    def test_a_config_alone_is_enough(self):
        (self.path / "config.json").write_bytes((STORIES / "config.json").read_bytes())
        of_config = json.loads(self.look(None, "--json", model=str(self.path / "config.json")))
        of_model = json.loads(self.look(None, "--json", model=str(STORIES)))
        self.assertEqual(of_config["parameters"], of_model["parameters"])

    def test_a_tiny_model_has_thousands_of_parameters(self):
        model = str(ROOT / "tests" / "golden" / "mistral-tiny")
        count = json.loads(self.look(None, "--json", model=model))["parameters"]
        self.assertLess(count, 999950)
        self.assertIn(f"\n{count / 1000:.1f} thousand parameters in ", self.look(None, model=model))

    def test_unknown_families_and_models_say_what_is_missing(self):
        hub = self.hub(dict(stories(), **{"config.json": b'{"architectures": ["NewForCausalLM"]}'}))
        self.assertIn("architecture 'NewForCausalLM' is not supported; supported are",
                      self.look(hub, code=1))
        self.assertIn("org/other", self.look(hub, model="org/other", code=1))
        fault = self.look(None, model=str(self.path / "nowhere"), code=1)
        self.assertIn("nowhere", fault)

    def test_hostile_headers_are_refused(self):
        for content in (b"", b"1234567", b"\xff" * 64, (1 << 40).to_bytes(8, "little") + b"{}"):
            hub = self.hub(dict(stories(), **{"model.safetensors": content}))
            self.assertIn("model.safetensors", self.look(hub, code=65))


class Pulling(HubCase):
    def test_a_model_is_pulled_then_served_without_a_network(self):
        hub = self.hub()
        path, log = self.pull(hub)
        self.expect_snapshot(hub, path)
        names = {entry.name for entry in (self.folder / "snapshots" / COMMIT).iterdir()}
        self.assertEqual(names, {"chat_template.jinja", "config.json", "generation_config.json",
                                 "model.safetensors", "tokenizer.json", "tokenizer_config.json"})
        self.assertRegex(log, r"hub_pull model=org/name bytes=(\d+) total_bytes=\1 files=6 ")

        requests = len(hub.log)
        server = self.serve("--model", "org/name",
                            env=dict(self.environment(hub, HF_HUB_OFFLINE="1")))
        answer = server.post("/v1/chat/completions", dict(story(), model="org/name"))
        self.assertEqual(answer["model"], "org/name")
        self.assertTrue(answer["choices"][0]["message"]["content"])
        self.assertEqual(len(hub.log), requests)

    def test_other_verbs_pull_what_they_are_told(self):
        hub = self.hub()
        environment = self.environment(hub, XDG_CACHE_HOME=str(self.path / "cache"))

        def run(*arguments):
            return subprocess.run([os.path.abspath(harness.BINARY), *arguments], env=environment,
                                  capture_output=True, text=True, cwd=self.path, check=False)
        generate = ("generate", "--model", "org/name", "--prompt", "Once", "--max-tokens", "4")
        spec = (str(ROOT / "config" / "presets" / "continue-stories.yaml"),
                "load_parameters_path=org/name", "data.train=" + str(STORIES / "samples.md"))
        for arguments in (generate, ("plan", *spec), ("train", *spec, "steps=1")):
            done = run(*arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(done.stdout.strip())
        self.assertEqual(len(hub.asked("/cdn/")), 1)
        # A local path wins.
        (self.path / "org" / "name").mkdir(parents=True)
        self.assertIn("config.json", run(*generate).stderr)

    def test_a_server_that_loads_from_the_hub_can_be_stopped(self):
        hub = self.hub(large(8))
        hub.bytes_per_s = 100_000
        with open(self.path / "log", "wb") as log:
            process = subprocess.Popen([harness.BINARY, "serve", "--port", "0", "--model", "org/name"],
                                       env=self.environment(hub), stdout=log, stderr=log)
        self.wait_for("the download has begun", lambda: self.incomplete_bytes() > 0)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(PATIENCE_S), 130, (self.path / "log").read_text())

    def test_large_files_come_in_pieces_over_several_connections(self):
        hub = self.hub(large(33))
        path, _ = self.pull(hub)
        self.expect_snapshot(hub, path)
        ranges = {entry[2]["Range"] for entry in hub.asked("/cdn/model")}
        self.assertEqual(len(ranges), 5)
        self.assertEqual(hub.sent, 33 * MIB)

    def test_a_terminal_shows_one_line_that_changes(self):
        hub = self.hub()
        hub.bytes_per_s = 3 * MIB
        reader, writer = os.openpty()
        process = subprocess.Popen([harness.BINARY, "pull", "org/name"], stdout=subprocess.DEVNULL,
                                   stderr=writer, env=self.environment(hub, TERM="xterm"))
        os.close(writer)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a terminal is an error
            while got := os.read(reader, 4096):
                shown += got
        os.close(reader)
        self.assertEqual(process.wait(PATIENCE_S), 0)
        drawn = [text for text in shown.decode().split("\r\x1b[K") if "pulling org/name" in text]
        self.assertGreater(len(drawn), 2, shown)
        for text in drawn:
            self.assertNotIn("\n", text)
            self.assertRegex(text, r"^pulling org/name +\d+ %  .*[\d.]+ of 5\.5 MiB")
        self.assertNotIn("pulling", shown.decode().split("\r\x1b[K")[-1])

    def test_revisions(self):
        hub = self.hub()
        self.pull(hub, "org/name@" + COMMIT)
        self.assertEqual(list((self.folder / "refs").iterdir()), [])
        _, log = self.pull(hub, "org/name@other", code=1)
        self.assertIn("has no revision 'other'", log)

    def test_a_gguf_file_is_found_by_its_tag(self):
        files = {"README.md": b"x", "m-Q4_K_M.gguf": b"GGUF4", "m-Q8_0.gguf": b"GGUF8"}
        hub = self.hub(files)
        path, _ = self.pull(hub, "org/name:Q4_K_M")
        self.assertEqual(path, str(self.folder / "snapshots" / COMMIT / "m-Q4_K_M.gguf"))
        self.assertEqual([entry[1].split("?")[0] for entry in hub.asked("/cdn/")],
                         ["/cdn/m-Q4_K_M.gguf"])
        _, log = self.pull(hub, code=1)
        self.assertIn("m-Q4_K_M.gguf, m-Q8_0.gguf", log)

    def test_pickles_are_never_fetched(self):
        hub = self.hub({"config.json": b"{}", "pytorch_model.bin": b"\x80\x02."})
        _, log = self.pull(hub, code=1)
        self.assertIn("has only pickled weights (pytorch_model.bin)", log)
        self.assertEqual(len(hub.log), 1)

    def test_what_is_no_model_name(self):
        for name in ("name", "org/na me", "../x", "org/name@../x", "org/name:../x.gguf"):
            _, log = self.pull(None, name, code=2)
            self.assertIn("expected ORG/NAME", log)


class Interrupted(HubCase):
    def test_a_killed_pull_goes_on(self):
        hub = self.hub(large(20))
        hub.bytes_per_s = 4 * MIB
        process = self.start(hub)
        self.wait_for("something has arrived", lambda: self.incomplete_bytes() > MIB)
        process.kill()
        process.communicate()
        there = self.incomplete_bytes()
        self.assertEqual(list((self.folder / "snapshots").glob("*/model.safetensors")), [])

        hub.bytes_per_s = None
        before = len(hub.asked("/cdn/"))
        path, log = self.pull(hub)
        self.expect_snapshot(hub, path)
        self.assertIn(f"bytes={there} of={20 * MIB}", log)
        firsts = [int(re.search(r"=(\d+)-", entry[2]["Range"])[1])
                  for entry in hub.asked("/cdn/")[before:]]
        self.assertEqual(min(firsts), there)

    def test_control_c_says_that_it_can_go_on(self):
        hub = self.hub(large(20))
        hub.bytes_per_s = 4 * MIB
        process = self.start(hub)
        self.wait_for("something has arrived", lambda: self.incomplete_bytes() > MIB)
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=PATIENCE_S)
        self.assertEqual(process.returncode, 75, log)
        self.assertIn("the same command resumes", log)
        self.assertGreater(self.incomplete_bytes(), MIB)

    def test_two_pulls_at_once_fetch_once(self):
        hub = self.hub(large(12))
        hub.bytes_per_s = 16 * MIB
        processes = [self.start(hub) for _ in range(3)]
        for process in processes:
            _, log = process.communicate(timeout=PATIENCE_S)
            self.assertEqual(process.returncode, 0, log)
        self.expect_snapshot(hub)
        self.assertEqual(hub.sent, 12 * MIB)

    def test_a_file_that_may_not_grow_is_an_io_error_and_goes_on_later(self):
        hub = self.hub()
        _, log = self.pull(hub, limit=MIB, code=74)
        self.assertIn("File too large", log)
        self.assertGreaterEqual(self.incomplete_bytes(), MIB)
        path, _ = self.pull(hub)
        self.expect_snapshot(hub, path)

    def test_space_is_counted_before(self):
        hub = self.hub()
        huge = 1 << 49
        entry = hub.entry("model.safetensors")["lfs"]
        hub.listed["model.safetensors"] = {"size": huge, "lfs": dict(entry, size=huge)}

        def hook(request):
            if request.command == "HEAD" and request.path.endswith("model.safetensors"):
                request.reply(302, Location=hub.cdn + "/cdn/x", X_Linked_Size=str(huge),
                              X_Linked_Etag=f'"{entry["sha256"]}"')
                return True
        hub.hook = hook
        _, log = self.pull(hub, code=74)
        self.assertRegex(log, r"needs 512\.0 TiB more \(512\.0 TiB in total, 0 B already fetched\), but "
                              r".* has [\d.]+ \w+ free")


class Faults(HubCase):
    def on_cdn(self, hub, function):
        def hook(request):
            return request.path.startswith("/cdn/") and function(request)
        hub.hook = hook

    def test_cut_connections_go_on(self):
        hub = self.hub()
        content = hub.files["model.safetensors"]

        def cut(request):
            first = int(re.search(r"=(\d+)-", request.headers.get("Range", "=0-"))[1])
            if first > 4 * MIB:
                return False
            rest = content[first:first + 2 * MIB]
            request.close_connection = True
            fields = {"Content_Range": f"bytes {first}-{len(content) - 1}/{len(content)}"} if first else {}
            request.reply(206 if first else 200, rest, length=len(content) - first, **fields)
            return True
        self.on_cdn(hub, cut)
        path, log = self.pull(hub)
        self.expect_snapshot(hub, path)
        self.assertIn("hub_retry", log)

    def test_a_silent_server_is_given_up(self):
        hub = self.hub()
        silent = []

        def hang(request):
            if silent:
                return False
            silent.append(request)
            request.reply(200, b"", length=len(hub.files["model.safetensors"]))
            time.sleep(3)
            request.close_connection = True
            return True
        self.on_cdn(hub, hang)
        path, log = self.pull(hub, HF_HUB_DOWNLOAD_TIMEOUT="1")
        self.expect_snapshot(hub, path)
        self.assertIn("timed out while reading", log)

    def test_contents_that_are_not_what_was_listed(self):
        hub = self.hub()
        right = hub.files["model.safetensors"]
        for wrong, words in ((right[:-1] + b"x", "the sha256 of the download is "),
                             (right + b"more", "but Content-Length is"),
                             (right[:-1], "but Content-Length is")):
            def send(request, content=wrong):
                hub.send_large(request, content)
                return True
            self.on_cdn(hub, send)
            _, log = self.pull(hub, code=65)
            self.assertIn(words, log)
            self.assertFalse((self.folder / "snapshots" / COMMIT / "model.safetensors").exists())
        hub.hook = None
        shutil.rmtree(self.folder)
        hub.listed["config.json"] = {"blobId": git_sha1(b"other")}
        _, log = self.pull(hub, code=65)
        self.assertIn("config.json: the git sha1 of the download is ", log)
        self.assertFalse((self.folder / "snapshots" / COMMIT / "config.json").exists())
        hub.listed["config.json"] = {"size": 7}
        _, log = self.pull(hub, code=65)
        self.assertIn("but serves size", log)

    def test_names_that_lead_out(self):
        hub = self.hub()
        for name in ("../../x.safetensors", "/tmp/x", "a/../../x"):
            hub.extra = [{"rfilename": name, "size": 1}]
            _, log = self.pull(hub, code=65)
            self.assertIn("points outside the model's folder", log)
        self.assertFalse(self.home.exists())

    def test_a_busy_hub_is_asked_again_when_it_says(self):
        hub = self.hub()
        times = []

        def busy(request):
            times.append(time.monotonic())
            if len(times) > 1:
                return False
            request.reply(429, Retry_After="1")
            return True
        hub.hook = busy
        self.pull(hub)
        self.assertGreaterEqual(times[1] - times[0], 0.99)

    def test_without_an_answer_the_cache_is_used_and_offline_says_what_is_missing(self):
        hub = self.hub()
        _, log = self.pull(hub, HF_HUB_OFFLINE="1", code=1)
        self.assertIn("revision 'main' has never been pulled", log)
        path, _ = self.pull(hub)
        for variables in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
            again, log = self.pull(hub, **variables)
            self.assertEqual(again, path)
        self.assertIn("hub_unreachable", log)
        (self.folder / "snapshots" / COMMIT / "model.safetensors").unlink()
        _, log = self.pull(hub, HF_HUB_OFFLINE="1", code=1)
        self.assertIn("no weights", log)


    def test_a_model_without_tokenizer_is_a_warning_and_completed_later(self):
        _, log = self.pull(self.hub(large(1)))
        self.assertIn("hub_no_tokenizer model=org/name", log)
        self.assertIn("tokenizer.json, tokenizer.model, *.tiktoken, vocab.json", log)
        shutil.rmtree(self.folder)

        hub = self.hub()
        path, log = self.pull(hub)
        self.assertNotIn("hub_no_tokenizer", log)
        (self.folder / "snapshots" / COMMIT / "tokenizer.json").unlink()
        for variables in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
            again, log = self.pull(hub, **variables)
            self.assertEqual(again, path)
            self.assertIn("hub_no_tokenizer", log)
        _, log = self.pull(hub)
        self.assertNotIn("hub_no_tokenizer", log)
        self.assertTrue((self.folder / "snapshots" / COMMIT / "tokenizer.json").exists())

    def test_an_old_model_is_not_taken_for_the_new_one(self):
        hub = self.hub()
        self.pull(hub)
        hub.commit = "d" * 40
        hub.files["model.safetensors"] += b"new"

        def busy(request):
            request.reply(503, Retry_After="999")
            return True
        self.on_cdn(hub, busy)
        out, log = self.pull(hub, code=1)
        self.assertEqual(out, "")
        self.assertIn("999 s", log)
        _, log = self.pull(hub, "org/name@" + COMMIT, code=65)
        self.assertIn(f"requested commit {COMMIT}, but the hub returned commit {hub.commit}", log)


class Secrets(HubCase):
    def test_the_token_goes_to_the_hub_only(self):
        hub = self.hub()
        self.pull(hub, HF_TOKEN=TOKEN)
        elsewhere = hub.asked("/cdn/")
        self.assertTrue(elsewhere)
        for _, path, headers in hub.log:
            self.assertEqual(headers.get("Authorization"),
                             None if path.startswith("/cdn/") else f"Bearer {TOKEN}", path)
        self.assertTrue(all(headers["Host"].startswith("localhost") for _, _, headers in elsewhere))

    def test_a_token_file_is_read(self):
        hub = self.hub()
        self.home.mkdir()
        (self.home / "token").write_text(TOKEN + "\n")
        self.pull(hub)
        self.assertEqual(hub.log[0][2]["Authorization"], f"Bearer {TOKEN}")

    def test_gated_and_absent_models_say_what_to_do(self):
        hub = self.hub()

        def gated(request):
            request.reply(403, X_Error_Code="GatedRepo", X_Error_Message=f"no: {TOKEN}")
            return True
        hub.hook = gated
        _, log = self.pull(hub, code=1)
        self.assertIn(f"accept its licence at {hub.url}/org/name, then set HF_TOKEN", log)
        self.pull(hub, code=1, HF_TOKEN=TOKEN)
        hub.hook = None
        _, log = self.pull(hub, "org/other", code=1)
        self.assertIn("has no model org/other, or the model is private", log)

        def echo(request):
            request.reply(403, X_Error_Message="no\ttoken " + request.headers["Authorization"])
            return True
        hub.hook = echo
        _, log = self.pull(hub, code=1, HF_TOKEN=TOKEN)
        self.assertIn("Bearer [token]", log)

    def test_certificates_are_checked(self):
        certificate = make_certificate(self.path, "hub")
        hub = self.hub(certificate=certificate)
        hub.cdn = hub.url
        _, log = self.pull(hub, code=1)
        self.assertIn("the server's certificate is not trusted", log)
        authorities = {"SSL_CERT_FILE": str(certificate[0])}
        _, log = self.pull(hub, code=1, HF_ENDPOINT=f"https://localhost:{hub.port}", **authorities)
        self.assertIn("not trusted (hostname mismatch", log)
        self.assertEqual(hub.log, [])
        path, _ = self.pull(hub, **authorities)
        self.expect_snapshot(hub, path)

    def test_https_is_never_left(self):
        certificate = make_certificate(self.path, "hub")
        plain = self.hub()
        hub = self.hub(certificate=certificate)
        hub.cdn = plain.url
        _, log = self.pull(hub, code=1, HF_TOKEN=TOKEN, SSL_CERT_FILE=str(certificate[0]))
        self.assertIn("a redirect from https to http is never followed", log)
        self.assertEqual(plain.log, [])

    def test_proxies(self):
        certificate = make_certificate(self.path, "hub")
        hub = self.hub(certificate=certificate)
        hub.cdn = hub.url
        proxy = Proxy()
        self.addCleanup(proxy.close)
        variables = {"SSL_CERT_FILE": str(certificate[0]), "HF_TOKEN": TOKEN}
        path, log = self.pull(hub, HTTPS_PROXY=proxy.url, **variables)
        self.expect_snapshot(hub, path)
        self.assertEqual(set(proxy.opened), {("CONNECT", f"127.0.0.1:{hub.port}")})
        self.assertNotIn("p%3Ass", log)

        _, log = self.pull(hub, code=1, HTTPS_PROXY=proxy.url.replace("p%3A", ""), **variables)
        self.assertIn("requires a user name and a password", log)
        self.assertNotIn("us%40er", log)
        _, log = self.pull(self.hub(), code=1, HTTP_PROXY=proxy.url.replace("p%3A", ""))
        self.assertIn("requires a user name and a password: set HTTP_PROXY=", log)
        del proxy.opened[:]
        self.pull(hub, HTTPS_PROXY=proxy.url, NO_PROXY="127.0.0.1", **variables)
        self.assertEqual(proxy.opened, [])

        plain = self.hub()
        self.pull(plain, HTTP_PROXY=proxy.url)
        self.assertEqual({method for method, _ in proxy.opened}, {"GET"})


if __name__ == "__main__":
    harness.main()
