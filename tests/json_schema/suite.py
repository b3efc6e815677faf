#!/usr/bin/env python3
"""Compares the grammars of the JSON-Schema-Test-Suite's schemas with its verdicts.

`suite.py SCHEMA_LINES SUITE_FOLDER [--write]`. `known.json` lists the schemas that are refused and
the verdicts that differ, with reasons. `--write` prints such a list from this run, without reasons.
"""

import itertools
import json
import pathlib
import subprocess
import sys

KNOWN = pathlib.Path(__file__).resolve().parent / "known.json"
MAX_SPELLINGS = 200


def spellings(value):
    """The compact JSON texts of a value: every order of members, and 1.0 also as 1."""
    if isinstance(value, dict):
        members = [[f"{json.dumps(key, ensure_ascii=False)}:{text}" for text in spellings(member)]
                   for key, member in value.items()]
        for order in itertools.permutations(members):
            for texts in itertools.product(*order):
                yield "{" + ",".join(texts) + "}"
    elif isinstance(value, list):
        for texts in itertools.product(*[list(spellings(item)) for item in value]):
            yield "[" + ",".join(texts) + "]"
    else:
        yield json.dumps(value, ensure_ascii=False)
        if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
            yield str(int(value))


def cases(folder):
    """(name of the file and group, schema, tests)"""
    for path in sorted(folder.rglob("*.json")):
        for group in json.loads(path.read_text()):
            name = f"{path.relative_to(folder).with_suffix('')}: {group['description']}"
            yield name, group["schema"], group["tests"]


def main():
    lines, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    groups = list(cases(folder))
    if len(groups) < 300:
        print(f"only {len(groups)} groups in {folder}")
        return 1
    texts = [[list(itertools.islice(spellings(test["data"]), MAX_SPELLINGS)) for test in tests]
             for _, _, tests in groups]
    feed = "".join(json.dumps({"schema": schema, "texts": sum(of_group, [])}) + "\n"
                   for (_, schema, _), of_group in zip(groups, texts))
    answers = [json.loads(line) for line in subprocess.run(
        [str(lines)], input=feed, capture_output=True, text=True, check=True).stdout.splitlines()]
    assert len(answers) == len(groups), f"{len(answers)} answers to {len(groups)} schemas"

    refused, different, n_equal = {}, {}, 0
    for (name, _, tests), of_group, answer in zip(groups, texts, answers):
        if "refused" in answer:
            refused[name] = answer["refused"]
            continue
        held = iter(answer["held"])
        for test, of_test in zip(tests, of_group):
            is_held = any([next(held) for _ in of_test])
            if is_held == test["valid"]:
                n_equal += 1
            else:
                different[f"{name}: {test['description']}"] = (
                    "holds what is invalid" if is_held else "lacks what is valid")
    if sys.argv[3:] == ["--write"]:
        print(json.dumps({"refused": refused, "different": different}, indent=1, ensure_ascii=False))
        return 0

    known = json.loads(KNOWN.read_text())
    faults = []
    for kind, found in (("refused", refused), ("different", different)):
        listed = {name for of_reason in known[kind].values() for name in of_reason}
        faults += [f"{kind}, but not listed: {name} ({found[name]})" for name in sorted(set(found) - listed)]
        faults += [f"listed as {kind}, but is not: {name}" for name in sorted(listed - set(found))]
    for fault in faults:
        print(f"FAILED {fault}")
    print(f"JSON-Schema-Test-Suite: {len(groups)} schemas, {len(refused)} refused; {n_equal} verdicts equal, "
          f"{len(different)} different; {len(faults)} faults")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
