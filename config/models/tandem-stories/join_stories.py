#!/usr/bin/env python3
"""Cleans collections of stories for the second stage of the embedded model (second_stage.yaml).

usage: join_stories.py HELD_OUT IN OUT [IN OUT]...

Each file holds stories separated by lines with `<|endoftext|>`. A story of IN goes to OUT unless

- it shares a run of 20 words with a story of HELD_OUT,
- earlier stories of any IN have more than three tenths of its 20-word runs,
- or it is damaged: outside 40 to 800 words, with foreign letters, or without an end.

Quotation marks become plain, and blank lines go. The counts are printed.
"""

import re
import sys

RUN = 20
MOST_KNOWN = 0.3
PLAIN = {"\u2019": "'", "\u2018": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "-",
         "\u2026": "...", "\r": ""}


def stories(path):
    with open(path, encoding="utf-8") as file:
        for text in file.read().split("<|endoftext|>"):
            for foreign, plain in PLAIN.items():
                text = text.replace(foreign, plain)
            text = re.sub(r"[ \t]+", " ", text)
            text = re.sub(r"\s*\n\s*", "\n", text).strip()
            if text:
                yield text


def runs(text):
    said = re.findall(r"[a-z0-9']+", text.lower())
    return [hash(tuple(said[i:i + RUN])) for i in range(len(said) - RUN + 1)]


def damaged(text):
    return (not 40 <= len(re.findall(r"[a-z0-9']+", text.lower())) <= 800
            or not text.isascii() or text[-1] not in ".!?\"'")


def main():
    held_out_path, *paths = sys.argv[1:]
    held_out = {run for text in stories(held_out_path) for run in runs(text)}
    known = set()
    for source, target in zip(paths[::2], paths[1::2], strict=True):
        counts = {"kept": 0, "held out": 0, "known": 0, "damaged": 0}
        with open(target, "w", encoding="utf-8") as out:
            for text in stories(source):
                found = runs(text)
                if damaged(text):
                    fate = "damaged"
                elif any(run in held_out for run in found):
                    fate = "held out"
                elif sum(run in known for run in found) > MOST_KNOWN * len(found):
                    fate = "known"
                else:
                    fate = "kept"
                    known.update(found)
                    out.write(text + "\n<|endoftext|>\n")
                counts[fate] += 1
        print(target, counts)


main()
