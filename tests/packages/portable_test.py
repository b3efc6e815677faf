#!/usr/bin/env python3
"""The portable program: one file that needs nothing of the system but its kernel.

`portable_test.py BUILD_DIR [unittest arguments]`.
"""

import base64
import http.server
import json
import shutil
import ssl
import struct
import subprocess
import threading
import unittest

import support
from support import ROOT, Case, can_change_root, inside, portable, run

LARGEST_BYTES = 45_000_000
TEXT = ("generate", "-p", "Once upon a time", "--max-tokens", "24")
REPLACED = "X"


def byte_alphabet():
    """The character that spells each byte in a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def charsmap():
    """A precompiled map with one rule: a grapheme that begins with `e` becomes REPLACED."""
    units = [0] * 512
    e = ord("e")
    units[0] = 256 << 10  # children at 256 ^ byte
    units[256 ^ e] = e | 1 << 8 | 1 << 10  # has a value, at its index ^ 1
    units[(256 ^ e) ^ 1] = 1 << 31  # offset 0 of the replacements
    trie = struct.pack(f"<{len(units)}I", *units)
    return base64.b64encode(struct.pack("<I", len(trie)) + trie + REPLACED.encode() + b"\0").decode()


def tokenizer(normalizer):
    """A tokenizer whose ids are the bytes of the normalised text."""
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": normalizer,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                              "use_regex": False},
            "post_processor": None, "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "vocab": {char: byte for byte, char in byte_alphabet().items()}, "merges": []}}


def lines_of_all_characters():
    """JSON strings with every code point of the planes that have characters, each after an `e`."""
    for first in [*range(0, 0x40000, 512), *range(0xE0000, 0xE0200, 512)]:
        yield json.dumps("".join("e" + chr(c) for c in range(first, first + 512) if not 0xD800 <= c < 0xE000))


class File(Case):
    def test_it_names_no_interpreter_and_no_library(self):
        self.assertNotIn("INTERP", run("readelf", "--program-headers", portable()))
        self.assertNotIn("NEEDED", run("readelf", "--dynamic", portable()))

    def test_it_stays_within_45_mb_and_its_symbols_are_in_a_second_file(self):
        self.assertLess(portable().stat().st_size, LARGEST_BYTES)
        self.assertNotIn(".symtab", run("readelf", "--section-headers", portable()))
        self.assertIn("tandem.debug", run("readelf", "--string-dump=.gnu_debuglink", portable()))
        self.assertIn("RunCli", run("nm", support.dist("*-linux-x86_64.debug")))

    def test_it_places_its_code_at_random_addresses_and_has_no_executable_stack(self):
        self.assertIn("DYN", run("readelf", "--file-header", portable()))
        self.assertRegex(run("readelf", "--program-headers", "--wide", portable()), r"GNU_STACK.* RW +0x")

    def test_it_treats_every_character_as_the_ordinary_program_does(self):
        lines = "\n".join(lines_of_all_characters()) + "\n"
        file = self.path / "lines"
        file.write_text(lines)
        for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Precompiled"):
            normalizer = {"type": kind}
            if kind == "Precompiled":
                normalizer["precompiled_charsmap"] = charsmap()
            path = self.path / "tokenizer.json"
            path.write_text(json.dumps(tokenizer(normalizer)))
            encode = ("tokenizer", "encode", "--tokenizer", path, "--json-lines", "--file", file)

            ordinary = run(support.BUILD / "tandem", *encode)

            self.assertEqual(len(ordinary.splitlines()), len(lines.splitlines()), kind)
            self.assertTrue(run(portable(), *encode) == ordinary, f"{kind} differs")
            if kind == "Precompiled":
                # Boundaries of graphemes show in the answer: e with an accent is one, e with a letter is two.
                self.assertEqual(run(portable(), "tokenizer", "encode", "--tokenizer", path, "e\u0301ea").strip(),
                                 ",".join(str(ord(c)) for c in "XXa"))

    def test_a_cpu_without_avx2_is_refused_in_words(self):
        emulator = shutil.which("qemu-x86_64")
        if not emulator:
            self.skipTest("needs qemu-x86_64 (Debian: qemu-user)")
        for program in (portable(), support.BUILD / "tandem"):
            self.assertRegex(run(emulator, "-cpu", "Nehalem", program, "version", code=1),
                             r"this CPU is too old\..* Missing: AVX AVX2 FMA ")


@unittest.skipUnless(can_change_root(), "needs root or user namespaces")
class EmptyRoot(Case):
    def setUp(self):
        super().setUp()
        shutil.copy(portable(), self.path / "tandem")
        self.assertEqual([entry.name for entry in self.path.iterdir()], ["tandem"])

    def test_it_generates_the_text_of_the_ordinary_program(self):
        self.assertEqual(run(*inside(self.path, "/tandem", *TEXT)), run(support.BUILD / "tandem", *TEXT))

    def test_it_answers_a_chat_and_stops_in_order(self):
        server = self.serve(self.path, "/tandem", "--data-dir", "/data")

        self.assertGreater(len(server.chat()), 10)
        self.assertEqual(server.request("GET", "/health")[0], 200)
        self.assertIn("tandem:", server.request("GET", "/metrics")[1])
        self.assertEqual(server.stop(), 0)

    def test_it_finds_names_and_authorities_of_other_distributions(self):
        hub = Hub(self.path)
        self.addCleanup(hub.close)
        etc = self.path / "etc"
        etc.mkdir()
        (etc / "hosts").write_text("127.0.0.1 hub.test\n")
        # Modules that the program does not have.
        (etc / "nsswitch.conf").write_text("hosts: mymachines myhostname\npasswd: sss\n")
        (etc / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HF_ENDPOINT": f"https://hub.test:{hub.port}",
                       "HF_HOME": "/hub"}
        pull = inside(self.path, "/tandem", "pull", "someone/something")

        refused = run(*pull, code=1, env=environment)
        self.assertRegex(refused, "certificate")
        self.assertEqual(hub.paths, [])
        for place in ("etc/pki/tls/certs/ca-bundle.crt", "etc/ssl/cert.pem", "etc/ssl/ca-bundle.pem",
                      "etc/ssl/certs/ca-certificates.crt"):
            file = self.path / place
            file.parent.mkdir(parents=True)
            shutil.copy(hub.certificate, file)
            hub.paths.clear()

            subprocess.run(pull, env=environment, capture_output=True, timeout=support.PATIENCE_S, check=False)

            self.assertNotEqual(hub.paths, [], place)
            shutil.rmtree(self.path / "etc" / place.split("/")[1])


class Hub:
    """An https server named hub.test that has nothing."""

    def __init__(self, path):
        self.certificate = path / "hub.pem"
        key = path / "hub.key"
        run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", "/CN=hub.test", "-addext", "subjectAltName=DNS:hub.test", "-keyout", key, "-out",
            self.certificate)
        self.paths = paths = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                paths.append(self.path)
                self.send_error(404)

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        class Quiet(http.server.ThreadingHTTPServer):
            def handle_error(self, *_):  # a client that does not trust the certificate leaves
                pass

        self.server = Quiet(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


if __name__ == "__main__":
    support.main()
