#!/usr/bin/env python3
"""Makes chats of stories, for the second stage of the embedded model (second_stage.yaml).

usage: make_chats.py STORIES SEED > chats.jsonl

STORIES holds stories separated by lines with `<|endoftext|>`. Each becomes one chat: the user asks for
a story about one to three of its words, the assistant tells it. The words are the story's subjects:
used at least twice or in the first sentences, and rare elsewhere (tf-idf). Names count; words that the
chat template leaves out do not.
"""

import json
import math
import pathlib
import random
import re
import sys

TEMPLATE = pathlib.Path(__file__).with_name("chat_template.jinja")
REQUESTS = ["Tell me a story about {}.", "Write a short story about {}.", "A story about {}.",
            "Please tell me a tale about {}!", "Can you write a story with {}?",
            "I want a story about {}.", "Tell a story that includes {}."]
OPENING_CHARACTERS = 250
BEST = 5


def ignored_words():
    text = TEMPLATE.read_text(encoding="utf-8")
    listed = text[text.index("stop_words = [") + 14:text.index("] -%}")]
    return {word.replace("\\'", "'") for word in re.findall(r"'((?:[^'\\]|\\.)*)'", listed)}


def words(text):
    return re.findall(r"[a-z]+(?:'[a-z]+)?", text.lower().replace("\u2019", "'").replace("'s", " "))


def subjects(story, documents, total, ignored):
    """The words that characterise the story, best first."""
    said = words(story)
    opening = set(words(story[:OPENING_CHARACTERS]))
    counts = {word: said.count(word) for word in set(said)}
    scores = {word: count * math.log(total / documents[word]) for word, count in counts.items()
              if word not in ignored and len(word) > 2 and documents[word] > 2
              and (count > 1 or word in opening)}
    return sorted(scores, key=lambda word: (-scores[word], word))[:BEST]


def main():
    path, seed = sys.argv[1:]
    draw = random.Random(int(seed))
    text = pathlib.Path(path).read_text(encoding="utf-8")
    stories = [story.strip() for story in text.split("<|endoftext|>") if story.strip()]
    documents = {}
    for story in stories:
        for word in set(words(story)):
            documents[word] = documents.get(word, 0) + 1
    ignored = ignored_words()
    for story in stories:
        best = subjects(story, documents, len(stories), ignored)
        if not best:
            continue
        number = min(len(best), draw.choice((1, 1, 1, 2, 2, 3)))
        # The best words are requested most often.
        chosen = []
        while len(chosen) < number:
            word = best[min(int(draw.expovariate(0.8)), len(best) - 1)]
            if word not in chosen:
                chosen.append(word)
        wish = " and ".join(chosen) if number < 3 else f"{chosen[0]}, {chosen[1]} and {chosen[2]}"
        chat = [{"role": "user", "content": draw.choice(REQUESTS).format(wish)},
                {"role": "assistant", "content": story}]
        print(json.dumps({"messages": chat}, ensure_ascii=False))


if __name__ == "__main__":
    main()
