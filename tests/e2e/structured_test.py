#!/usr/bin/env python3
"""Structured output of a running program, at a temperature at which free text would be noise.

`structured_test.py BINARY [unittest arguments]`.
"""

import json
import re
import threading

import harness
from harness import Case

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
PET = {"type": "object", "additionalProperties": False, "required": ["kind", "age"],
       "properties": {"kind": {"enum": ["cat", "dog"]},
                      "age": {"type": "integer", "minimum": 0, "maximum": 20},
                      "names": {"type": "array", "maxItems": 2,
                                "items": {"type": "string", "maxLength": 12}}}}


def chat(**more):
    return dict({"model": "tandem-stories", "temperature": 1.5, "max_tokens": 120,
                 "messages": [{"role": "user", "content": "Describe a pet."}]}, **more)


def completion(**more):
    return dict({"model": "tandem-stories", "temperature": 1.5, "max_tokens": 120,
                 "prompt": "The pet is"}, **more)


def schema(given):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": given}}


class Server(Case):
    def setUp(self):
        super().setUp()
        self.server = self.serve()
        version = self.server.request("GET", "/version")[2]
        self.has_rust = version["llguidance"] is not None
        self.assertEqual("structured_output" in version["features"], self.has_rust)

    def refused(self, path, body, param, code):
        status, _, answer = self.server.request("POST", path, body)
        self.assertEqual(status, 400, answer)
        self.assertEqual((answer["error"]["param"], answer["error"]["code"]), (param, code), answer)


class WithoutRust(Server):
    def test_every_constraint_is_refused_and_the_log_says_why(self):
        if self.has_rust:
            self.skipTest("built with Rust")
        self.refused(CHAT, chat(response_format={"type": "json_object"}), "response_format",
                     "unsupported_parameter")
        for field, value in (("guided_regex", "a"), ("guided_choice", ["a"]), ("guided_json", {}),
                             ("guided_grammar", 'start: "a"'), ("json_schema", {})):
            for path, body in ((CHAT, chat()), (COMPLETIONS, completion())):
                self.refused(path, dict(body, **{field: value}), field, "unsupported_parameter")
        self.wait_until("logged", lambda: "no_structured_output" in self.server.log_path.read_text())


class Structured(Server):
    def setUp(self):
        super().setUp()
        if not self.has_rust:
            self.skipTest("built without Rust")

    def check_pet(self, text):
        pet = json.loads(text)
        self.assertLessEqual(set(pet), {"kind", "age", "names"})
        self.assertIn(pet["kind"], ("cat", "dog"))
        self.assertIn(pet["age"], range(21))
        for name in pet.get("names", []):
            self.assertLessEqual(len(name), 12)
        self.assertNotIn("\n", text)

    def test_finished_answers_validate_in_every_choice(self):
        finished = 0
        for seed in range(5):
            answer = self.server.post(CHAT, chat(response_format=schema(PET), n=4, seed=seed))
            for choice in answer["choices"]:
                if choice["finish_reason"] == "stop":
                    finished += 1
                    self.check_pet(choice["message"]["content"])
        self.assertGreater(finished, 10)

    def test_a_stream_spells_the_same_answer(self):
        body = chat(response_format=schema(PET), seed=3, logprobs=True)
        whole = self.server.post(CHAT, body)["choices"][0]["message"]["content"]
        events, is_done = self.server.stream(CHAT, body)
        deltas = [event["choices"][0]["delta"].get("content") or ""
                  for event in events if event["choices"]]
        self.assertTrue(is_done)
        self.assertEqual("".join(deltas), whole)

    def test_an_answer_does_not_depend_on_others(self):
        bodies = [chat(response_format=schema(PET), seed=seed) for seed in range(4)]
        bodies += [chat(seed=seed, max_tokens=40) for seed in range(4)]

        def text(body):
            return self.server.post(CHAT, body)["choices"][0]["message"]["content"]

        alone = [text(body) for body in bodies]
        together = [None] * len(bodies)

        def run(i):
            together[i] = text(bodies[i])

        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(bodies))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(together, alone)

    def test_every_field_constrains_both_routes(self):
        word = re.compile(r" (happy|sad)")
        cases = [({"guided_regex": " (happy|sad)"}, word.fullmatch),
                 ({"guided_choice": [" happy", " sad"]}, word.fullmatch),
                 ({"guided_grammar": 'start: " " ("happy" | "sad")'}, word.fullmatch),
                 ({"structured_outputs": {"choice": [" happy", " sad"]}}, word.fullmatch),
                 ({"structured_outputs": {"json": PET, "disable_any_whitespace": True}},
                  lambda text: self.check_pet(text) or " " not in text.split('"names"')[0]),
                 ({"guided_json": json.dumps(PET)}, lambda text: self.check_pet(text) or True),
                 ({"json_schema": PET}, lambda text: self.check_pet(text) or True)]
        for fields, matches in cases:
            for path, body in ((CHAT, chat(seed=1, **fields)), (COMPLETIONS, completion(seed=1, **fields))):
                with self.subTest(path=path, fields=fields):
                    choice = self.server.post(path, body)["choices"][0]
                    text = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
                    if choice["finish_reason"] == "stop":
                        self.assertTrue(matches(text), text)
                    else:
                        self.assertIn("json", str(fields))

    def test_a_cut_answer_is_a_valid_beginning(self):
        for path, body in ((CHAT, chat(max_tokens=3)), (COMPLETIONS, completion(max_tokens=3))):
            choice = self.server.post(path, dict(body, guided_regex="a{40}"))["choices"][0]
            text = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
            self.assertEqual(choice["finish_reason"], "length")
            self.assertRegex(text, "^a+$")

    def test_a_schema_that_needs_more_tokens_gives_its_beginning(self):
        needs = {"type": "object", "required": ["text"], "additionalProperties": False,
                 "properties": {"text": {"type": "string", "pattern": "^(so ){50}$"}}}
        choice = self.server.post(CHAT, chat(max_tokens=12, response_format=schema(needs)))["choices"][0]
        text = choice["message"]["content"]
        self.assertEqual(choice["finish_reason"], "length")
        self.assertTrue(('{"text":"' + "so " * 50).startswith(text.replace('{"text": "', '{"text":"'))
                        or '{"text": "'.startswith(text), text)

    def test_hostile_grammars_stop_nobody(self):
        deep = {"type": "string"}
        for _ in range(60):
            deep = {"type": "array", "items": deep, "minItems": 1}
        wide = {"enum": [f"choice {i}" for i in range(20000)]}
        long = {"const": "x" * (10 << 20)}
        hostile = [{"response_format": schema(given)} for given in
                   (deep, wide, long, {"$ref": "#"},
                    {"type": "string", "pattern": "(a{1,500}){1,500}"},
                    {"type": "array", "minItems": 9999, "items": {"type": "array", "minItems": 9999}})]
        hostile += [{"guided_grammar": text} for text in
                    ('start: start "a" | "b"', "start: start", 'start: "a" start', 'start: ' + '("a" | ' * 60 + '"b"' + ")" * 60,
                     'start: "go " word\nword: ' + " | ".join(f'"w{i}"' for i in range(3000)))]
        hostile += [{"guided_regex": text} for text in ("(a+)+b", "((a{0,300}){0,300}){0,300}", "(.*a.{200})+")]
        answers = [None] * len(hostile)

        def ask(i):
            answers[i] = self.server.request("POST", CHAT, chat(max_tokens=20, **hostile[i]))[::2]

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(hostile))]
        for thread in threads:
            thread.start()
        # Free answers come meanwhile.
        for _ in range(3):
            self.assertEqual(self.server.post(CHAT, chat(max_tokens=20, ignore_eos=True))["usage"]["completion_tokens"], 20)
        for thread in threads:
            thread.join()
        for body, (status, answer) in zip(hostile, answers):
            with self.subTest(body=str(body)[:120]):
                self.assertIn(status, (200, 400), answer)
                if status == 400:
                    self.assertIn(answer["error"]["code"], ("unsupported_schema", "invalid_schema", "invalid_value"))
        self.assertEqual(self.server.stop(), 0)

    def test_what_no_grammar_holds_is_refused_before_the_answer(self):
        root = "response_format.json_schema.schema"
        for given, param in (({"not": {}}, root + ".not"),
                             ({"properties": {"a": {"uniqueItems": True}}},
                              root + ".properties.a.uniqueItems"),
                             ({"$ref": "https://example.com/s"}, root + ".$ref"),
                             ({"type": "string", "pattern": "(?=a)b"}, root),
                             ({"type": "integer", "minimum": 3, "maximum": 2}, root)):
            for stream in (False, True):
                self.refused(CHAT, chat(response_format=schema(given), stream=stream), param,
                             "unsupported_schema")
        self.refused(CHAT, chat(guided_regex="("), "guided_regex", "invalid_value")
        self.refused(CHAT, chat(guided_grammar="start: start"), "guided_grammar", "invalid_value")
        self.refused(CHAT, chat(guided_regex="a", response_format={"type": "json_object"}),
                     "guided_regex", "invalid_value")
        self.refused(COMPLETIONS, completion(guided_choice=["x" * 300000]), "guided_choice",
                     "invalid_value")
        # The server still answers.
        self.server.post(CHAT, chat(max_tokens=2))


if __name__ == "__main__":
    harness.main()
