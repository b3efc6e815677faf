"""`compare.py TANDEM STRINGS SEED [NAME]...`: see README.md. `run` starts it, with the libraries."""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

import cases
import texts

SHOWN = 3


def tandem(binary, verb, path, lines, *flags):
    done = subprocess.run([binary, "tokenizer", verb, "--json-lines", "-t", str(path), *flags],
                          input="".join(line + "\n" for line in lines).encode(),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr.decode()[-300:]}")
    return done.stdout.decode().split("\n")[:-1]


def show(what, text, ours, theirs):
    print(f"  {what} of {json.dumps(text)}\n    tandem  {ours}\n    library {theirs}")


def differences(binary, case, strings, seed):
    """The number of strings with different results; prints the first few."""
    wrong = 0
    ours = tandem(binary, "encode", case.path, [json.dumps(text) for text in strings],
                  *case.encode_flags)
    assert len(ours) == len(strings), f"{len(ours)} lines for {len(strings)} strings"
    all_ids = []
    for text, line in zip(strings, ours):
        ids = [int(token) for token in line.split(",")] if line else []
        expected = case.encode(text)
        all_ids.append(expected)
        if ids != expected:
            wrong += 1
            if wrong <= SHOWN:
                show("ids", text, ids, expected)
    rng = random.Random(seed)
    lists = all_ids[:]
    if case.random_ids:
        lists += [[rng.randrange(case.vocab_size) for _ in range(rng.randrange(1, 12))]
                  for _ in range(len(strings) // 10)]
    decoded = tandem(binary, "decode", case.path, [",".join(map(str, ids)) for ids in lists],
                     *case.decode_flags)
    for ids, line in zip(lists, decoded):
        text, expected = json.loads(line), case.decode(ids)
        if text != expected:
            wrong += 1
            if wrong <= SHOWN:
                show("text", ids, json.dumps(text), json.dumps(expected))
    return wrong


def main():
    binary, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    only = sys.argv[4:]
    failed, compared = [], 0
    with tempfile.TemporaryDirectory() as scratch:
        for make in cases.all_cases(pathlib.Path(scratch)):
            if only and not any(name in make.name for name in only):
                continue
            case = make()
            strings = texts.random_texts(count, seed, case.extra)
            try:
                wrong = differences(binary, case, strings, seed)
            except RuntimeError as fault:
                print(f"  {fault}")
                wrong = len(strings)
            compared += 1
            print(f"{'ok' if wrong == 0 else 'DIFFERS':8} {make.name}"
                  + (f": {wrong} of {len(strings)}" if wrong else ""), flush=True)
            if wrong:
                failed.append(make.name)
    print(f"{compared} tokenizers, {count} strings each: {len(failed)} differ")
    return 1 if failed or compared == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
