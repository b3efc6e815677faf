"""`compare.py TEMPLATE_LINES COUNT SEED [FOLDER]...`: see README.md. `run` starts it, with Jinja2.

COUNT snippets are rendered once each; the templates of the folders share COUNT random chats.
"""

import json
import pathlib
import random
import re
import subprocess
import sys
import time

import chats
import snippets
from reference import Reference

SHOWN = 20
GOOD = ("equal", "both refuse", "lenient", "too large")
POSITION = re.compile(r"^chat template line \d+, column \d+: ")


def ours(program, cases):
    done = subprocess.run([program], input="".join(json.dumps(case) + "\n" for case in cases).encode(),
                          stdout=subprocess.PIPE, check=True)
    answers = [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]
    assert len(answers) == len(cases), f"{len(answers)} answers to {len(cases)} chats"
    return answers


def verdict(mine, theirs):
    """equal, both refuse, lenient (only Jinja refuses), too large, or the difference."""
    if "text" in theirs and "does not fit into 64 bits" in mine.get("error", ""):
        return "too large"
    if "text" in theirs:
        if "text" not in mine:
            return "refused here, at " + mine["stage"]
        return "equal" if mine["text"] == theirs["text"] else "text differs"
    if "rejected" in theirs:
        if "text" in mine:
            return "not rejected here"
        return "equal" if mine["error"] == theirs["rejected"] else "rejected with other words"
    return "lenient" if "text" in mine else "both refuse"


def show(case, what, mine, theirs):
    template = case["template"].removeprefix(snippets.PRELUDE)
    if case["name"].startswith("snippet"):
        print(f"  {what}: {case['name']}: {template}")
    else:
        print(f"  {what}: {case['name']}")
    one, other = mine.get("text"), theirs.get("text")
    if one is not None and other is not None:
        same = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
        mine, theirs = ({"text": f"…{text[max(0, same - 40):same + 60]}…"} for text in (one, other))
    for side, answer in (("tandem", mine), ("jinja2", theirs)):
        print(f"    {side} {json.dumps(answer, ensure_ascii=False)[:300]}")


def compare(name, program, cases):
    reference = Reference()
    started = time.monotonic()
    counts, shown = {}, set()
    for case, mine in zip(cases, ours(program, cases)):
        theirs = reference.render(case)
        what = verdict(mine, theirs)
        counts[what] = counts.get(what, 0) + 1
        # Shows only the first of equal faults.
        kind = POSITION.sub("", mine.get("error", "")) or (what, counts[what])
        if what not in GOOD and kind not in shown and (mine.get("error") or counts[what] <= SHOWN):
            shown.add(kind)
            show(case, what, mine, theirs)
    wrong = sum(count for what, count in counts.items() if what not in GOOD)
    print(f"{'ok' if wrong == 0 else 'DIFFERS':8} {name}: {len(cases)} rendered in {time.monotonic() - started:.1f} s; "
          + ", ".join(f"{count} {what}" for what, count in sorted(counts.items())), flush=True)
    return wrong


def snippet_cases(count, rng):
    for i in range(count):
        chat = chats.chat(rng)
        while not chat["messages"]:
            chat = chats.chat(rng)
        yield dict(chat, name=f"snippet {i}", template=snippets.Maker(rng).template())


def file_cases(files, count, rng):
    # In the order of the templates, so that each is compiled once.
    for index, path in enumerate(files):
        template = path.read_text()
        for i in range(count * index // len(files), count * (index + 1) // len(files)):
            yield dict(chats.chat(rng), name=f"{path.name}, chat {i}", template=template)


def main():
    program, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    wrong = compare("generated templates", program, list(snippet_cases(count, random.Random(seed))))
    for folder in map(pathlib.Path, sys.argv[4:]):
        files = sorted(folder.glob("*.jinja"))
        if not files:
            print(f"skipped  {folder}: no templates there")
            continue
        cases = list(file_cases(files, count, random.Random(seed)))
        wrong += compare(f"{len(files)} templates of {folder.name}", program, cases)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
