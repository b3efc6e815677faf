#!/usr/bin/env python3
"""Answers of a random model at temperature 1.5 under random schemas, checked with `jsonschema`.

`random_schemas.py BINARY NUMBER_OF_SCHEMAS SEED`
"""

import decimal
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import jsonschema

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

import harness  # noqa: E402

# Shares of the answers that must have finished: a test of unfinished answers proves nothing.
LEAST_FINISHED = 0.8
STREAMS = 16
PATTERNS = ["^[a-z]{2,6}$", "^(ab|cd)+e?$", "[0-9]{3}", "^\\d{1,3}-[A-F]+$", "^x", "y$", "^[^a-z]{0,5}$", "^\\w+ \\w+$"]
FORMATS = ["date", "ipv4", "ipv6", "uuid", "email"]
NAMES = ["a", "b", "name", "size", "kind of", "ä", "list", "quote\"", "x1", "next"]


class Maker:
    def __init__(self, source):
        self.source = source
        self.definitions = {}

    def schema(self, depth=3):
        makers = [self.scalar, self.scalar, self.choice]
        if depth > 0:
            makers += [self.array, self.object, self.object, self.union, self.merged, self.reference]
        return self.source.choice(makers)(depth)

    def scalar(self, _):
        return self.source.choice([self.string, self.string, self.integer, self.number,
                                   lambda: {"type": "boolean"}, lambda: {"type": "null"},
                                   lambda: {"type": ["integer", "null"]}])()

    def string(self):
        if self.source.random() < 0.3:
            return {"type": "string", "pattern": self.source.choice(PATTERNS), "maxLength": 12}
        if self.source.random() < 0.2:
            return {"type": "string", "format": self.source.choice(FORMATS)}
        least = self.source.randrange(4)
        return {"type": "string", "minLength": least, "maxLength": least + self.source.randrange(10)}

    def integer(self):
        low = self.source.randrange(-1000, 1000)
        return {"type": "integer", **self.some(
            minimum=low, maximum=low + self.source.randrange(20, 3000),
            multipleOf=self.source.choice([1, 2, 3, 7]))}

    def number(self):
        low = self.source.choice([-12.5, -1, 0, 0.1, 3.75])
        bounds = self.source.choice([("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")])
        return {"type": "number", **self.some(
            **{bounds[0]: low, bounds[1]: low + self.source.choice([0.5, 10, 1e6])})}

    def some(self, **keywords):
        return {name: value for name, value in keywords.items() if self.source.random() < 0.5}

    def choice(self, _):
        values = [1, -2.5, "a", "b \\ \"", "\n", "é", True, None, [], [1, {"a": None}], {"k": "v"}, {}]
        if self.source.random() < 0.3:
            return {"const": self.source.choice(values)}
        return {"enum": self.source.sample(values, self.source.randrange(1, 5))}

    def array(self, depth):
        most = self.source.randrange(1, 4)
        out = {"type": "array", "maxItems": most, **self.some(minItems=self.source.randrange(most + 1))}
        if self.source.random() < 0.3:
            out["prefixItems"] = [self.schema(depth - 1) for _ in range(most)]
            if self.source.random() < 0.5:
                out["items"] = False
                return out
        out["items"] = self.schema(depth - 1)
        return out

    def object(self, depth):
        names = self.source.sample(NAMES, self.source.randrange(1, 4))
        out = {"type": "object", "properties": {name: self.schema(depth - 1) for name in names},
               "required": [name for name in names if self.source.random() < 0.6],
               "additionalProperties": False}
        more = self.source.random()
        if more < 0.35:
            # The grammar counts members only where all names are required.
            out["required"] = names
            out["maxProperties"] = len(names) + 1
            if more < 0.2:
                out["additionalProperties"] = self.scalar(0)
            else:
                out["patternProperties"] = {"^p[0-9]$": self.scalar(0)}
        return out

    def union(self, depth):
        if self.source.random() < 0.5:
            return {"anyOf": [self.schema(depth - 1) for _ in range(self.source.randrange(1, 4))]}
        # The branches of oneOf exclude each other, because the grammar reads it as anyOf.
        branches = [self.string(), self.integer(), {"type": "null"}, {"type": "boolean"}]
        return {"oneOf": self.source.sample(branches, self.source.randrange(1, 4))}

    def merged(self, depth):
        names = self.source.sample(NAMES, 4)
        return {"allOf": [{"type": "object", "properties": {name: self.schema(0) for name in names[i:i + 2]},
                           "required": names[i:i + 2]} for i in (0, 2)],
                "maxProperties": 4} if depth > 1 else self.object(depth)

    def reference(self, depth):
        name = f"d{len(self.definitions)}"
        self.definitions[name] = True
        if self.source.random() < 0.5:
            self.definitions[name] = self.schema(depth - 1)
        else:
            self.definitions[name] = {
                "type": "object", "additionalProperties": False, "required": ["value"],
                "properties": {"value": self.scalar(0),
                               "next": {"anyOf": [{"type": "null"}, {"$ref": f"#/$defs/{name}"}]}}}
        return {"$ref": f"#/$defs/{name}"}


def make(seed):
    maker = Maker(random.Random(seed))
    schema = maker.schema()
    if maker.definitions:
        schema["$defs"] = maker.definitions
    return schema


def make_model(binary, folder):
    """A model of random weights with a tokenizer of bytes and a few words."""
    base = harness.GOLDEN / "gemma2-tiny"
    folder.mkdir()
    shutil.copy(base / "model.safetensors", folder)
    config = json.loads((base / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(dict(config, max_position_embeddings=512)))
    corpus = folder.parent / "corpus.txt"
    corpus.write_text('{"name": "a", "size": 12, "list": [true, false, null]}\n' * 20)
    special = [word for token in ("<pad>", "<eos>", "<bos>") for word in ("--special", token)]
    subprocess.run([binary, "tokenizer", "train", corpus, "--vocab-size", "300", *special,
                    "-o", folder / "tokenizer.json"], check=True, capture_output=True)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))


def ask(server, schema, i):
    """[(text, finish_reason)] of every choice, or why there is no answer. The ways of asking alternate."""
    n = 2 if i % 5 == 0 else 1
    body = {"model": "tuned" if i % 2 else "random", "prompt": "x", "temperature": 1.5, "max_tokens": 250, "seed": i,
            "n": n, "logprobs": 2 if i % 3 == 0 else None,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}
    if i % 4 == 0:
        try:
            events, is_done = server.stream("/v1/completions", body)
        except AssertionError as refusal:
            return str(refusal)
        if not is_done:
            return "the stream has no end"
        texts, reasons = [""] * n, [None] * n
        for choice in (choice for event in events for choice in event["choices"]):
            texts[choice["index"]] += choice["text"]
            reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
        return list(zip(texts, reasons))
    status, _, answer = server.request("POST", "/v1/completions", body)
    if status != 200:
        return f"status {status}: {answer}"
    return [(choice["text"], choice["finish_reason"]) for choice in answer["choices"]]


def fault_of(answer, schema):
    """Why a finished answer is wrong, or None."""
    try:
        # Decimals: as a double, a number just below a bound may equal it.
        value = json.loads(answer, parse_float=decimal.Decimal)
    except ValueError as error:
        return f"is no JSON: {error}"
    validator = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    error = next(validator.iter_errors(value), None)
    return error and f"is invalid: {error.message}"


def main():
    binary, n_schemas, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    harness.BINARY = binary
    schemas = [make(seed * 1_000_000 + i) for i in range(n_schemas)]
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        make_model(binary, scratch / "model")
        # The adapter is a random one too.
        server = harness.Server(scratch, "--model", f"random={scratch / 'model'}",
                                "--adapter", f"tuned={harness.GOLDEN / 'gemma2-tiny' / 'lora'}")
        with ThreadPoolExecutor(STREAMS) as pool:
            answers = list(pool.map(lambda i: ask(server, schemas[i], i), range(n_schemas)))
        code = server.stop()

    faults, n_finished = [], 0
    for i, answer in enumerate(answers):
        if isinstance(answer, str):
            faults.append((i, answer))
            continue
        n_finished += all(reason == "stop" for _, reason in answer)
        for text, reason in answer:
            fault = fault_of(text, schemas[i]) if reason == "stop" else None
            if fault:
                faults.append((i, f"{text!r} {fault}"))
    for i, fault in faults:
        print(f"FAILED schema {i}: {json.dumps(schemas[i])}: {fault}")
    print(f"random schemas, seed {seed}: {n_schemas} schemas, {n_finished} answers finished, {len(faults)} faults")
    if n_finished < LEAST_FINISHED * n_schemas:
        print("FAILED too few answers finished")
        return 1
    return int(bool(faults) or code != 0)


if __name__ == "__main__":
    sys.exit(main())
