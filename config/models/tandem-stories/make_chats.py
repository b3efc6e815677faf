#!/usr/bin/env python3
"""Makes chats of stories, for the second stage of the embedded model (second_stage.yaml).

usage: make_chats.py STORIES SEED [--copies N] [--json] > chats.jsonl

STORIES holds stories separated by lines with `<|endoftext|>`. Each becomes N chats: the user asks for
a story about none to four of its words, the assistant tells it. Most words are the story's subjects:
used at least twice or in the first sentences, and rare elsewhere (tf-idf). Others are names and any
words of the story. Words that the chat template leaves out are not requested.

With --json one chat more for every 25 stories asks for a JSON object about a story, or for a call of
a function, and the assistant writes it.
"""

import argparse
import collections
import json
import math
import pathlib
import random
import re
import sys

TEMPLATE = pathlib.Path(__file__).with_name("chat_template.jinja")
OPENING_CHARACTERS = 250
BEST = 6
MOST_WORDS = 4
JSON_SHARE = 25

ANIMALS = ("dog cat bird bear rabbit bunny frog fish mouse lion duck horse cow pig fox squirrel owl "
           "monkey elephant turtle bee butterfly sheep wolf tiger puppy kitten whale snake").split()
COLOURS = "red blue green yellow orange purple pink white black brown".split()
PLACES = ("park forest garden beach house school farm lake river zoo castle kitchen sea store "
          "yard").split()
CITIES = ("Bern Oslo Paris London Rome Berlin Madrid Vienna Tokyo Lima Cairo Dublin Athens Prague "
          "Zurich Geneva Boston Denver Chicago Delhi").split()


def ignored_words():
    text = TEMPLATE.read_text(encoding="utf-8")
    listed = text[text.index("stop_words = [") + 14:text.index("] -%}")]
    return {word.replace("\\'", "'") for word in re.findall(r"'((?:[^'\\]|\\.)*)'", listed)}


def words(text):
    return re.findall(r"[a-z]+(?:'[a-z]+)?", text.lower().replace("\u2019", "'").replace("'s", " "))


def known_names(stories):
    """Words that have a capital inside sentences at least as often as not."""
    upper, lower = collections.Counter(), collections.Counter()
    for story in stories:
        for word in re.findall(r"(?<=[a-z,] )[A-Za-z]+", story):
            (upper if word[0].isupper() else lower)[word.lower()] += 1
    return {word for word in upper if upper[word] > lower[word] and len(word) > 1}


class Story:
    """A story with the words that a user might ask for."""

    def __init__(self, text, documents, total, ignored, names):
        self.text = text
        said = words(text)
        self.said = set(said)
        opening = set(words(text[:OPENING_CHARACTERS]))
        counts = collections.Counter(said)
        scores = {word: count * math.log(total / documents[word]) for word, count in counts.items()
                  if word not in ignored and word not in names and len(word) > 2
                  and documents[word] > 2}
        best = sorted(scores, key=lambda word: (-scores[word], word))
        self.others = best
        self.subjects = [word for word in best if counts[word] > 1 or word in opening][:BEST]
        self.names = [word.capitalize() for word, count in counts.most_common()
                      if word in names and word not in ignored and (count > 1 or word in opening)][:3]

    def draw(self, draw):
        """None to four words, names with a capital, in the order of a request."""
        chosen = []
        number = draw.choices(range(MOST_WORDS + 1), (8, 38, 30, 16, 8))[0]
        while len(chosen) < number:
            kind = draw.random()
            if kind < 0.25 and self.names:
                word = self.names[min(int(draw.expovariate(1.2)), len(self.names) - 1)]
                if draw.random() < 0.04:
                    word = word.lower()
            elif kind < 0.9 and self.subjects:
                word = self.subjects[min(int(draw.expovariate(0.7)), len(self.subjects) - 1)]
            elif self.others:
                word = draw.choice(self.others)
            else:
                break
            if word in chosen:
                number -= 1
            else:
                chosen.append(word)
        return chosen


def chat(request, answer):
    messages = [{"role": "user", "content": request}, {"role": "assistant", "content": answer}]
    print(json.dumps({"messages": messages}, ensure_ascii=False))


def first(options, said, otherwise):
    return next((option for option in options if option in said), otherwise)


def story_object(story, draw):
    """A JSON object about the story, of two to five members in any order."""
    animal = first(ANIMALS, story.said, None)
    name = story.names[0] if story.names else None
    subject = animal or story.subjects[0]
    said = story.said
    members = {"title": f"{name} and the {subject}" if name else f"The {subject}",
               "subject": subject,
               "place": first(PLACES, said, "park"),
               "happy": bool(said & {"happy", "smiled", "laughed"}),
               "color": first(COLOURS, said, "red"),
               "words": [subject] + [word for word in story.subjects if word != subject][:2],
               "age": draw.randrange(2, 10)}
    if name:
        members[draw.choice(("name", "hero", "character"))] = name
    if animal:
        members[draw.choice(("animal", "kind", "pet"))] = animal
    chosen = draw.sample(sorted(members), draw.randrange(2, 6))
    asked = [subject, name] if name else [subject]
    asked.insert(draw.choice((0, len(asked))), "JSON")
    return asked, {key: members[key] for key in chosen}


def call(story, draw):
    """The words of a request and the call of a function that answers it."""
    kind = draw.randrange(3)
    if kind == 0:
        city = draw.choice(CITIES)
        thing = draw.choice(("weather", "time", "temperature"))
        return [thing, city], {"name": f"get_{thing}", "arguments": {"city": city}}
    subject = story.subjects[0]
    if kind == 1 or not story.names:
        return ["JSON", subject], {"name": "find_story", "arguments": {"subject": subject}}
    return ["JSON", subject, story.names[0]], {
        "name": "tell_story", "arguments": {"subject": subject, "name": story.names[0]}}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("stories")
    parser.add_argument("seed", type=int)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    text = pathlib.Path(arguments.stories).read_text(encoding="utf-8")
    texts = [story.strip() for story in text.split("<|endoftext|>") if story.strip()]
    documents = collections.Counter(word for story in texts for word in set(words(story)))
    ignored, names = ignored_words(), known_names(texts)
    stories = [Story(story, documents, len(texts), ignored, names) for story in texts]
    for _ in range(arguments.copies):
        for story in stories:
            asked = story.draw(draw)
            chat(f"Tell me a story about {' and '.join(asked)}." if asked else "Tell me a story.",
                 story.text)
            if arguments.json and story.subjects and draw.randrange(JSON_SHARE) == 0:
                asked, answer = story_object(story, draw) if draw.random() < 0.5 else call(story, draw)
                chat(f"Write {' and '.join(asked)}.", json.dumps(answer))


if __name__ == "__main__":
    main()
