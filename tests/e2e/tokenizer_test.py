#!/usr/bin/env python3
"""End-to-end tests of `tandem tokenizer`: its files, flags and errors.

`tokenizer_test.py BINARY [unittest arguments]`.
"""

import base64
import json
import pathlib
import subprocess
import tempfile
import unittest

import harness
from harness import ROOT

STORIES = ROOT / "config" / "models" / "tandem-stories" / "tokenizer.json"

WORDS = {"post_processor": {"type": "BertProcessing", "cls": ["[CLS]", 1], "sep": ["[SEP]", 2]},
         "pre_tokenizer": {"type": "Whitespace"},
         "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False},
         "model": {"type": "WordPiece", "unk_token": "[UNK]", "max_input_chars_per_word": 100,
                   "vocab": {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "the": 3, "dog": 4, "##s": 5}}}


class Tokenizer(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_it(self, *arguments, text="", code=0):
        done = subprocess.run([harness.BINARY, "tokenizer", *map(str, arguments)], input=text.encode(),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        self.assertEqual(done.returncode, code, done.stderr.decode())
        return (done.stderr if code else done.stdout).decode()

    def words(self, **changes):
        path = self.folder / "tokenizer.json"
        path.write_text(json.dumps({**WORDS, **changes}))
        return path

    def test_one_text_and_many_give_the_same_ids(self):
        texts = ["Once upon a time", "", "two\nlines", "\"quoted\" \\ naïve 😂"]
        lines = self.run_it("encode", "-t", STORIES, "--json-lines",
                            text="\n".join(json.dumps(text) for text in texts)).split("\n")[:-1]
        self.assertEqual(len(lines), len(texts))
        for text, line in zip(texts, lines):
            self.assertEqual(self.run_it("encode", "-t", STORIES, text=text), line + "\n")
        decoded = self.run_it("decode", "-t", STORIES, "--json-lines", text="\n".join(lines) + "\n")
        self.assertEqual([json.loads(line) for line in decoded.split("\n")[:-1]], texts)

    def test_what_stands_around_a_text_is_added_on_request(self):
        path = self.words()
        self.assertEqual(self.run_it("encode", "-t", path, "the dogs"), "3,4,5\n")
        self.assertEqual(self.run_it("encode", "-t", path, "--surround", "the dogs"), "1,3,4,5,2\n")
        self.assertEqual(self.run_it("decode", "-t", path, "3,4,5,3"), "the dogs the\n")

    def test_ranks_are_read_as_the_configuration_says(self):
        ranks = [bytes([byte]) for byte in range(256)] + [b"ab", b"12", b"123"]
        (self.folder / "qwen.tiktoken").write_bytes(
            b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(ranks)))
        for where in (self.folder, self.folder / "qwen.tiktoken"):
            (self.folder / "config.json").write_text("{}")
            error = self.run_it("encode", "-t", where, "ab", code=1)
            self.assertIn("tokenizer_class", error)
            for model, ids in (("qwen", "256,49,50,51\n"), ("llama", "256,258\n")):
                (self.folder / "config.json").write_text(json.dumps({"model_type": model}))
                self.assertEqual(self.run_it("encode", "-t", where, "ab123"), ids)

    def test_errors_name_the_file_and_the_part(self):
        path = self.words(decoder={"type": "CTC"})
        self.assertIn(f"{path}: decoder.type 'CTC' is not supported",
                      self.run_it("encode", "-t", path, "x", code=1))
        (self.folder / "tokenizer.model").write_bytes(b"\x0a\xff\xff\xff\xff\x07")
        self.assertIn("tokenizer.model: byte 6 of the model contains a field of",
                      self.run_it("encode", "-t", self.folder / "tokenizer.model", "x", code=65))
        self.assertIn("has no tokenizer",
                      self.run_it("encode", "-t", self.folder / "..", "x", code=1))
        for text, name in (("7\n", "JSON string"), ("\"a\n", "JSON string")):
            self.assertIn(name, self.run_it("encode", "-t", self.words(), "--json-lines", text=text,
                                            code=2))
        self.assertIn("[0, 5]", self.run_it("decode", "-t", self.words(), "9", code=2))


if __name__ == "__main__":
    harness.main()
