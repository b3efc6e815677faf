#!/usr/bin/env python3
"""Evaluates the embedded model, in numbers and in samples.

usage: evaluate.py URL TRAINING_TEXT > samples.md

Asks a running server for 100 stories at temperature 0.7 (seeds 0..99, one request each, unselected)
and prints the share of 20-word runs that occur in the training text, the share of stories with a
requested word, and the first twenty stories.
"""

import json
import re
import sys
import urllib.request

WISHES = ["a dog", "a cat and a ball", "a brave princess", "a little car", "the rain", "a big tree",
          "a bird who can not fly", "two friends at the beach", "a lost toy", "a birthday cake",
          "a frog", "a boy and his grandma", "the moon", "a red boat", "a lion in the forest",
          "a girl named Lily", "a rabbit and a carrot", "snow", "a bear who was hungry", "a magic box"]
RUN = 20


def words(text):
    return re.findall(r"[a-z0-9']+", text.lower())


def ask(url, wish, seed):
    body = {"model": "tandem-stories", "temperature": 0.7, "seed": seed, "max_tokens": 400,
            "messages": [{"role": "user", "content": f"Tell me a story about {wish}."}]}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        choice = json.load(answer)["choices"][0]
    return choice["message"]["content"], choice["finish_reason"]


def main():
    url, training = sys.argv[1:]
    with open(training, encoding="utf-8") as file:
        corpus = file.read().split("<|endoftext|>")
    runs = set()
    for text in corpus:
        w = words(text)
        runs.update(hash(tuple(w[i:i + RUN])) for i in range(len(w) - RUN + 1))

    stories = [(WISHES[seed % len(WISHES)], *ask(url, WISHES[seed % len(WISHES)], seed))
               for seed in range(100)]
    copied = total = kept = ended = 0
    for wish, text, reason in stories:
        w = words(text)
        total += max(0, len(w) - RUN + 1)
        copied += sum(hash(tuple(w[i:i + RUN])) in runs for i in range(len(w) - RUN + 1))
        asked = [x for x in words(wish) if x not in ("a", "and", "the", "who", "can", "not", "in", "at",
                                                     "his", "was", "named", "two", "big", "little")]
        kept += any(x in w or x.rstrip("s") in w for x in asked)
        ended += reason == "stop"

    print("# Twenty unselected stories\n")
    print("Temperature 0.7, seeds 0 to 19, written by `evaluate.py`. Of all 100 stories (seeds 0 to 99):")
    print(f"{100 * copied / max(1, total):.1f} % of {total} runs of {RUN} words stand in the training "
          f"text, {kept} mention a word that was asked for, {ended} end by themselves within 400 tokens.\n")
    for seed, (wish, text, reason) in enumerate(stories[:20]):
        print(f"## {seed}. A story about {wish}\n")
        for paragraph in text.strip().split("\n"):
            print(f"{paragraph}\n")
        if reason != "stop":
            print("(cut at 400 tokens)\n")


main()
