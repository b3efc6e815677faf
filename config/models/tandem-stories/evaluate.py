#!/usr/bin/env python3
"""Evaluates the embedded model, in numbers and in samples.

usage: evaluate.py URL TRAINING_TEXT... > samples.md

Asks a running server for 100 stories about things and 100 about someone with a name, at temperature
0.7 (seeds 0..99, one request each, unselected). It prints the share of 20-word runs that occur in the
training texts, the shares of stories with a requested word, with all of them, and with the name, and
the first twenty stories. Then come 50 forced JSON objects and 50 forced calls of a function.
"""

import json
import re
import sys
import urllib.request

WISHES = ["a dog", "a cat and a ball", "a brave princess", "a little car", "the rain", "a big tree",
          "a bird who can not fly", "two friends at the beach", "a lost toy", "a birthday cake",
          "a frog", "a boy and his grandma", "the moon", "a red boat", "a lion in the forest",
          "a girl named Lily", "a rabbit and a carrot", "snow", "a bear who was hungry", "a magic box"]
NAMES = ["Tom", "Mia", "Max", "Anna", "Ben", "Sara", "Tim", "Emma", "Leo", "Lucy",
         "Jack", "Rosa", "Otto", "Nina", "Hugo", "Zoe", "Felix", "Ida", "Sam", "Bella"]
KINDS = ["dog", "girl", "cat", "boy", "rabbit"]
CITIES = ["Bern", "Oslo", "Paris", "Lisbon", "Warsaw", "Rome", "Kyoto", "Boston", "Basel", "Lagos"]
UNASKED = ("a", "and", "the", "who", "can", "not", "in", "at", "his", "was", "named", "two", "big",
           "little")
RUN = 20


def words(text):
    return re.findall(r"[a-z0-9']+", text.lower())


def post(url, request, seed, most, **fields):
    body = {"model": "tandem-stories", "temperature": 0.7, "seed": seed, "max_tokens": most,
            "messages": [{"role": "user", "content": request}], **fields}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]


def tell(url, wish, seed):
    choice = post(url, f"Tell me a story about {wish}.", seed, 400)
    return choice["message"]["content"], choice["finish_reason"]


def has(said, word):
    return word in said or word.rstrip("s") in said


def of_schema(**properties):
    return {"type": "object", "properties": properties, "required": list(properties),
            "additionalProperties": False}


def forced_objects(url):
    """How many of 50 objects have the animal that was asked for, and how many have the name."""
    schema = of_schema(name={"type": "string"}, animal={"type": "string"}, title={"type": "string"})
    animals = names = 0
    for seed in range(50):
        animal, name = ("dog", "cat", "rabbit", "bear", "frog")[seed % 5], NAMES[seed % len(NAMES)]
        choice = post(url, f"Describe a {animal} named {name} as JSON.", seed, 120, response_format={
            "type": "json_schema", "json_schema": {"name": "pet", "schema": schema}})
        try:
            pet = json.loads(choice["message"]["content"])
        except ValueError:  # cut at the limit
            continue
        animals += animal in pet["animal"].lower()
        names += pet["name"] == name
    return animals, names


def forced_calls(url):
    """How many of 50 calls name the city that was asked for."""
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": of_schema(
        city={"type": "string"})}}
    right = 0
    for seed in range(50):
        city = CITIES[seed % len(CITIES)]
        choice = post(url, f"What is the weather in {city}?", seed, 120, tools=[tool],
                      tool_choice="required")
        try:
            call = json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])
        except (ValueError, LookupError):  # cut at the limit
            continue
        right += call["city"] == city
    return right


def main():
    url, *training = sys.argv[1:]
    runs = set()
    for path in training:
        with open(path, encoding="utf-8") as file:
            corpus = file.read().split("<|endoftext|>")
        for text in corpus:
            w = words(text)
            runs.update(hash(tuple(w[i:i + RUN])) for i in range(len(w) - RUN + 1))

    stories = [(WISHES[seed % len(WISHES)], *tell(url, WISHES[seed % len(WISHES)], seed))
               for seed in range(100)]
    copied = total = kept = all_kept = ended = named = 0
    for wish, text, reason in stories:
        w = words(text)
        total += max(0, len(w) - RUN + 1)
        copied += sum(hash(tuple(w[i:i + RUN])) in runs for i in range(len(w) - RUN + 1))
        found = [has(w, x) for x in words(wish) if x not in UNASKED]
        kept += any(found)
        all_kept += all(found)
        ended += reason == "stop"
    for seed in range(100):
        name = NAMES[seed % len(NAMES)]
        text, _ = tell(url, f"a {KINDS[seed // len(NAMES)]} named {name}", seed)
        named += name in re.findall(r"[A-Z][a-z]+", text)
    animals, names = forced_objects(url)

    print("# Twenty unselected stories\n")
    print("Temperature 0.7, seeds 0 to 19, written by `evaluate.py`. Of all 100 stories (seeds 0 to 99):")
    print(f"{100 * copied / max(1, total):.1f} % of {total} runs of {RUN} words stand in the training "
          f"text, {kept} mention a word that was asked for, {all_kept} mention all of them, {ended} end "
          f"by themselves within 400 tokens. Of 100 other stories {named} have the requested name. Of 50 "
          f"forced JSON objects {animals} have the requested animal and {names} the name; "
          f"{forced_calls(url)} of 50 forced calls have the city.\n")
    for seed, (wish, text, reason) in enumerate(stories[:20]):
        print(f"## {seed}. A story about {wish}\n")
        for paragraph in text.strip().split("\n"):
            print(f"{paragraph}\n")
        if reason != "stop":
            print("(cut at 400 tokens)\n")


main()
