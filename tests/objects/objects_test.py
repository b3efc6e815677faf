"""`objects_test.py BINARY`; `run` starts it with the Python that has moto."""

import calendar
import hashlib
import http.client
import http.server
import json
import logging
import os
import pathlib
import random
import shutil
import signal
import socketserver
import subprocess
import sys
import threading
import time
import urllib.parse

import boto3
import botocore.auth
import botocore.awsrequest
import botocore.config
import botocore.credentials
from moto.server import ThreadedMotoServer

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
sys.dont_write_bytecode = True

import harness  # noqa: E402
from harness import PATIENCE_S, ROOT  # noqa: E402

KEY_ID = "AKIAOBJECTSTEST"
SECRET = "objectsTest/Secret+Key"
SESSION = "objectsTestSession"
REGION = "eu-central-1"
BUCKET = "models"
MIB = 1 << 20
BAD_DATA = 65  # the program's exit code
STORIES = ROOT / "config" / "models" / "tandem-stories"
MODEL_FILES = ["chat_template.jinja", "config.json", "generation_config.json", "model.safetensors",
               "tokenizer.json", "tokenizer_config.json"]


def size_of(path):
    """0 for a file that another process has renamed meanwhile."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


class QuietHttpServer(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        pass  # some tests kill clients


def signature_of(method, target, headers, body, region):
    """The signature of a request by botocore, from the fields that it signed."""
    authorization = headers["Authorization"]
    names = authorization.split("SignedHeaders=")[1].split(",")[0].split(";")
    path, _, query = target.partition("?")
    request = botocore.awsrequest.AWSRequest(
        method=method, url=f"http://{headers['Host']}{urllib.parse.unquote(path)}",
        params=urllib.parse.parse_qsl(query, keep_blank_values=True),
        headers={name: headers[name] for name in names if name != "host"}, data=body)
    request.url = f"http://{headers['Host']}{path}"
    request.context["timestamp"] = headers["x-amz-date"]
    credentials = botocore.credentials.Credentials(KEY_ID, SECRET)
    signer = botocore.auth.S3SigV4Auth(credentials, "s3", region)
    canonical = signer.canonical_request(request)
    return signer.signature(signer.string_to_sign(request, canonical), request)


class FaultyProxy:
    """In front of moto: checks signatures, counts, and answers with faults."""

    def __init__(self, port):
        self.log = []  # (method, target, headers)
        self.sent = 0  # bytes of GET answers
        self.hook = None  # called with the handler and the body; true: it has replied
        self.bad_signatures = []
        self.region = REGION
        self.signs_bodies = False
        self.bytes_per_s = None
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                n_body = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(n_body)
                if len(body) < n_body:  # of a killed or stopped program
                    self.close_connection = True
                    return
                proxy.log.append((self.command, self.path, dict(self.headers)))
                proxy.check(self.command, self.path, self.headers, body)
                if proxy.hook and proxy.hook(self, body):
                    return
                self.forward(body)

            do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

            def forward(self, body, cut=None, **changed):
                connection = http.client.HTTPConnection("127.0.0.1", port)
                headers = {name: value for name, value in self.headers.items()
                           if name.lower() not in ("connection", "content-length")}
                connection.request(self.command, self.path, body, headers)
                response = connection.getresponse()
                content = response.read()
                self.send_response(response.status)
                for name, value in response.getheaders():
                    if name.lower() in ("connection", "server", "date", "transfer-encoding"):
                        continue
                    if name.lower() == "content-length" and self.command != "HEAD":
                        continue
                    self.send_header(name, changed.get(name.lower(), value))
                if self.command != "HEAD":
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    proxy.write(self.wfile, content[:cut])
                if cut is not None:
                    self.close_connection = True

            def reply(self, status, body=b"", **fields):
                send = self.send_response_only if "Date" in fields else self.send_response
                send(status)
                for name, value in fields.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

        self.server = QuietHttpServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def check(self, method, target, headers, body):
        authorization = headers.get("Authorization", "")
        expected = signature_of(method, target, headers, body, self.region) if authorization else "none"
        if not authorization.endswith("Signature=" + expected):
            self.bad_signatures.append((method, target))
        # This machine sees the bodies only; others get them with a hash.
        unsigned = body and not self.signs_bodies
        wanted = "UNSIGNED-PAYLOAD" if unsigned else hashlib.sha256(body).hexdigest()
        if authorization and headers.get("x-amz-content-sha256") != wanted:
            self.bad_signatures.append((method, target, "payload"))
        if headers.get("x-amz-security-token") != (SESSION if self.region == REGION else None):
            self.bad_signatures.append((method, target, "session"))

    def write(self, stream, content):
        for begin in range(0, len(content), 65536):
            stream.write(content[begin:begin + 65536])
            self.sent += len(content[begin:begin + 65536])
            if self.bytes_per_s:
                time.sleep(65536 / self.bytes_per_s)

    def requests(self, method, part=""):
        return [entry for entry in self.log if entry[0] == method and part in entry[1]]

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def error_xml(code):
    return f"<Error><Code>{code}</Code><Message>said {SECRET} {KEY_ID}</Message></Error>".encode()


class ObjectsCase(harness.Case):
    @classmethod
    def setUpClass(cls):
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        cls.moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        cls.moto.start()  # all classes of a process share its buckets
        cls.port = cls.moto._server.server_port
        cls.s3 = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{cls.port}",
                              region_name=REGION, aws_access_key_id=KEY_ID,
                              aws_secret_access_key=SECRET, config=botocore.config.Config(
                                  s3={"addressing_style": "path"}))
        if not cls.s3.list_buckets()["Buckets"]:
            cls.s3.create_bucket(Bucket=BUCKET,
                                 CreateBucketConfiguration={"LocationConstraint": REGION})

    @classmethod
    def tearDownClass(cls):
        cls.moto.stop()

    def setUp(self):
        super().setUp()
        self.proxy = FaultyProxy(self.port)
        self.addCleanup(self.proxy.close)
        self.prefix = f"{type(self).__name__}/{self._testMethodName}"
        self.home = self.path / "home"
        (self.home / ".aws").mkdir(parents=True)

    def tearDown(self):
        # Every request of every test is signed as botocore signs it.
        self.assertEqual(self.proxy.bad_signatures, [])
        # No secret is in a file that the program wrote.
        for path in self.path.rglob("*"):
            if path.is_file() and path.stat().st_size < 8 * MIB:
                content = path.read_bytes()
                self.assertNotIn(SECRET.encode(), content, path)
                self.assertNotIn(SESSION.encode(), content, path)
        super().tearDown()

    def environment(self, **more):
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("AWS_", "GS_", "HF_"))}
        environment.update({"HOME": str(self.home), "HF_HOME": str(self.path / "hf"),
                            "XDG_CACHE_HOME": str(self.path / "cache"),
                            "AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET,
                            "AWS_SESSION_TOKEN": SESSION, "AWS_REGION": REGION,
                            "AWS_ENDPOINT_URL": self.proxy.url, "NO_PROXY": "*"})
        environment.update(more)
        return {name: value for name, value in environment.items() if value is not None}

    def tandem(self, *words, code=0, **more):
        done = subprocess.run([harness.BINARY, *map(str, words)], env=self.environment(**more),
                              capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=PATIENCE_S, cwd=self.path)
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        for secret in (SECRET, SESSION):
            self.assertNotIn(secret, done.stderr + done.stdout)
        return done

    def start(self, *words, **more):
        process = subprocess.Popen([harness.BINARY, *map(str, words)], cwd=self.path,
                                   env=self.environment(**more), stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def put(self, name, content):
        self.s3.put_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}", Body=content)

    def put_model(self, name="model"):
        for file in MODEL_FILES:
            self.put(f"{name}/{file}", (STORIES / file).read_bytes())
        return self.url(name)

    def url(self, name, scheme="s3"):
        return f"{scheme}://{BUCKET}/{self.prefix}/{name}"

    def names(self, below=""):
        pages = self.s3.get_paginator("list_objects_v2").paginate(
            Bucket=BUCKET, Prefix=f"{self.prefix}/{below}")
        return [entry["Key"][len(self.prefix) + 1:] for page in pages
                for entry in page.get("Contents", [])]

    def get(self, name):
        return self.s3.get_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}")["Body"].read()


class Models(ObjectsCase):
    def generate(self, url, **more):
        return self.tandem("run", url, "--max-tokens", "4", "--temperature", "0", "Once", **more)

    def test_a_model_is_fetched_once_and_then_used(self):
        url = self.put_model()

        first = self.generate(url)
        n_bytes = self.proxy.sent
        second = self.generate(url)

        self.assertTrue(first.stdout.strip())
        self.assertEqual(first.stdout, second.stdout)
        self.assertGreater(n_bytes, (STORIES / "model.safetensors").stat().st_size)
        self.assertLess(self.proxy.sent - n_bytes, MIB // 8)  # lists only

    def test_a_changed_file_alone_is_fetched_again(self):
        url = self.put_model()
        self.generate(url)
        self.proxy.log.clear()
        self.put("model/generation_config.json", b'{"max_new_tokens": 7}')

        self.generate(url)

        gets = [target for _, target, _ in self.proxy.requests("GET") if "list-type" not in target]
        self.assertEqual(len(gets), 1, gets)
        self.assertIn("generation_config.json", gets[0])

    def test_offline_and_unreachable_stores_leave_the_cache(self):
        url = self.put_model()
        self.generate(url)

        self.generate(url, HF_HUB_OFFLINE="1")
        self.proxy.hook = lambda handler, _: handler.reply(503) or True
        unreachable = self.generate(url)

        self.assertIn("objects_unreachable", unreachable.stderr)
        failed = self.tandem("run", self.url("other"), "Once", code=1, HF_HUB_OFFLINE="1")
        self.assertIn("HF_HUB_OFFLINE", failed.stderr)

    def test_google_keys_and_endpoint(self):
        self.put_model()
        self.proxy.region = "auto"  # of Google's interface
        self.tandem("run", self.url("model", "gs"), "--max-tokens", "4", "Once",
                    AWS_ENDPOINT_URL=None, AWS_SESSION_TOKEN=None, AWS_ACCESS_KEY_ID=None,
                    AWS_SECRET_ACCESS_KEY=None, GS_ACCESS_KEY_ID=KEY_ID,
                    GS_SECRET_ACCESS_KEY=SECRET, STORAGE_EMULATOR_HOST=self.proxy.url)
        self.assertTrue(self.proxy.log)

    def test_keys_of_a_profile(self):
        (self.home / ".aws" / "credentials").write_text(
            f"[team]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET}\n"
            f"aws_session_token = {SESSION}\n")
        (self.home / ".aws" / "config").write_text(
            f"[profile team]\nregion = {REGION}\nendpoint_url = {self.proxy.url}\n")
        url = self.put_model()
        self.generate(url, AWS_PROFILE="team", AWS_ACCESS_KEY_ID=None, AWS_SESSION_TOKEN=None,
                      AWS_SECRET_ACCESS_KEY=None, AWS_REGION=None, AWS_ENDPOINT_URL=None)
        self.assertTrue(self.proxy.log)
        shutil.rmtree(self.home)  # holds the secret on purpose

    def test_a_profile_signs_bodies(self):
        (self.home / ".aws" / "config").write_text("[default]\ns3 =\n  payload_signing_enabled = true\n")
        self.proxy.signs_bodies = True
        url = self.put_model()
        self.tandem("convert", url, self.url("signed"), "--no-certificate")
        parts = self.proxy.requests("PUT", "model.safetensors")
        self.assertTrue(parts)
        self.assertNotIn("UNSIGNED-PAYLOAD", [headers["x-amz-content-sha256"] for *_, headers in parts])

    def test_signatures_follow_the_clock_of_the_store(self):
        def hook(handler, _):
            ahead = time.gmtime(time.time() + 7200)
            signed = time.strptime(handler.headers["x-amz-date"], "%Y%m%dT%H%M%SZ")
            if abs(calendar.timegm(signed) - calendar.timegm(ahead)) < 900:
                return False
            handler.reply(403, error_xml("RequestTimeTooSkewed"),
                          Date=time.strftime("%a, %d %b %Y %H:%M:%S GMT", ahead))
            return True

        url = self.put_model()
        self.proxy.hook = hook
        done = self.generate(url)
        self.assertIn("objects_clock_skew seconds=7", done.stderr)
        refused = [headers for *_, headers in self.proxy.log
                   if abs(calendar.timegm(time.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ"))
                          - time.time()) < 900]
        self.assertEqual(len(refused), 1)

    def test_missing_objects_and_buckets_are_named(self):
        missing = self.tandem("run", self.url("nothing"), "Once", code=1)
        self.assertIn(f"no object at or below {self.url('nothing')}", missing.stderr)
        bucket = self.tandem("run", "s3://no-such-bucket/model", "Once", code=1)
        self.assertIn("NoSuchBucket", bucket.stderr)


class Faults(ObjectsCase):
    N_BYTES = 40 * MIB

    def setUp(self):
        super().setUp()
        self.content = random.Random(7).randbytes(self.N_BYTES)
        self.put_model()
        self.put("model/padding.safetensors.part", self.content)  # a large file to read

    def fetch(self, code=0, **more):
        return self.tandem("run", self.url("model"), "--max-tokens", "2", "--log-level", "info",
                           "Once", code=code, **more)

    def cached(self):
        return [path for path in (self.path / "hf").rglob("padding.safetensors.part")
                if path.parent.parent.name == "trees"]

    def assert_whole(self):
        (path,) = self.cached()
        self.assertEqual(path.read_bytes(), self.content)

    def test_busy_and_cut_answers_are_repeated(self):
        faults = iter([("status", 503), ("status", 429), ("cut", 100_000), ("cut", 3 * MIB),
                       ("status", 500)])

        def hook(handler, body):
            if handler.command != "GET" or "padding" not in handler.path:
                return False
            kind, value = next(faults, (None, None))
            if kind == "status":
                handler.reply(value, error_xml("SlowDown"), Retry_After="0")
            elif kind == "cut":
                handler.forward(body, cut=value)
            return kind is not None

        self.proxy.hook = hook
        done = self.fetch()
        self.assertIn("objects_retry", done.stderr)
        self.assert_whole()

    def test_a_denied_object_is_named_without_secrets(self):
        self.proxy.hook = lambda handler, _: (handler.reply(403, error_xml("AccessDenied")) or True
                                              ) if "padding" in handler.path else False
        done = self.fetch(code=1)
        self.assertIn("padding.safetensors.part: status 403 AccessDenied", done.stderr)
        self.assertNotIn(KEY_ID, done.stderr)
        self.assertEqual(self.cached(), [])

    def test_an_object_that_changes_during_the_fetch_is_refused(self):
        n_gets = 0

        def hook(handler, body):
            nonlocal n_gets
            if handler.command == "GET" and "padding" in handler.path:
                n_gets += 1
                if n_gets == 3:
                    self.put("model/padding.safetensors.part", self.content[::-1])
            return False

        self.proxy.hook = hook
        done = self.fetch(code=BAD_DATA)
        self.assertIn("changed while it was read", done.stderr)
        self.assertEqual(self.cached(), [])

        self.proxy.hook = None
        self.content = self.content[::-1]
        self.fetch()
        self.assert_whole()

    def test_another_etag_in_an_answer_is_refused(self):
        def hook(handler, body):
            if handler.command != "GET" or "padding" not in handler.path:
                return False
            handler.forward(body, etag='"0123"')
            return True

        self.proxy.hook = hook
        self.assertIn("changed while it was read", self.fetch(code=BAD_DATA).stderr)

    def test_redirects_are_not_followed(self):
        self.proxy.hook = lambda handler, _: handler.reply(
            307, Location="http://127.0.0.1:1/", x_amz_bucket_region="us-west-2") or True
        done = self.fetch(code=1)
        self.assertIn("'us-west-2': set AWS_REGION", done.stderr)

    def test_huge_and_broken_lists_are_refused(self):
        page = b"<ListBucketResult>" + b"<Contents/>" * (3 * MIB) + b"</ListBucketResult>"
        for body, said in ((page, "limit"), (page[:1000], "not valid XML"),
                           (b"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", "not valid XML"),
                           (b"<html></html>", "not a list")):
            self.proxy.hook = lambda handler, _: (handler.reply(200, body) or True
                                                  ) if "list-type" in handler.path else False
            self.assertIn(said, self.fetch(code=BAD_DATA).stderr)

    def test_kill_and_resume(self):
        self.content *= 3  # more segments than connections
        self.put("model/padding.safetensors.part", self.content)
        self.proxy.bytes_per_s = 8 * MIB
        process = self.start("run", self.url("model"), "--max-tokens", "2", "Once")
        end = time.monotonic() + PATIENCE_S
        partials = []
        while not partials and time.monotonic() < end:
            partials = [path for path in (self.path / "hf").rglob("*.incomplete")
                        if size_of(path) > 8 * MIB]
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        (partial,) = partials
        n_there = partial.stat().st_size
        self.assertEqual(partial.read_bytes(), self.content[:n_there])
        self.proxy.bytes_per_s = None
        time.sleep(0.5)  # answers to the killed program end
        self.proxy.sent = 0

        done = self.fetch()

        self.assertIn(f"bytes={n_there}", done.stderr)
        self.assertLess(self.proxy.sent, len(self.content) - n_there + MIB)
        self.assert_whole()


class Conversions(ObjectsCase):
    def test_source_and_target_on_a_store(self):
        url = self.put_model()
        done = self.tandem("convert", url, self.url("out/model-f32"), "--dtype", "f32")

        self.assertEqual(json.loads(done.stdout)["url"], self.url("out/model-f32"))
        names = self.names("out/model-f32")
        self.assertIn("out/model-f32/model.safetensors", names)
        manifest = json.loads(self.get("out/model-f32/tandem-upload.json"))
        self.assertEqual(manifest["state"], "complete")
        # The manifest is the last change.
        puts = [target for method, target, _ in self.proxy.log
                if method in ("PUT", "POST") and "out/" in target]
        self.assertIn("tandem-upload.json", puts[0])
        self.assertIn("tandem-upload.json", puts[-1])
        self.assertFalse(list((self.path / "cache").rglob("*.safetensors")))
        self.tandem("run", self.url("out/model-f32"), "--max-tokens", "2", "Once")

    def test_an_existing_target_is_refused_before_the_work(self):
        url = self.put_model()
        self.put("out/other.txt", b"x")
        done = self.tandem("convert", url, self.url("out"), code=1)
        self.assertIn("--overwrite", done.stderr)
        self.tandem("convert", url, self.url("out"), "--overwrite", "--no-certificate")
        self.assertNotIn("out/other.txt", self.names("out"))
        self.assertIn("out/config.json", self.names("out"))

    def test_a_gguf_file_is_one_object(self):
        url = self.put_model()
        self.tandem("convert", url, self.url("out/model.gguf"), "--to", "gguf", "--no-certificate")
        self.assertEqual(self.names("out"), ["out/model.gguf"])
        self.tandem("run", self.url("out/model.gguf"), "--max-tokens", "2", "Once")
        again = self.tandem("convert", url, self.url("out/model.gguf"), "--to", "gguf", code=1)
        self.assertIn("already exists", again.stderr)

    def test_a_failed_upload_leaves_no_model_and_no_parts(self):
        url = self.put_model()
        self.proxy.hook = lambda handler, _: (
            handler.reply(403, error_xml("AccessDenied")) or True
        ) if handler.command == "PUT" and "model.safetensors" in handler.path else False

        failed = self.tandem("convert", url, self.url("out"), "--no-certificate", code=1)

        self.assertIn("status 403", failed.stderr)
        uploads = self.s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        self.assertEqual([upload["Key"] for upload in uploads], [])
        self.proxy.hook = None
        reader = self.tandem("run", self.url("out"), "Once", code=1)
        self.assertIn("not complete", reader.stderr)
        self.tandem("convert", url, self.url("out"), "--no-certificate")
        self.tandem("run", self.url("out"), "--max-tokens", "2", "Once")


class Runs(ObjectsCase):
    def setUp(self):
        super().setUp()
        self.put_model()
        rows = [json.dumps({"text": f"Row {i}: the cat number {i} sat on the mat. " * 4})
                for i in range(64)]
        self.put("data/train.jsonl", "\n".join(rows).encode())

    def words(self, **more):
        words = {"kind": "train.sft", "run_name": "r1", "base_output_directory": self.url("runs"),
                 "model.load_parameters_path": self.url("model"),
                 "data.train": self.url("data/train.jsonl"), "data.format": "plain",
                 "train.steps": 6, "per_device_batch_size": 1, "max_target_length": 64,
                 "checkpoint.period": 2, "checkpoint.keep": 2}
        words.update(more)
        return [f"{name}={value}" for name, value in words.items()]

    def steps(self):
        return sorted({name.split("/")[3] for name in self.names("runs/r1/checkpoints/")})

    def test_outputs_are_on_the_store_and_complete(self):
        self.tandem("train", *self.words())

        steps = self.steps()
        self.assertEqual(len(steps), 2)
        self.assertTrue(steps[-1].endswith("6"))
        for step in steps:
            manifest = json.loads(self.get(f"runs/r1/checkpoints/{step}/tandem-upload.json"))
            self.assertEqual(manifest["state"], "complete")
        names = self.names("runs/r1")
        self.assertIn("runs/r1/hf/model.safetensors", names)
        self.assertIn("runs/r1/metrics.jsonl", names)
        self.assertIn("runs/r1/result.json", names)
        self.tandem("run", self.url("runs/r1/hf"), "--max-tokens", "2", "Once")

    def test_another_machine_resumes(self):
        self.tandem("train", *self.words())
        straight = self.get("runs/r1/hf/model.safetensors")

        other = {"run_name": "r2"}
        self.tandem("train", *self.words(**other, **{"train.steps": 4}))
        # The other machine has no local files.
        shutil.rmtree(self.path / "cache")
        shutil.rmtree(self.path / "hf")
        done = self.tandem("train", *self.words(**other))

        self.assertIn("resumed after step 4", done.stdout + done.stderr)
        self.assertEqual(len(straight), len(self.get("runs/r2/hf/model.safetensors")))

    def test_an_interrupted_upload_is_no_checkpoint(self):
        self.tandem("train", *self.words(**{"train.steps": 4}))
        newest = self.steps()[-1]
        path = f"runs/r1/checkpoints/{newest}/tandem-upload.json"
        manifest = json.loads(self.get(path))
        manifest["state"] = "uploading"
        self.put(path, json.dumps(manifest).encode())
        shutil.rmtree(self.path / "cache")

        done = self.tandem("train", *self.words())

        self.assertIn("run_checkpoint_skipped", done.stdout + done.stderr)
        self.assertIn("resumed after step 2", done.stdout + done.stderr)

    def test_an_unfinished_later_upload_replaces_no_complete_checkpoint(self):
        self.tandem("train", *self.words(**{"train.steps": 2, "checkpoint.keep": 1}))
        step = self.steps()[-1]
        later = str(int(step) + 7).zfill(len(step))
        self.put(f"runs/r1/checkpoints/{later}/tandem-upload.json", json.dumps(
            {"format": "tandem-upload", "version": 1, "state": "uploading", "files": []}).encode())
        shutil.rmtree(self.path / "cache")

        self.tandem("train", *self.words(**{"train.steps": 4, "checkpoint.keep": 1}))

        newest = str(int(step) + 2).zfill(len(step))
        self.assertEqual(self.steps(), [newest, later])
        manifest = json.loads(self.get(f"runs/r1/checkpoints/{newest}/tandem-upload.json"))
        self.assertEqual(manifest["state"], "complete")

    def test_a_store_that_fails_does_not_end_the_run(self):
        self.proxy.hook = lambda handler, _: (
            handler.reply(403, error_xml("AccessDenied")) or True
        ) if handler.command in ("PUT", "POST") else False
        failed = self.tandem("train", *self.words(), code=1)
        self.assertIn("training continues", failed.stdout + failed.stderr)
        self.assertIn("same command uploads them again", failed.stdout + failed.stderr)
        # A failed upload keeps the files of the newest checkpoint alone.
        kept = [path.name for path in self.path.rglob(".uploads/*") if path.name.isdigit()]
        self.assertEqual(len(kept), 1, kept)
        self.proxy.hook = None
        self.tandem("train", *self.words())
        self.assertIn("runs/r1/hf/model.safetensors", self.names("runs/r1"))
        self.assertTrue(self.steps()[-1].endswith("6"))

    def test_a_kill_during_an_upload(self):
        done = threading.Event()

        def hook(handler, body):
            if handler.command == "PUT" and "checkpoints" in handler.path and len(body) > MIB // 4:
                if not done.is_set():
                    done.set()
                    time.sleep(3)
            return False

        self.proxy.hook = hook
        process = self.start("train", *self.words(**{"train.steps": 40}))
        self.assertTrue(done.wait(PATIENCE_S))
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.proxy.hook = None
        self.tandem("train", *self.words(**{"train.steps": 40}))
        self.assertTrue(self.steps()[-1].endswith("40"))


if __name__ == "__main__":
    harness.main()
