#!/usr/bin/env python3
"""Compares `tandem bench objects` with curl on the same local server.

`objects.py BINARY [--files 2] [--file-mib 256] [--connections 8] [--rounds 3] [--dir DIR] [--moto]`

The server keeps objects as files and answers as S3 does: ranges, ETags, multipart uploads. It sends
with sendfile and checks no signature. With --moto it is moto, which must be importable. curl reads
ranges and writes parts of 8 MiB, as tandem does, with as many transfers at once and signed requests
(--aws-sigv4). The target: tandem reads at 80 % of curl's rate or more and writes at 70 % or more.
"""

import argparse
import hashlib
import http.server
import os
import pathlib
import re
import shutil
import socketserver
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request

MIB = 1 << 20
SEGMENT = 8 * MIB
PART = 8 * MIB
KEYS = {"AWS_ACCESS_KEY_ID": "benchkey", "AWS_SECRET_ACCESS_KEY": "benchsecret",
        "AWS_REGION": "us-east-1"}


class Store(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 256


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    folder = None

    def log_message(self, *_):
        pass

    def parts(self):
        path, _, query = self.path.partition("?")
        name = hashlib.sha256(path.encode()).hexdigest()
        return self.folder / name, dict(urllib.parse.parse_qsl(query, keep_blank_values=True))

    def answer(self, status, body=b"", **fields):
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self):
        path, _ = self.parts()
        if not path.exists():
            return self.answer(404)
        self.send_response(200)
        self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
        self.send_header("Content-Length", str(path.stat().st_size))
        self.end_headers()

    def do_GET(self):
        path, _ = self.parts()
        size = path.stat().st_size
        first, last = 0, size - 1
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if match:
            first, last = int(match[1]), min(int(match[2]), size - 1)
        self.send_response(206 if match else 200)
        self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
        if match:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        self.wfile.flush()
        with open(path, "rb") as file:
            self.connection.sendfile(file, first, last + 1 - first)

    def receive(self, path):
        """Writes the body to the file."""
        left = int(self.headers.get("Content-Length", 0))
        buffer = bytearray(MIB)
        view = memoryview(buffer)
        with open(path, "wb", buffering=0) as file:
            while left > 0:
                n = self.rfile.readinto1(view[:min(left, MIB)])
                if n == 0:
                    raise ConnectionError("the client went away")
                file.write(view[:n])
                left -= n

    def do_PUT(self):
        path, query = self.parts()
        if self.headers.get("Expect") == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        number = int(query.get("partNumber", 0))
        self.receive(path if number == 0 else path.with_suffix(f".{number:05}"))
        self.answer(200, ETag='"part"')

    def do_POST(self):
        path, query = self.parts()
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "uploads" in query:
            return self.answer(200, b"<Result><UploadId>1</UploadId></Result>")
        # S3 does not copy the parts either: this joins them without reading them again if it can.
        with open(path, "wb") as file:
            for part in sorted(path.parent.glob(path.name + ".*")):
                with open(part, "rb") as source:
                    left = part.stat().st_size
                    while left > 0:
                        left -= os.sendfile(file.fileno(), source.fileno(), None, left)
                part.unlink()
        self.answer(200, b"<CompleteMultipartUploadResult/>")

    def do_DELETE(self):
        self.parts()[0].unlink(missing_ok=True)
        self.answer(204)


def curl(words, config, connections, folder):
    path = folder / "curl.txt"
    path.write_text(config)
    begin = time.monotonic()
    subprocess.run(["curl", "-sS", "--fail", "--http1.1", "-Z", "--parallel-immediate",
                    "--no-progress-meter", "--parallel-max", str(connections), "--aws-sigv4", "aws:amz:us-east-1:s3",
                    "--user", "benchkey:benchsecret", *words, "-K", str(path)],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - begin


class OwnServer:
    """Handler, and what a client does around the parts of an upload."""

    def __init__(self, folder):
        Handler.folder = folder / "store"
        Handler.folder.mkdir()
        server = Store(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        self.address = f"http://127.0.0.1:{server.server_address[1]}"

    def begin(self, url):
        return "1"

    def finish(self, url, upload):
        request("POST", f"{url}?uploadId={upload}")


class Moto:
    def __init__(self, _):
        import logging
        from moto.server import ThreadedMotoServer
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        self.address = f"http://127.0.0.1:{server._server.server_port}"
        request("PUT", self.address + "/bench")

    def begin(self, url):
        return re.search("<UploadId>(.*?)</UploadId>", request("POST", url + "?uploads"))[1]

    def finish(self, url, upload):
        parts = re.findall("<PartNumber>(.*?)</PartNumber>.*?<ETag>(.*?)</ETag>",
                           request("GET", f"{url}?uploadId={upload}"), re.DOTALL)
        request("POST", f"{url}?uploadId={upload}", "<CompleteMultipartUpload>" + "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
            for number, etag in parts) + "</CompleteMultipartUpload>")


def request(method, url, body=""):
    wanted = urllib.request.Request(url, body.encode(), {"Content-Type": "application/xml"}, method=method)
    with urllib.request.urlopen(wanted) as answer:
        return answer.read().decode()


def curl_rates(server, options, folder):
    """MiB/s of writing and of reading, of one round."""
    url = server.address + "/bench"
    total = options.files * options.file_mib
    n_parts = -(-options.file_mib * MIB // PART)
    part = folder / "part"
    part.write_bytes(os.urandom(min(PART, options.file_mib * MIB)))
    uploads = [server.begin(f"{url}/curl-{i}") for i in range(options.files)]
    config = "".join(f'upload-file = "{part}"\n'
                     f'url = "{url}/curl-{i}?partNumber={n + 1}&uploadId={uploads[i]}"\n'
                     for i in range(options.files) for n in range(n_parts))
    seconds = curl([], config, options.connections, folder)
    begin = time.monotonic()
    for i in range(options.files):
        server.finish(f"{url}/curl-{i}", uploads[i])
    seconds += time.monotonic() - begin
    segments = [(i, begin) for i in range(options.files)
                for begin in range(0, options.file_mib * MIB, SEGMENT)]
    config = "next\n".join(
        f'url = "{url}/curl-{i}"\nrange = "{begin}-{begin + SEGMENT - 1}"\n'
        f'output = "{folder}/out-{i}-{begin}"\nuser = "benchkey:benchsecret"\n'
        f'aws-sigv4 = "aws:amz:us-east-1:s3"\nfail\nsilent\nhttp1.1\n' for i, begin in segments)
    read = total / curl([], config, options.connections, folder)
    for path in folder.glob("out-*"):
        path.unlink()
    return total / seconds, read


def tandem_rates(address, options, folder):
    done = subprocess.run(
        [options.binary, "bench", "objects", "s3://bench/files", "--dir", folder / "tandem",
         "--files", str(options.files), "--file-mib", str(options.file_mib),
         "--connections", str(options.connections), "--rounds", "1"],
        env=dict(os.environ, AWS_ENDPOINT_URL=address, NO_PROXY="*", **KEYS),
        capture_output=True, text=True, check=True)
    return tuple(float(re.search(rf"{name}\s+(\d+) MiB/s", done.stdout)[1])
                 for name in ("written", "read"))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--files", type=int, default=2)
    parser.add_argument("--file-mib", type=int, default=256)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("/dev/shm"),
                        help="where server and clients keep their files")
    parser.add_argument("--moto", action="store_true", help="measure against moto")
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(dir=options.dir))
    try:
        server = (Moto if options.moto else OwnServer)(folder)
        rounds = []
        for _ in range(options.rounds):  # in turns: other load of the machine meets both
            rounds.append(tandem_rates(server.address, options, folder)
                          + curl_rates(server, options, folder))
        print(f"{options.files} files of {options.file_mib} MiB, {options.connections} connections, "
              f"medians of {options.rounds} rounds")
        for name, ours, theirs in (("written", 0, 2), ("read", 1, 3)):
            print(f"{name}: tandem {statistics.median(r[ours] for r in rounds):.0f} MiB/s, "
                  f"curl {statistics.median(r[theirs] for r in rounds):.0f}, ratio "
                  f"{statistics.median(r[ours] / r[theirs] for r in rounds):.2f} "
                  f"({', '.join(f'{r[ours] / r[theirs]:.2f}' for r in rounds)})")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
