#!/usr/bin/env python3
"""The generation API from outside, rule by rule. README.md lists the test of each rule.

`api_test.py BINARY [unittest arguments]`.
"""

import base64
import http.client
import json
import math
import pathlib
import struct
import tempfile
import threading
import time
import unittest
import urllib.parse

import harness
from harness import PATIENCE_S, ROOT, Case, Server

MODEL = "tandem-stories"
MODEL_FILES = ROOT / "config" / "models" / MODEL
CONTEXT = 1024
VOCAB = 2048
END = 0  # also the first token of every text
PROMPT = [END, 300, 301, 302]
# Prints all its inputs, so that tests see what reaches a template.
ECHO_TEMPLATE = (
    "{{ bos_token }}{{ 'effort=' ~ reasoning_effort if reasoning_effort is defined }}"
    "{{ 'think=' ~ enable_thinking if enable_thinking is defined }}"
    "{{ 'style=' ~ style if style is defined }}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}")


def user(text="Tell me a story about a dog."):
    return [{"role": "user", "content": text}]


def chat(**fields):
    return dict({"model": MODEL, "messages": user(), "max_tokens": 8, "temperature": 0}, **fields)


def completion(**fields):
    return dict({"model": MODEL, "prompt": PROMPT, "max_tokens": 8, "temperature": 0}, **fields)


CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


class Shared:
    """One server for all tests that need no flags."""

    servers = {}
    directories = []

    @classmethod
    def start(cls, name, *arguments):
        if name not in cls.servers:
            directory = tempfile.TemporaryDirectory()
            cls.directories.append(directory)
            path = pathlib.Path(directory.name)
            arguments = [a(path) if callable(a) else a for a in arguments]
            cls.servers[name] = Server(path, *arguments)
        return cls.servers[name]

    @classmethod
    def stop(cls):
        for server in cls.servers.values():
            assert server.stop() == 0, server.log_path.read_text()[-4000:]
        for directory in cls.directories:
            directory.cleanup()
        cls.servers.clear()
        cls.directories.clear()


def tearDownModule():
    Shared.stop()


def write_template(path):
    file = path / "template.jinja"
    file.write_text(ECHO_TEMPLATE)
    return str(file)


class ApiCase(Case):
    def setUp(self):
        super().setUp()
        self.server = Shared.start("plain")

    def echoing(self):
        """A server whose template prints its inputs."""
        return Shared.start("echoing", "--chat-template", write_template)

    def send(self, path, body, server=None):
        """(status, headers, JSON) for a body that is text or JSON; reuses connections."""
        server = server or self.server
        if not hasattr(self, "connections"):
            self.connections = {}
            self.addCleanup(lambda: [c.close() for c in self.connections.values()])
        connection = self.connections.setdefault(
            server.address, http.client.HTTPConnection(*server.address, timeout=PATIENCE_S))
        text = body if isinstance(body, str) else json.dumps(body)
        connection.request("POST", path, text.encode(), {"Content-Type": "application/json"})
        response = connection.getresponse()
        raw = response.read()
        self.last_size = len(raw)
        return response.status, response.headers, json.loads(raw)

    def post(self, path, body, server=None):
        status, _, answer = self.send(path, body, server)
        self.assertEqual(status, 200, answer)
        return answer

    def refused(self, path, body, param, code, status=400, server=None):
        got, _, answer = self.send(path, body, server)
        shown = body[:200] if isinstance(body, str) else body
        self.assertEqual(got, status, (shown, answer))
        error = answer["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertEqual((error["param"], error["code"]), (param, code), (shown, error))
        self.assertLessEqual(self.last_size, 4096)
        return error["message"]

    def events(self, path, body, server=None):
        """The text of each event of a stream; checks everything before `data: `."""
        server = server or self.server
        connection = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
        self.addCleanup(connection.close)
        connection.request("POST", path, json.dumps(dict(body, stream=True)),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
        self.assertEqual(response.status, 200, text)
        self.assertEqual(response.headers["content-type"], "text/event-stream; charset=utf-8")
        self.assertEqual(response.headers["cache-control"], "no-cache")
        self.assertEqual(response.headers["x-accel-buffering"], "no")
        # The connection is usable after the stream.
        connection.request("GET", "/v1/models")
        self.assertEqual(connection.getresponse().status, 200)
        self.assertTrue(text.endswith("\n\n"))
        self.assertNotIn("\r", text)
        events = text[:-2].split("\n\n")
        for event in events:
            self.assertNotIn("\n", event)
            self.assertTrue(event.startswith(("data: ", ": ")), event)
        return events

    def chunks(self, path, body, server=None):
        """The chunks of a stream without an error."""
        events = [e[len("data: "):] for e in self.events(path, body, server) if e[0] != ":"]
        self.assertEqual(events[-1], "[DONE]")
        return [json.loads(event) for event in events[:-1]]


def text_of(chunks, index=0):
    out = ""
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] == index:
                out += choice["delta"].get("content", "") if "delta" in choice else choice["text"]
    return out


def plain_text(answer, index=0):
    choice = answer["choices"][index]
    return choice["message"]["content"] if "message" in choice else choice["text"]


# ---- every field, every kind of value

MISSING = object()
NO_LIMIT = 2**63 - 1


class Field:
    """A field's type and range, and the rest of a body in which only this field decides."""

    def __init__(self, name, kind, low=None, high=None, above=None, extra=None, only=None):
        self.name, self.kind, self.low, self.high, self.above = name, kind, low, high, above
        self.extra, self.only = extra or {}, only

    def verdict(self, text):
        """The error code for this literal; None if it must be accepted."""
        try:
            value = json.loads(text, parse_constant=lambda name: float(name.lower()))
        except ValueError:
            return "invalid_json"
        if isinstance(value, float) and not math.isfinite(value):
            return "invalid_json"
        if value is None:
            return None
        if self.kind == "bool":
            return None if isinstance(value, bool) else "invalid_type"
        if self.kind == "string":
            return None if isinstance(value, str) else "invalid_type"
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return "invalid_type"
        if self.kind == "int" and value != math.floor(value):
            return "invalid_type"
        if self.low is not None and value < self.low or self.above is not None and value <= self.above:
            return "invalid_value"
        if value > self.high:
            return "invalid_value"
        return None


ENDS_AT_ONCE = {"logit_bias": {str(END): 100}}
FIELDS = [
    Field("max_tokens", "int", 1, CONTEXT, only=CHAT, extra=ENDS_AT_ONCE),
    Field("max_tokens", "int", 0, CONTEXT, only=COMPLETIONS, extra=ENDS_AT_ONCE),
    Field("max_completion_tokens", "int", 1, CONTEXT, extra=ENDS_AT_ONCE),
    Field("temperature", "number", 0, 2),
    Field("top_p", "number", 0, 1),
    Field("top_k", "int", -1, NO_LIMIT),
    Field("min_p", "number", 0, 1),
    Field("n", "int", 1, 128),
    Field("seed", "int", -2**63, NO_LIMIT),
    Field("min_tokens", "int", 0, 2, extra={"max_tokens": 2}),
    Field("presence_penalty", "number", -2, 2),
    Field("frequency_penalty", "number", -2, 2),
    Field("repetition_penalty", "number", None, 10, above=0),
    Field("top_logprobs", "int", 0, 20, only=CHAT, extra={"logprobs": True}),
    Field("logprobs", "int", 0, 20, only=COMPLETIONS),
    Field("prompt_logprobs", "int", 0, 20),
    Field("best_of", "int", 1, 20, only=COMPLETIONS),
    Field("priority", "int", -2**63, NO_LIMIT),
    Field("logprobs", "bool", only=CHAT),
    Field("include_stop_str_in_output", "bool"),
    Field("ignore_eos", "bool"),
    Field("skip_special_tokens", "bool"),
    Field("return_token_ids", "bool"),
    Field("return_tokens_as_token_ids", "bool"),
    Field("parallel_tool_calls", "bool", only=CHAT),
    Field("add_generation_prompt", "bool", only=CHAT),
    Field("echo", "bool", only=COMPLETIONS),
    Field("add_special_tokens", "bool", only=COMPLETIONS),
    Field("parse_special", "bool", only=COMPLETIONS),
]


class EveryField(ApiCase):
    def values(self, field):
        numbers = ["-1", "0", "1.0", "0.5", "1e308", "-1e308", "NaN", "Infinity", "1e999"]
        for bound in (field.low, field.high, field.above):
            if bound is not None:
                numbers += [str(bound), str(bound + 1), str(bound - 1)]
        return numbers + ['"1"', '""', "null", "true", "[]", "[1]", "{}", '{"a": 1}']

    def body(self, path, field, literal):
        fields = {"model": MODEL, "max_tokens": 1}
        fields.update({"prompt": PROMPT} if path == COMPLETIONS else {"messages": user()})
        fields.update(field.extra)
        fields.pop(field.name, None)
        return json.dumps(fields)[:-1] + f', "{field.name}": {literal}}}'

    def test_every_numeric_and_boolean_field_at_every_edge(self):
        for path in (CHAT, COMPLETIONS):
            for field in FIELDS:
                if field.only not in (None, path):
                    continue
                for literal in dict.fromkeys(self.values(field)):
                    body = self.body(path, field, literal)
                    code = field.verdict(literal)
                    with self.subTest(path=path, field=field.name, value=literal):
                        if code is None:
                            self.post(path, body)
                        elif code == "invalid_json":
                            self.refused(path, body, None, code)
                        else:
                            message = self.refused(path, body, field.name, code)
                            self.assertIn(field.name, message)
                            self.assertIn("got", message)
                            if field.kind == "bool":
                                self.assertIn("true or false", message)
                            elif NO_LIMIT not in (field.high, field.low) and field.low is not None:
                                self.assertIn(f"[{field.low}, {field.high}]", message)

    def test_elements_of_arrays_and_objects(self):
        not_ids = ["-1", str(VOCAB), "1e308", "0.5", '"1"', "null", "true", "[]", "{}"]
        for literal in not_ids:
            with self.subTest(value=literal):
                self.refused(COMPLETIONS, f'{{"model": "{MODEL}", "prompt": [1, {literal}]}}',
                             "prompt[1]", "invalid_value")
                self.refused("/detokenize", f'{{"tokens": [{literal}]}}', "tokens[0]",
                             "invalid_value")
                for path, start in ((CHAT, '"messages": [{"role": "user", "content": "a"}]'),
                                    (COMPLETIONS, '"prompt": "a"')):
                    self.refused(path, f'{{"model": "{MODEL}", {start}, '
                                       f'"stop_token_ids": [3, {literal}]}}',
                                 "stop_token_ids[1]", "invalid_value")
        for literal in ("NaN", "1e999", "-Infinity"):
            self.refused(COMPLETIONS, f'{{"model": "{MODEL}", "prompt": [{literal}]}}', None,
                         "invalid_json")
        for bias, code in (("-100", None), ("100", None), ("0", None), ("-100.5", "invalid_value"),
                           ("101", "invalid_value"), ("1e308", "invalid_value"),
                           ('"1"', "invalid_type"), ("null", "invalid_type"),
                           ("[]", "invalid_type")):
            for path, base in ((CHAT, chat(max_tokens=1)), (COMPLETIONS, completion(max_tokens=1))):
                body = json.dumps(base)[:-1] + f', "logit_bias": {{"5": {bias}}}}}'
                with self.subTest(path=path, bias=bias):
                    if code is None:
                        self.post(path, body)
                    else:
                        self.refused(path, body, "logit_bias", code)
        for key in ("x", "", "-1", "1.0", " 1", str(VOCAB), "99999999999999999999"):
            self.refused(CHAT, chat(logit_bias={key: 1}), "logit_bias", "invalid_value")
        self.refused(CHAT, chat(logit_bias={str(i): 1 for i in range(1025)}), "logit_bias",
                     "invalid_value")
        self.refused(CHAT, chat(stop_token_ids=list(range(65))), "stop_token_ids", "invalid_value")

    def test_wrong_containers_and_words(self):
        cases = {
            "stop": [(1, "stop"), ({}, "stop"), (True, "stop"), ([1], "stop[0]"),
                     (["a", None], "stop[1]")],
            "stop_token_ids": [(3, "stop_token_ids"), ("3", "stop_token_ids"),
                               ({}, "stop_token_ids")],
            "logit_bias": [([], "logit_bias"), ("x", "logit_bias"), (1, "logit_bias")],
            "stream": [("true", "stream"), (1, "stream"), ([], "stream")],
            "stream_options": [(1, "stream_options"), ([], "stream_options"),
                               ("x", "stream_options")],
            "response_format": [("json", "response_format"), ([], "response_format")],
        }
        only_chat = {
            "tools": [("x", "tools"), ({}, "tools"), (1, "tools")],
            "chat_template_kwargs": [([], "chat_template_kwargs"), (1, "chat_template_kwargs")],
            "reasoning_effort": [(1, "reasoning_effort"), ([], "reasoning_effort")],
        }
        for path, base in ((CHAT, chat()), (COMPLETIONS, completion())):
            for field, values in {**cases, **(only_chat if path == CHAT else {})}.items():
                for value, param in values:
                    self.refused(path, dict(base, **{field: value}), param, "invalid_type")
                self.post(path, dict(base, **{field: None}))
        for stop in ("", [], [""], "x" * 257, ["a"] * 17):
            param = "stop[0]" if stop == [""] else "stop"
            self.refused(CHAT, chat(stop=stop), param, "invalid_value")
        self.post(CHAT, chat(stop=["x" * 256] * 16))
        self.refused(CHAT, chat(reasoning_effort="huge"), "reasoning_effort", "invalid_value")
        for path, base in ((CHAT, chat()), (COMPLETIONS, completion())):
            for value in (1, True, [], {}, 1e308):
                self.refused(path, dict(base, model=value), "model", "invalid_type")
            self.refused(path, dict(base, model=None), "model", "missing_required_parameter")
            self.refused(path, dict(base, model="x"), "model", "model_not_found", 404)

    def test_what_is_not_served_is_refused_and_never_ignored(self):
        for field, value in (("functions", []), ("function_call", "auto"), ("audio", {}),
                             ("web_search_options", {}), ("modalities", ["text", "audio"])):
            self.refused(CHAT, chat(**{field: value}), field, "unsupported_parameter")
        for field, value in (("grammar", "root ::= \"a\""), ("bad_words", ["dog"]),
                             ("truncate_prompt_tokens", 4), ("mirostat", 2)):
            self.refused(CHAT, chat(**{field: value}), field, "unsupported_parameter")
            self.refused(COMPLETIONS, completion(**{field: value}), field, "unsupported_parameter")
        self.refused(CHAT, chat(tool_choice="required"), "tool_choice", "invalid_value")
        self.refused(COMPLETIONS, completion(suffix="x"), "suffix", "unsupported_parameter")
        for kind in ("image_url", "input_audio", "file"):
            self.refused(CHAT, chat(messages=[{"role": "user", "content": [{"type": kind}]}]),
                         "messages[0].content[0]", "unsupported_value")
        for field, value in (("tools", []), ("tool_choice", "none"), ("tool_choice", "auto"),
                             ("response_format", {"type": "text"}), ("modalities", ["text"])):
            self.post(CHAT, chat(**{field: value}))

    def test_fields_without_effect_and_unknown_ones(self):
        without_effect = {"metadata": {"a": "b"}, "store": True, "user": "u",
                          "safety_identifier": "s", "service_tier": "auto", "verbosity": "low",
                          "prediction": {"type": "content", "content": "x"},
                          "prompt_cache_key": "k", "prompt_cache_retention": "24h"}
        for path, base in ((CHAT, chat()), (COMPLETIONS, completion())):
            _, headers, answer = self.send(path, dict(base, **without_effect))
            self.assertIsNone(headers["x-ignored-params"])
            self.assertEqual(plain_text(answer), plain_text(self.post(path, base)))

            status, headers, _ = self.send(path, dict(base, **{"zebra": 1, "apple\r\n": 2}))
            self.assertEqual(status, 200)
            self.assertEqual(headers["x-ignored-params"], "zebra, apple??")
            _, headers, _ = self.send(path, dict(base, **{f"unknown_{i}": 1 for i in range(500)}))
            self.assertLessEqual(len(headers["x-ignored-params"]), 512)

    def test_bodies_that_are_no_json_object(self):
        deep = '{"a":' + "[" * 64 + "]" * 64 + "}"
        for path in (CHAT, COMPLETIONS, "/tokenize", "/detokenize", "/v1/render"):
            for body in ("", "{", "[]", "1", '"x"', "null", "{} {}", '{"a": NaN}', '{"a": 1e999}',
                         deep, "{'a': 1}"):
                self.refused(path, body, None, "invalid_json")
        status, _, answer = self.send(CHAT, "\udcff".encode("utf-8", "surrogateescape").decode("latin-1"))
        self.assertEqual((status, answer["error"]["code"]), (400, "invalid_json"))

    def test_the_first_fault_in_the_order_of_the_contract_is_reported(self):
        faults = {"model": "x", "messages": [], "temperature": 9, "n": 0}
        self.refused(CHAT, faults, "model", "model_not_found", 404)
        faults["model"] = MODEL
        self.refused(CHAT, faults, "messages", "invalid_value")
        faults["messages"] = user()
        self.refused(CHAT, faults, "temperature", "invalid_value")
        faults["temperature"] = 1
        self.refused(CHAT, faults, "n", "invalid_value")

    def test_messages_name_the_value_shortened_however_long_it_is(self):
        long = "y" * 500_000
        for body, param in ((chat(temperature=long), "temperature"),
                            (chat(stop=[long]), "stop[0]"),
                            (chat(messages=[{"role": long, "content": "a"}]), "messages[0].role"),
                            (chat(logit_bias={long: 1}), "logit_bias"),
                            (chat(reasoning_effort=long), "reasoning_effort"),
                            (chat(chat_template_kwargs=long), "chat_template_kwargs")):
            status, _, answer = self.send(CHAT, body)
            self.assertEqual((status, answer["error"]["param"]), (400, param))
            self.assertLess(self.last_size, 1000)
        status, _, answer = self.send(CHAT, chat(model="\u0001" * 100_000))
        self.assertEqual(status, 404)
        self.assertLessEqual(self.last_size, 4096)


class Messages(ApiCase):
    def test_shapes_of_messages(self):
        bad = [
            ("x", "messages", "invalid_type"),
            ([], "messages", "invalid_value"),
            ([1], "messages[0]", "invalid_type"),
            ([{"content": "a"}], "messages[0].role", "missing_required_parameter"),
            ([{"role": 1, "content": "a"}], "messages[0].role", "invalid_type"),
            ([{"role": "robot", "content": "a"}], "messages[0].role", "invalid_value"),
            (user() + [{"role": "user"}], "messages[1].content", "missing_required_parameter"),
            ([{"role": "user", "content": None}], "messages[0].content",
             "missing_required_parameter"),
            ([{"role": "user", "content": 5}], "messages[0].content", "invalid_type"),
            ([{"role": "user", "content": {}}], "messages[0].content", "invalid_type"),
            ([{"role": "user", "content": []}], "messages[0].content", "invalid_value"),
            ([{"role": "user", "content": [1]}], "messages[0].content[0]", "invalid_type"),
            ([{"role": "user", "content": [{"type": "smell"}]}], "messages[0].content[0].type",
             "invalid_value"),
            ([{"role": "user", "content": [{"type": "text", "text": 1}]}],
             "messages[0].content[0].text", "invalid_type"),
            ([{"role": "user", "content": [{"type": "refusal", "refusal": "a"}]}],
             "messages[0].content[0].type", "invalid_value"),
            ([{"role": "tool", "content": "a"}], "messages[0].tool_call_id",
             "missing_required_parameter"),
            ([{"role": "assistant", "content": None}], "messages[0].content",
             "missing_required_parameter"),
            ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function",
             "missing_required_parameter"),
        ]
        for messages, param, code in bad:
            for path in (CHAT, "/tokenize", "/v1/render"):
                self.refused(path, {"model": MODEL, "messages": messages}, param, code)
        many = user("a") * 4097
        self.refused(CHAT, chat(messages=many), "messages", "invalid_value")

    def test_what_a_template_gets(self):
        server = self.echoing()
        calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
        messages = [
            {"role": "developer", "content": "d"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "t"}]},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "r"}]},
            {"role": "user", "content": ""}]
        answer = self.post("/v1/render", {"messages": messages}, server)
        self.assertEqual(answer["text"],
                         "<|endoftext|>[system]d[user]a\nb[assistant]<|endoftext|>[tool]t"
                         "[assistant]r<|endoftext|>[user][assistant]")

    def test_template_fields(self):
        server = self.echoing()

        def text(**fields):
            return self.post("/v1/render", dict({"messages": user("q")}, **fields), server)["text"]

        begin, end = "<|endoftext|>", "[user]q[assistant]"
        self.assertEqual(text(), begin + end)
        self.assertEqual(text(chat_template_kwargs={"style": "dry"}), f"{begin}style=dry{end}")
        self.assertEqual(text(reasoning_effort="high"), f"{begin}effort=high{end}")
        self.assertEqual(text(reasoning_effort="none"), f"{begin}effort=nonethink=False{end}")
        self.assertEqual(text(add_generation_prompt=False), begin + "[user]q")
        opened = user("q") + [{"role": "assistant", "content": "One d"}]
        self.assertEqual(text(messages=opened, continue_final_message=True),
                         begin + "[user]q[assistant]One d")
        # Generation does the same: the answer continues the prompt's end.
        asked = chat(messages=opened, continue_final_message=True, return_token_ids=True)
        answer = self.post(CHAT, asked, server)
        rendered = self.post("/v1/render", asked, server)
        self.assertEqual(answer["prompt_token_ids"], [t["id"] for t in rendered["tokens"]])

        for reserved in ("messages", "tools", "bos_token", "eos_token", "add_generation_prompt"):
            for path in (CHAT, "/tokenize", "/v1/render"):
                self.refused(path, {"model": MODEL, "messages": user(),
                                    "chat_template_kwargs": {reserved: "x"}},
                             "chat_template_kwargs", "invalid_value")
        for path in (CHAT, "/tokenize", "/v1/render"):
            self.refused(path, {"model": MODEL, "messages": opened, "continue_final_message": True,
                                "add_generation_prompt": True}, "continue_final_message",
                         "invalid_value")
            self.refused(path, {"model": MODEL, "messages": user(), "continue_final_message": True},
                         "continue_final_message", "invalid_value")


# ---- the effect of each parameter

class Sampling(ApiCase):
    def tokens(self, **fields):
        return self.post(COMPLETIONS, completion(return_token_ids=True, **fields))["choices"][0]

    def test_logit_bias_bans_restricts_and_moves(self):
        first = self.tokens(max_tokens=1)["token_ids"][0]
        banned = self.tokens(max_tokens=20, logit_bias={str(first): -100}, ignore_eos=True)
        self.assertNotIn(first, banned["token_ids"])

        allowed = {310, 311, 312}
        for seed in range(5):
            drawn = self.tokens(max_tokens=20, temperature=2, seed=seed,
                                logit_bias={str(i): 100 for i in allowed})
            self.assertLessEqual(set(drawn["token_ids"]), allowed)
            self.assertEqual(len(drawn["token_ids"]), 20)

        top = self.post(COMPLETIONS, completion(max_tokens=1, logprobs=20,
                                                return_tokens_as_token_ids=True))
        scores = top["choices"][0]["logprobs"]["top_logprobs"][0]
        scores = {int(name.split(":")[1]): value for name, value in scores.items()}
        for token, score in scores.items():
            bias = max(scores.values()) - score + 0.01
            if bias < 100:
                moved = self.tokens(max_tokens=1, logit_bias={str(token): bias})
                self.assertEqual(moved["token_ids"], [token])

    def test_presence_and_frequency_penalties_count_generated_tokens(self):
        for presence, frequency in ((2, 0), (0, 2), (-2, -1), (1.5, 0.5)):
            answer = self.post(COMPLETIONS, completion(
                max_tokens=40, logprobs=20, ignore_eos=True, presence_penalty=presence,
                frequency_penalty=frequency, return_tokens_as_token_ids=True))
            logprobs = answer["choices"][0]["logprobs"]
            counts = {}
            for name, top in zip(logprobs["tokens"], logprobs["top_logprobs"]):
                def adjusted(token):
                    times = counts.get(token, 0)
                    return top[token] - presence * (times > 0) - frequency * times
                best = max(top, key=adjusted)
                self.assertAlmostEqual(adjusted(name), adjusted(best), delta=1e-4)
                counts[name] = counts.get(name, 0) + 1
        plain = self.tokens(max_tokens=40, ignore_eos=True)["token_ids"]
        penalised = self.tokens(max_tokens=40, ignore_eos=True, frequency_penalty=2)["token_ids"]
        self.assertGreater(len(set(penalised)), len(set(plain)))

    def test_repetition_penalty_counts_prompt_and_generated_tokens(self):
        likely = self.tokens(max_tokens=1, ignore_eos=True)["token_ids"][0]
        # An early position in the prompt: without the penalty this token would come next.
        prompt = [END, likely, likely] + PROMPT
        plain = self.post(COMPLETIONS, completion(prompt=prompt, max_tokens=30, ignore_eos=True,
                                                  return_token_ids=True))
        answer = self.post(COMPLETIONS, completion(prompt=prompt, max_tokens=30, ignore_eos=True,
                                                   repetition_penalty=10, return_token_ids=True))
        repeated = plain["choices"][0]["token_ids"]
        penalised = answer["choices"][0]["token_ids"]
        self.assertLess(len(set(repeated) - set(prompt)), len(repeated))
        self.assertEqual(set(penalised) & set(prompt), set())
        self.assertEqual(len(set(penalised)), len(penalised))

    def test_sampling_parameters_do_not_change_reported_logprobs(self):
        def first(**fields):
            answer = self.post(COMPLETIONS, completion(max_tokens=1, logprobs=20, **fields))
            return answer["choices"][0]["logprobs"]["top_logprobs"][0]

        want = first()
        best = dict(sorted(want.items(), key=lambda item: -item[1])[:20])
        for fields in ({"temperature": 1.7, "seed": 3}, {"top_k": 3, "temperature": 1, "seed": 1},
                       {"logit_bias": {"310": 100}}, {"presence_penalty": 2},
                       {"repetition_penalty": 5}, {"min_tokens": 1}, {"top_p": 0.1, "seed": 9}):
            got = first(**fields)
            self.assertEqual({k: got[k] for k in best}, best, fields)

    def test_the_ways_of_being_greedy(self):
        want = self.tokens(max_tokens=20)["token_ids"]
        for fields in ({"temperature": 1e-6}, {"top_p": 0}, {"min_p": 1}, {"top_k": 1}):
            got = self.tokens(max_tokens=20, **dict({"temperature": 1.5, "seed": 4}, **fields))
            self.assertEqual(got["token_ids"], want, fields)

    def test_min_tokens_ignore_eos_and_stop_token_ids(self):
        eager = {"logit_bias": {str(END): 60}}  # the end token is always the likeliest
        self.assertEqual(self.tokens(max_tokens=9, **eager)["token_ids"], [END])
        held = self.tokens(max_tokens=9, min_tokens=5, **eager)
        self.assertEqual(len(held["token_ids"]), 6)
        self.assertNotIn(END, held["token_ids"][:5])
        self.assertEqual((held["token_ids"][5], held["finish_reason"]), (END, "stop"))
        self.assertIsNone(held["stop_reason"])

        ignoring = self.tokens(max_tokens=4, ignore_eos=True, **eager)
        self.assertEqual(ignoring["token_ids"], [END] * 4)
        self.assertEqual((ignoring["text"], ignoring["finish_reason"]), ("", "length"))
        shown = self.tokens(max_tokens=2, ignore_eos=True, skip_special_tokens=False, **eager)
        self.assertEqual(shown["text"], "<|endoftext|>" * 2)

        greedy = self.tokens(max_tokens=8, ignore_eos=True)["token_ids"]
        stopped = self.tokens(max_tokens=8, stop_token_ids=[greedy[3]], ignore_eos=True)
        self.assertEqual(stopped["token_ids"], greedy[:greedy.index(greedy[3]) + 1])
        self.assertEqual((stopped["finish_reason"], stopped["stop_reason"]), ("stop", greedy[3]))
        held = self.tokens(max_tokens=8, min_tokens=6, stop_token_ids=[greedy[3]], ignore_eos=True)
        self.assertNotIn(greedy[3], held["token_ids"][:6])

    def test_stop_strings(self):
        text = plain_text(self.post(COMPLETIONS, completion(max_tokens=60)))
        stop = text[12:17]
        at = text.index(stop)
        for options, want in (({}, text[:at]),
                              ({"include_stop_str_in_output": True}, text[:at] + stop)):
            for path in (COMPLETIONS,):
                body = completion(max_tokens=60, stop=["\u0000never", stop], **options)
                answer = self.post(path, body)
                self.assertEqual(plain_text(answer), want)
                choice = answer["choices"][0]
                self.assertEqual((choice["finish_reason"], choice["stop_reason"]), ("stop", stop))
                self.assertEqual(text_of(self.chunks(path, body)), want)
        # The stop string is ignored before the minimum.
        late = self.post(COMPLETIONS, completion(max_tokens=60, stop=stop, min_tokens=40))
        self.assertTrue(plain_text(late).startswith(text[:at] + stop))

    def test_best_of_answers_the_best_means_and_counts_all(self):
        common = dict(max_tokens=12, seed=5, temperature=1, ignore_eos=True, logprobs=0)
        everyone = self.post(COMPLETIONS, completion(n=6, **common))
        means = sorted(((sum(c["logprobs"]["token_logprobs"]) / 12, c["text"])
                        for c in everyone["choices"]), reverse=True)
        best = self.post(COMPLETIONS, completion(n=2, best_of=6, **common))
        self.assertEqual([c["text"] for c in best["choices"]], [text for _, text in means[:2]])
        self.assertEqual([c["index"] for c in best["choices"]], [0, 1])
        self.assertEqual(best["usage"]["completion_tokens"], 72)
        self.assertEqual(best["usage"]["prompt_tokens"], len(PROMPT))
        self.refused(COMPLETIONS, completion(n=3, best_of=2), "best_of", "invalid_value")
        self.refused(COMPLETIONS, completion(best_of=2, stream=True), "best_of", "invalid_value")
        self.post(COMPLETIONS, completion(n=21))  # best_of equals n
        list(self.chunks(COMPLETIONS, completion(best_of=1)))

    def test_sequences_of_one_request(self):
        prompts = [[END, 300 + i % 100] for i in range(2048)]
        answer = self.post(COMPLETIONS, completion(prompt=prompts, max_tokens=0))
        self.assertEqual([c["index"] for c in answer["choices"]], list(range(2048)))
        self.refused(COMPLETIONS, completion(prompt=prompts + [[1]]), "prompt", "invalid_value")
        self.refused(COMPLETIONS, completion(prompt=prompts[:17], n=128), "n", "invalid_value")
        self.refused(COMPLETIONS, completion(prompt=prompts[:1025], best_of=2), "n",
                     "invalid_value")

    def test_limits_are_clamped_and_long_prompts_refused_with_both_counts(self):
        prompt = [300 + i % 50 for i in range(CONTEXT - 24)]
        answer = self.post(COMPLETIONS, completion(prompt=prompt, max_tokens=CONTEXT,
                                                   ignore_eos=True))
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")
        self.assertEqual(answer["usage"]["completion_tokens"], 24)
        for count in (CONTEXT, CONTEXT + 1):
            message = self.refused(COMPLETIONS, completion(prompt=[300] * count), "prompt",
                                   "context_length_exceeded")
            self.assertIn(str(count), message)
            self.assertIn(str(CONTEXT), message)
        self.post(COMPLETIONS, completion(prompt=[300] * (CONTEXT - 1)))
        server = self.echoing()
        long = "word " * 2000
        count = self.post("/tokenize", {"messages": user(long)}, server)["count"]
        message = self.refused(CHAT, chat(messages=user(long)), "messages",
                               "context_length_exceeded", server=server)
        self.assertIn(str(count), message)
        self.assertIn(str(CONTEXT), message)

    def test_max_completion_tokens_wins(self):
        for path, base in ((CHAT, chat()), (COMPLETIONS, completion())):
            answer = self.post(path, dict(base, max_completion_tokens=3, max_tokens=7,
                                          ignore_eos=True))
            self.assertEqual(answer["usage"]["completion_tokens"], 3)

    def test_lower_priorities_go_first(self):
        server = self.serve("--max-seqs", "1")
        order = []

        def ask(name, **fields):
            self.assertEqual(server.request("POST", COMPLETIONS, completion(**fields))[0], 200)
            order.append(name)

        # Holds the only slot until both wait for it.
        busy = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
        busy.request("POST", COMPLETIONS, json.dumps(completion(
            stream=True, max_tokens=900, ignore_eos=True, n=64)),
            {"Content-Type": "application/json"})
        response = busy.getresponse()
        response.read(1)
        threads = []
        for name, priority in (("low", 5), ("high", 0)):
            threads.append(threading.Thread(target=ask, args=(name,), kwargs={
                "priority": priority, "max_tokens": 60, "ignore_eos": True}))
            threads[-1].start()
            time.sleep(0.3)
        self.assertEqual(order, [])
        response.close()
        busy.close()
        for thread in threads:
            thread.join()
        self.assertEqual(order, ["high", "low"])


# ---- answers

class Answers(ApiCase):
    def check_envelope(self, answer, kind, prefix):
        self.assertEqual(list(answer)[:6], ["id", "object", "created", "model",
                                            "system_fingerprint", "choices"])
        self.assertTrue(answer["id"].startswith(prefix))
        self.assertEqual(answer["object"], kind)
        self.assertIsInstance(answer["created"], int)
        self.assertEqual(answer["model"], MODEL)
        self.assertTrue(answer["system_fingerprint"].startswith("fp_"))

    def test_shape_of_a_chat_answer(self):
        answer = self.post(CHAT, chat(n=2, seed=1, temperature=1))
        self.check_envelope(answer, "chat.completion", "chatcmpl-")
        self.assertEqual(set(answer), {"id", "object", "created", "model", "system_fingerprint",
                                       "choices", "usage"})
        for index, choice in enumerate(answer["choices"]):
            self.assertEqual(choice["index"], index)
            self.assertEqual(set(choice["message"]), {"role", "content", "refusal"})
            self.assertIsNone(choice["logprobs"])
            self.assertEqual(choice["finish_reason"], "length")
            self.assertIsNone(choice["stop_reason"])
        usage = answer["usage"]
        self.assertEqual(usage["completion_tokens"], 16)
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + 16)
        self.assertLess(usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"])
        self.assertEqual(usage["completion_tokens_details"],
                         {"reasoning_tokens": 0, "accepted_prediction_tokens": 0,
                          "rejected_prediction_tokens": 0})

    def test_shape_of_a_completion_answer(self):
        answer = self.post(COMPLETIONS, completion(prompt=["One", "Two"], n=2, logprobs=2))
        self.check_envelope(answer, "text_completion", "cmpl-")
        self.assertEqual([c["index"] for c in answer["choices"]], [0, 1, 2, 3])
        for choice in answer["choices"]:
            arrays = choice["logprobs"]
            self.assertEqual(set(arrays), {"tokens", "token_logprobs", "top_logprobs",
                                           "text_offset"})
            self.assertEqual({len(a) for a in arrays.values()}, {len(arrays["tokens"])})
            for token, logprob, top, offset in zip(*(arrays[k] for k in (
                    "tokens", "token_logprobs", "top_logprobs", "text_offset"))):
                self.assertEqual(top[token], logprob)
                self.assertIn(len(top), (2, 3))
                self.assertEqual(choice["text"][offset:offset + len(token)], token)
        want = len(self.post("/tokenize", {"prompt": "One"})["tokens"]) + len(
            self.post("/tokenize", {"prompt": "Two"})["tokens"])
        self.assertEqual(answer["usage"]["prompt_tokens"], want)

    def test_cached_tokens_are_reported_and_fewer_than_the_prompts(self):
        body = completion(prompt=[END] + [700 + i for i in range(100)], max_tokens=1)
        self.post(COMPLETIONS, body)
        usage = self.post(COMPLETIONS, body)["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        self.assertGreater(cached, 0)
        self.assertLess(cached, usage["prompt_tokens"])

    def test_chat_logprobs_spell_the_text(self):
        for fields in ({"ignore_eos": True, "max_tokens": 30},
                       {"ignore_eos": True, "max_tokens": 4, "logit_bias": {str(END): 60}},
                       {"ignore_eos": True, "max_tokens": 4, "logit_bias": {str(END): 60},
                        "skip_special_tokens": False}):
            answer = self.post(CHAT, chat(logprobs=True, top_logprobs=5, **fields))
            choice = answer["choices"][0]
            entries = choice["logprobs"]["content"]
            self.assertIsNone(choice["logprobs"]["refusal"])
            self.assertEqual(len(entries), fields["max_tokens"])
            spelled = b"".join(bytes(e["bytes"] or []) for e in entries)
            self.assertEqual(spelled.decode(), choice["message"]["content"])
            for entry in entries:
                top = [t["logprob"] for t in entry["top_logprobs"]]
                self.assertEqual(len(top), 5)
                self.assertEqual(top, sorted(top, reverse=True))
        # The end token has no entry; without top_logprobs the lists are empty.
        ended = self.post(CHAT, chat(logprobs=True, logit_bias={str(END): 100}))["choices"][0]
        self.assertEqual(ended["logprobs"]["content"], [])
        entry = self.post(CHAT, chat(logprobs=True))["choices"][0]["logprobs"]["content"][0]
        self.assertEqual(entry["top_logprobs"], [])
        self.refused(CHAT, chat(top_logprobs=2), "top_logprobs", "invalid_value")

    def test_prompt_logprobs_in_both_routes_and_echo_agree(self):
        scored = self.post(COMPLETIONS, completion(prompt_logprobs=2, max_tokens=1))["choices"][0]
        rows = scored["prompt_logprobs"]
        self.assertEqual(len(rows), len(PROMPT))
        self.assertIsNone(rows[0])
        echoed = self.post(COMPLETIONS, completion(echo=True, logprobs=2, max_tokens=0))
        arrays = echoed["choices"][0]["logprobs"]
        self.assertIsNone(arrays["token_logprobs"][0])
        self.assertIsNone(arrays["top_logprobs"][0])
        for position in range(1, len(PROMPT)):
            row = rows[position]
            own = row[str(PROMPT[position])]
            self.assertEqual(own["logprob"], arrays["token_logprobs"][position])
            self.assertEqual(set(own), {"logprob", "rank", "decoded_token"})
            self.assertIn(len(row), (2, 3))
            for entry in row.values():
                better = sum(other["logprob"] > entry["logprob"] for other in row.values())
                self.assertGreaterEqual(entry["rank"], better + 1)
        answer = self.post(CHAT, chat(prompt_logprobs=0))
        self.assertEqual(len(answer["prompt_logprobs"]), answer["usage"]["prompt_tokens"])
        self.assertIsNone(answer["prompt_logprobs"][0])
        self.assertEqual({len(row) for row in answer["prompt_logprobs"][1:]}, {1})

    def test_echo(self):
        text = "Once upon a time, there was a dog"
        answer = self.post(COMPLETIONS, completion(prompt=text, echo=True, logprobs=0))
        alone = self.post(COMPLETIONS, completion(prompt=text))
        self.assertEqual(plain_text(answer), text + plain_text(alone))
        arrays = answer["choices"][0]["logprobs"]
        self.assertEqual(len(arrays["tokens"]), answer["usage"]["total_tokens"])
        only = self.post(COMPLETIONS, completion(prompt=text, echo=True, max_tokens=0))
        self.assertEqual(plain_text(only), text)
        self.assertEqual(only["usage"]["completion_tokens"], 0)
        nothing = self.post(COMPLETIONS, completion(prompt=text, max_tokens=0))
        self.assertEqual((plain_text(nothing), nothing["choices"][0]["finish_reason"]),
                         ("", "length"))
        self.assertEqual(text_of(self.chunks(COMPLETIONS, completion(prompt=text, echo=True))),
                         plain_text(answer))

    def test_kinds_of_prompts(self):
        for prompt in ([], [[]], [[1], []], [1, "a"], ["a", 1], [[1], "a"], ["a", [1]], {}, 5,
                       [None], [[1, [2]]]):
            status, _, answer = self.send(COMPLETIONS, completion(prompt=prompt))
            self.assertEqual(status, 400, prompt)
            self.assertTrue(answer["error"]["param"].startswith("prompt"), answer)
        self.refused(COMPLETIONS, {"model": MODEL}, "prompt", "missing_required_parameter")
        empty = self.post(COMPLETIONS, completion(prompt="", return_token_ids=True))
        self.assertEqual(empty["choices"][0]["prompt_token_ids"], [END])
        bare = self.post(COMPLETIONS, completion(prompt="Once", add_special_tokens=False,
                                                 return_token_ids=True))
        self.assertNotIn(END, bare["choices"][0]["prompt_token_ids"])

    def test_token_ids(self):
        for path, base in ((CHAT, chat()), (COMPLETIONS, completion())):
            body = dict(base, return_token_ids=True, n=2, temperature=1, seed=3)
            answer = self.post(path, body)
            chunks = self.chunks(path, body)
            holder = answer if path == CHAT else answer["choices"][0]
            self.assertEqual(len(holder["prompt_token_ids"]), answer["usage"]["prompt_tokens"])
            streamed = [c if path == CHAT else c["choices"][0] for c in chunks]
            self.assertIn(holder["prompt_token_ids"],
                          [c["prompt_token_ids"] for c in streamed if "prompt_token_ids" in c])
            for index in range(2):
                want = answer["choices"][index]["token_ids"]
                got = [i for c in chunks for choice in c["choices"] if choice["index"] == index
                       for i in choice.get("token_ids", [])]
                self.assertEqual(got, want)
            self.assertEqual(sum(len(c["token_ids"]) for c in answer["choices"]),
                             answer["usage"]["completion_tokens"])

    def test_tokens_named_by_id(self):
        ids = self.post(COMPLETIONS, completion(return_token_ids=True))["choices"][0]["token_ids"]
        named = self.post(COMPLETIONS, completion(logprobs=0, return_tokens_as_token_ids=True))
        self.assertEqual(named["choices"][0]["logprobs"]["tokens"], [f"token_id:{i}" for i in ids])
        named = self.post(CHAT, chat(logprobs=True, return_tokens_as_token_ids=True))
        for entry in named["choices"][0]["logprobs"]["content"]:
            self.assertRegex(entry["token"], r"^token_id:\d+$")

    def test_the_fingerprint_is_stable(self):
        prints = {self.post(path, body)["system_fingerprint"]
                  for path, body in ((CHAT, chat()), (COMPLETIONS, completion()))}
        self.assertEqual(len(prints), 1)


class Reasoning(ApiCase):
    """The embedded model is not trained to think: its template opens a thought that never ends."""

    def setUp(self):
        super().setUp()
        self.template = self.path / "think.jinja"
        self.template.write_text("{{ bos_token }}{{ messages[0].content }}\n<think>\n")

    def test_thoughts_are_answered_apart_where_the_template_knows_them(self):
        plain = self.serve("--chat-template", str(self.template), "--reasoning-parser", "none")
        want = plain_text(self.post(CHAT, chat(max_tokens=20, ignore_eos=True), plain))
        self.assertEqual(plain.stop(), 0)
        server = self.serve("--chat-template", str(self.template))
        body = chat(max_tokens=20, ignore_eos=True, logprobs=True)
        answer = self.post(CHAT, body, server)
        message = answer["choices"][0]["message"]
        self.assertEqual(message["reasoning_content"], want)
        self.assertEqual(message["reasoning"], want)
        self.assertEqual(message["content"], "")
        self.assertEqual(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 20)
        chunks = self.chunks(CHAT, body, server)
        deltas = [c["choices"][0]["delta"] for c in chunks]
        self.assertEqual("".join(d.get("reasoning_content", "") for d in deltas), want)
        self.assertEqual(text_of(chunks), "")
        entries = [e for c in chunks if c["choices"][0]["logprobs"]
                   for e in c["choices"][0]["logprobs"]["content"]]
        self.assertEqual(entries, answer["choices"][0]["logprobs"]["content"])


# ---- streams

class Streams(ApiCase):
    VARIANTS = (
        {"temperature": 0, "max_tokens": 40},
        {"temperature": 1, "seed": 7, "n": 3, "max_tokens": 30},
        {"temperature": 1.5, "seed": 8, "stop": ["e", "the "], "max_tokens": 60},
        {"temperature": 1, "seed": 9, "stop": [" a"], "include_stop_str_in_output": True},
        {"temperature": 0, "ignore_eos": True, "logit_bias": {str(END): 60},
         "skip_special_tokens": False},
    )

    def test_deltas_spell_the_plain_answer_byte_for_byte(self):
        for variant in self.VARIANTS:
            for path, base in ((CHAT, chat()), (COMPLETIONS, completion())):
                fields = dict(base, **variant)
                fields.update({"logprobs": True, "top_logprobs": 2} if path == CHAT
                              else {"logprobs": 2})
                plain = self.post(path, fields)
                chunks = self.chunks(path, fields)
                for index, choice in enumerate(plain["choices"]):
                    self.assertEqual(text_of(chunks, index), plain_text(plain, index))
                    mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
                    logprobs = [c["logprobs"] for c in mine if c["logprobs"]]
                    if path == CHAT:
                        self.assertEqual([e for l in logprobs for e in l["content"]],
                                         choice["logprobs"]["content"])
                    else:
                        for key, want in choice["logprobs"].items():
                            self.assertEqual([e for l in logprobs for e in l[key]], want)
                    self.assertEqual(mine[-1]["finish_reason"], choice["finish_reason"])
                    self.assertEqual(mine[-1]["stop_reason"], choice["stop_reason"])

    def test_order_and_shape_of_chat_chunks(self):
        chunks = self.chunks(CHAT, chat(n=3, temperature=1, seed=2, logprobs=True))
        heads = {json.dumps({k: v for k, v in c.items() if k != "choices"}) for c in chunks}
        self.assertEqual(len(heads), 1, "id, created, model and fingerprint are the same")
        self.assertEqual(chunks[0]["object"], "chat.completion.chunk")
        self.assertTrue(chunks[0]["id"].startswith("chatcmpl-"))
        for index in range(3):
            mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
            self.assertEqual(mine[0]["delta"], {"role": "assistant", "content": ""})
            self.assertEqual(mine[-1]["delta"], {})
            self.assertEqual(mine[-1]["finish_reason"], "length")
            for choice in mine[1:-1]:
                self.assertEqual(set(choice["delta"]), {"content"})
                # A delta may be empty only to carry logprobs.
                self.assertTrue(choice["delta"]["content"] or choice["logprobs"])
            for choice in mine[:-1]:
                self.assertIsNone(choice["finish_reason"])
                self.assertEqual(set(choice), {"index", "delta", "logprobs", "finish_reason"})
        for chunk in self.chunks(CHAT, chat())[1:-1]:
            self.assertTrue(chunk["choices"][0]["delta"]["content"])

    def test_logprobs_belong_to_the_text_of_their_chunk(self):
        for stop in (None, ["zzzz", "ing the"]):
            chunks = self.chunks(CHAT, chat(max_tokens=60, logprobs=True, stop=stop,
                                            ignore_eos=True))
            for chunk in chunks[1:-2]:
                choice = chunk["choices"][0]
                spelled = b"".join(bytes(e["bytes"]) for e in choice["logprobs"]["content"])
                self.assertEqual(spelled.decode(), choice["delta"]["content"])

    def test_usage_in_streams(self):
        for path, base in ((CHAT, chat(n=2)), (COMPLETIONS, completion(n=2))):
            plain = self.post(path, base)["usage"]
            for chunk in self.chunks(path, base):
                self.assertNotIn("usage", chunk)
            for chunk in self.chunks(path, dict(base, stream_options={})):
                self.assertNotIn("usage", chunk)
            chunks = self.chunks(path, dict(base, stream_options={"include_usage": True, "x": 1}))
            self.assertEqual({json.dumps(c["usage"]) for c in chunks[:-1]}, {"null"})
            self.assertEqual(chunks[-1]["choices"], [])
            for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
                self.assertEqual(chunks[-1]["usage"][key], plain[key])
            self.assertTrue(all(c["choices"] for c in chunks[:-1]))
            running = self.chunks(path, dict(base, stream_options={
                "include_usage": True, "continuous_usage_stats": True}))
            counts = [c["usage"]["completion_tokens"] for c in running]
            self.assertEqual(counts, sorted(counts))
            self.assertEqual(counts[-1], plain["completion_tokens"])
            self.assertLess(counts[0], counts[-1])
            self.assertEqual({c["usage"]["prompt_tokens"] for c in running},
                             {plain["prompt_tokens"]})
            self.refused(path, dict(base, stream_options={"include_usage": True}),
                         "stream_options", "invalid_value")
            self.refused(path, dict(base, stream=True, stream_options={"include_usage": 1}),
                         "stream_options.include_usage", "invalid_type")

    def test_several_prompts_and_choices_in_one_stream(self):
        body = completion(prompt=["One day", "Once upon", "Lily"], n=2, temperature=1, seed=5,
                          max_tokens=20)
        plain = self.post(COMPLETIONS, body)
        chunks = self.chunks(COMPLETIONS, dict(body, stream_options={"include_usage": True}))
        for chunk in chunks:
            self.assertEqual(chunk["object"], "text_completion")
            self.assertLessEqual(len(chunk["choices"]), 1)
        for index in range(6):
            self.assertEqual(text_of(chunks, index), plain_text(plain, index))
            mine = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == index]
            self.assertEqual([c["finish_reason"] for c in mine][:-1], [None] * (len(mine) - 1))
            self.assertIsNotNone(mine[-1]["finish_reason"])
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"],
                         plain["usage"]["completion_tokens"])
        self.assertEqual(len({p["text"] for p in plain["choices"]}), 6)

    def test_bytes_that_are_no_characters(self):
        # Single-byte tokens come first in the vocabulary; those of high bytes are broken UTF-8 in most orders.
        ids = [i for i in range(1, 257, 7)] + [i for i in range(130, 257)]
        bias = {str(i): 100 for i in ids}
        replaced = 0
        for seed in range(12):
            fields = dict(max_tokens=40, temperature=2, seed=seed, logit_bias=bias, ignore_eos=True)
            plain = self.post(CHAT, chat(logprobs=True, **fields))["choices"][0]
            raw = b"".join(bytes(e["bytes"]) for e in plain["logprobs"]["content"])
            self.assertEqual(plain["message"]["content"], raw.decode("utf-8", "replace"))
            self.assertEqual(text_of(self.chunks(CHAT, chat(**fields))),
                             plain["message"]["content"])
            replaced += plain["message"]["content"].count("\ufffd")
        self.assertGreater(replaced, 10)

    def test_a_stop_string_never_appears_in_part(self):
        letters = {}
        for letter in "ab":
            letters[letter], = self.post("/tokenize", {"prompt": letter, "add_special_tokens": False})["tokens"]
        bias = {str(i): 100 for i in letters.values()}
        wanted = set()
        for seed in range(20):
            fields = dict(max_tokens=30, temperature=2, seed=seed, logit_bias=bias, ignore_eos=True)
            whole = plain_text(self.post(COMPLETIONS, completion(**fields)))
            # Each occurs by construction; with two letters, parts of it usually occur earlier.
            stops = [whole[20:24], whole[24:29]]
            end, stop = min((whole.index(s) + len(s), s) for s in stops)
            wanted.add(whole[:end - len(stop)])
            chunks = self.chunks(COMPLETIONS, completion(stop=stops, **fields))
            self.assertEqual(text_of(chunks), whole[:end - len(stop)])
        self.assertGreater(len(wanted), 1)

    def test_refusals_of_streams_have_their_own_status(self):
        for body, param, code in ((chat(stream=True, temperature=9), "temperature",
                                   "invalid_value"),
                                  (completion(stream=True, prompt=[300] * CONTEXT), "prompt",
                                   "context_length_exceeded")):
            self.refused(CHAT if "messages" in body else COMPLETIONS, body, param, code)

    def test_silence_is_broken_by_pings(self):
        server = self.serve("--max-seqs", "1", "--ping-interval", "0.05")
        busy = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
        self.addCleanup(busy.close)
        busy.request("POST", COMPLETIONS, json.dumps(completion(
            stream=True, max_tokens=900, ignore_eos=True)), {"Content-Type": "application/json"})
        response = busy.getresponse()
        response.read(1)
        events = self.events(COMPLETIONS, completion(), server)  # waits for its turn
        self.assertEqual(events[0], ": ping")
        self.assertEqual(events[-1], "data: [DONE]")
        response.read()

    def test_a_failure_after_the_start_is_one_event_and_done(self):
        server = self.serve("--request-timeout", "0.2")
        events = self.events(CHAT, chat(max_tokens=900, n=64, ignore_eos=True), server)
        self.assertEqual(events[-1], "data: [DONE]")
        self.assertEqual(sum('"error"' in e for e in events), 1)
        error = json.loads(events[-2][len("data: "):])["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertEqual(error["type"], "server_error")

    def test_one_event_per_step_and_no_other_lines(self):
        events = self.events(CHAT, chat(max_tokens=30, ignore_eos=True))
        # Role, text, finish, [DONE]: no step's token waits for the next step.
        self.assertGreaterEqual(len(events), 25)


# ---- client text is text

class ControlTokens(ApiCase):
    def special_tokens(self):
        added = json.loads((MODEL_FILES / "tokenizer.json").read_text())["added_tokens"]
        return {token["content"]: token["id"] for token in added}

    def test_control_tokens_in_client_text_stay_letters(self):
        server = self.echoing()
        for spelling, token in self.special_tokens().items():
            half = len(spelling) // 2
            for text in (spelling, f"a{spelling}b", spelling * 3, f" {spelling}\n"):
                plain = self.post("/tokenize", {"prompt": text, "add_special_tokens": False})
                self.assertNotIn(token, plain["tokens"])
                ids = self.post(COMPLETIONS, completion(prompt=text, return_token_ids=True,
                                                        add_special_tokens=False))
                self.assertEqual(ids["choices"][0]["prompt_token_ids"], plain["tokens"])
                listed = self.post(COMPLETIONS, completion(prompt=["x", text],
                                                           return_token_ids=True))
                self.assertEqual(listed["choices"][1]["prompt_token_ids"],
                                 [END] + plain["tokens"])

                conversations = [
                    (user(text), 1),
                    ([{"role": "system", "content": text}] + user(text), 1),
                    ([{"role": "user", "content": [{"type": "text", "text": spelling[:half]},
                                                   {"type": "text", "text": spelling[half:]}]}], 1),
                    # The template itself ends the assistant's turn once.
                    (user("q") + [{"role": "assistant", "content": text}] + user(text), 2),
                ]
                for messages, own in conversations:
                    for kwargs in (None, {"style": spelling}):
                        body = {"model": MODEL, "messages": messages,
                                "chat_template_kwargs": kwargs}
                        ids = self.post("/tokenize", body, server)["tokens"]
                        self.assertEqual(ids.count(token), own, body)
                        rendered = self.post("/v1/render", body, server)
                        self.assertEqual([t["id"] for t in rendered["tokens"]], ids)
                        answer = self.post(CHAT, dict(body, max_tokens=1, return_token_ids=True),
                                           server)
                        self.assertEqual(answer["prompt_token_ids"], ids)

    def test_through_the_models_own_template(self):
        for spelling, token in self.special_tokens().items():
            clean = self.post("/tokenize", {"messages": user("q")})["tokens"]
            messages = user(f"{spelling} dog")
            ids = self.post("/tokenize", {"messages": messages})["tokens"]
            self.assertEqual(ids.count(token), clean.count(token))
            answer = self.post(CHAT, chat(messages=messages, return_token_ids=True))
            self.assertEqual(answer["prompt_token_ids"], ids)


# ---- tokenize, detokenize, render

class Tokens(ApiCase):
    TEXTS = ("Once upon a time", "", " leading", "trailing ", "é😀\n\t\u0000x", "<|endoftext|>", "a" * 3000,
             "多言語 text")

    def test_text_survives(self):
        for text in self.TEXTS:
            for special in (True, False):
                answer = self.post("/tokenize", {"prompt": text, "add_special_tokens": special})
                self.assertEqual(set(answer), {"count", "max_model_len", "tokens", "token_strs"})
                self.assertEqual(answer["count"], len(answer["tokens"]))
                self.assertEqual(answer["max_model_len"], CONTEXT)
                self.assertIsNone(answer["token_strs"])
                back = self.post("/detokenize", {"tokens": answer["tokens"]})
                self.assertEqual(back, {"prompt": text, "content": text})
            self.assertEqual(self.post("/tokenize", {"content": text}),
                             self.post("/tokenize", {"model": MODEL, "prompt": text}))

    def test_token_strs(self):
        answer = self.post("/tokenize", {"prompt": "Once upon a time", "return_token_strs": True,
                                         "add_special_tokens": False})
        self.assertEqual("".join(answer["token_strs"]), "Once upon a time")

    def test_counts_of_chats_are_what_generation_counts(self):
        for server in (self.server, self.echoing()):
            for messages in (user(), user("a") + [{"role": "assistant", "content": "b"}] + user("c"),
                             [{"role": "system", "content": "s"}] + user("é😀" * 20)):
                for fields in ({}, {"add_generation_prompt": False},
                               {"chat_template_kwargs": {"style": "x"}}):
                    body = dict({"model": MODEL, "messages": messages}, **fields)
                    want = self.post(CHAT, dict(body, max_tokens=1), server)["usage"]
                    self.assertEqual(self.post("/tokenize", body, server)["count"],
                                     want["prompt_tokens"])
                    self.assertEqual(self.post("/v1/render", body, server)["count"],
                                     want["prompt_tokens"])

    def test_refusals(self):
        self.refused("/tokenize", {}, "prompt", "missing_required_parameter")
        self.refused("/tokenize", {"prompt": 5}, "prompt", "invalid_type")
        self.refused("/tokenize", {"prompt": "a", "messages": user()}, "messages", "invalid_value")
        self.refused("/tokenize", {"messages": user(), "tools": [{}]}, "tools[0].type",
                     "missing_required_parameter")
        tools = [{"type": "function", "function": {"name": "f"}}]
        told = self.post("/v1/render", {"messages": user(), "tools": tools}, self.echoing())
        self.assertIn('{"name":"f"}', told["text"])
        count = self.post("/tokenize", {"messages": user(), "tools": tools}, self.echoing())["count"]
        self.assertEqual(count, told["count"])
        self.refused("/tokenize", {"prompt": "a", "model": "x"}, "model", "model_not_found", 404)
        self.refused("/detokenize", {}, "tokens", "missing_required_parameter")
        self.refused("/detokenize", {"tokens": "a"}, "tokens", "invalid_type")
        self.refused("/v1/render", {}, "messages", "missing_required_parameter")
        self.refused("/v1/render", {"messages": user(), "train": 1}, "train", "invalid_type")
        self.refused("/v1/render", {"messages": user(), "train": True}, "messages",
                     "invalid_value")

    def test_rendered_tokens(self):
        server = self.echoing()
        answer = self.post("/v1/render", {"messages": user("é 😀")}, server)
        self.assertEqual(set(answer), {"text", "tokens", "bos_from", "count"})
        self.assertEqual(answer["bos_from"], "template")
        self.assertEqual(b"".join(bytes(t["bytes"]) for t in answer["tokens"]).decode(),
                         answer["text"])
        for token in answer["tokens"]:
            self.assertEqual(set(token), {"id", "text", "bytes", "special", "loss"})
            self.assertEqual(token["special"], token["id"] == END)
            self.assertFalse(token["loss"])

    def test_the_loss_mask_covers_the_assistant(self):
        server = self.echoing()
        messages = (user("same words") + [{"role": "assistant", "content": "same words"}] +
                    user("more") + [{"role": "assistant", "content": "left out", "weight": 0}] +
                    user("last") + [{"role": "assistant", "content": "The end é."}])
        answer = self.post("/v1/render", {"messages": messages, "train": True}, server)
        self.assertTrue(answer["text"].endswith("The end é.<|endoftext|>"))
        learned = [t for t in answer["tokens"] if t["loss"]]
        text = b"".join(bytes(t["bytes"]) for t in learned).decode()
        self.assertEqual(text, "same words<|endoftext|>The end é.<|endoftext|>")
        # The control tokens are the ends of the two turns, not the start of the text.
        self.assertFalse(answer["tokens"][0]["loss"])


# ---- embeddings

class Embeddings(ApiCase):
    PATH = "/v1/embeddings"

    def embed(self, text, **fields):
        answer = self.post(self.PATH, dict({"model": MODEL, "input": text}, **fields))
        return [entry["embedding"] for entry in answer["data"]]

    def test_shape_of_an_answer(self):
        answer = self.post(self.PATH, {"model": MODEL, "input": ["A dog.", "A cat sat."]})
        self.assertEqual(set(answer), {"object", "data", "model", "usage"})
        self.assertEqual((answer["object"], answer["model"]), ("list", MODEL))
        for i, entry in enumerate(answer["data"]):
            self.assertEqual((set(entry), entry["object"], entry["index"]),
                             ({"object", "index", "embedding"}, "embedding", i))
            self.assertAlmostEqual(sum(x * x for x in entry["embedding"]), 1, places=5)
        usage = answer["usage"]
        self.assertEqual(set(usage), {"prompt_tokens", "total_tokens"})
        self.assertEqual(usage["prompt_tokens"], usage["total_tokens"])

    def test_base64_holds_the_same_floats(self):
        floats = self.embed("A dog ran.")[0]
        text = self.embed("A dog ran.", encoding_format="base64")[0]
        raw = base64.b64decode(text, validate=True)
        self.assertEqual(len(raw), 4 * len(floats))
        self.assertEqual([struct.pack("<f", x) for x in floats],
                         [raw[i:i + 4] for i in range(0, len(raw), 4)])

    def test_the_same_alone_in_a_list_and_under_load(self):
        texts = [f"Story {i}. " + "A dog ran far away. " * (3 * i) for i in range(12)]
        for pooling in ("mean", "last", "cls"):
            alone = [self.embed(text, pooling=pooling)[0] for text in texts]
            together = self.embed(texts, pooling=pooling)
            self.assertEqual(alone, together)
        results = []

        def ask(text):
            body = {"model": MODEL, "input": text, "pooling": "mean"}
            results.append((text, self.server.request("POST", self.PATH, body)[2]))

        threads = [threading.Thread(target=ask, args=(text,)) for text in texts]
        for thread in threads:
            thread.start()
        self.post(COMPLETIONS, completion(max_tokens=40))
        for thread in threads:
            thread.join()
        alone = {text: self.embed(text, pooling="mean")[0] for text in texts}
        self.assertEqual({text: answer["data"][0]["embedding"] for text, answer in results}, alone)

    def test_a_word_more_changes_less_than_another_subject(self):
        answer = self.post("/v1/rerank", {
            "model": MODEL, "query": "A dog ran in the park.", "pooling": "mean",
            "documents": ["He put the spoon on the table.", "A dog ran in the big park."]})
        self.assertEqual(answer["results"][0]["index"], 1)
        scores = [result["relevance_score"] for result in answer["results"]]
        self.assertEqual(scores, sorted(scores, reverse=True))

    def test_limits_of_inputs(self):
        full = [300] * CONTEXT
        answer = self.post(self.PATH, {"model": MODEL, "input": full, "dimensions": 1})
        self.assertEqual(answer["usage"]["total_tokens"], CONTEXT)
        message = self.refused(self.PATH, {"model": MODEL, "input": full + [300]}, "input",
                               "context_length_exceeded")
        self.assertIn(str(CONTEXT), message)
        self.assertIn(str(CONTEXT + 1), message)
        self.assertEqual(len(self.embed(["a"] * 2048, dimensions=1)), 2048)
        self.refused(self.PATH, {"model": MODEL, "input": ["a"] * 2049}, "input", "invalid_value")


# ---- models

class Models(ApiCase):
    KEYS = {"id", "object", "created", "owned_by", "max_model_len", "root", "parent",
            "capabilities", "provenance"}

    def test_models(self):
        status, _, listed = self.server.request("GET", "/v1/models")
        self.assertEqual((status, listed["object"]), (200, "list"))
        model, = listed["data"]
        self.assertEqual(set(model), self.KEYS)
        self.assertEqual((model["id"], model["object"], model["owned_by"], model["root"]),
                         (MODEL, "model", "local", MODEL))
        self.assertIsInstance(model["created"], int)
        self.assertEqual(model["max_model_len"], CONTEXT)
        self.assertIsNone(model["parent"])
        self.assertLessEqual({"chat", "completions", "embeddings"}, set(model["capabilities"]))
        self.assertEqual(self.server.request("GET", f"/v1/models/{MODEL}")[2], model)
        status, _, answer = self.server.request("GET", "/v1/models/none")
        self.assertEqual((status, answer["error"]["code"], answer["error"]["param"]),
                         (404, "model_not_found", "model"))
        self.assertIn(MODEL, answer["error"]["message"])

    def test_ids_with_slashes_and_colons(self):
        name = "org/team/story:v1.0"
        server = self.serve("--served-model-name", name, "--served-model-name", "short")
        for path in (name, urllib.parse.quote(name, safe=""), urllib.parse.quote(name),
                     name.replace(":", "%3a")):
            status, _, model = server.request("GET", f"/v1/models/{path}")
            self.assertEqual((status, model.get("id")), (200, name), path)
        ids = [m["id"] for m in server.request("GET", "/v1/models")[2]["data"]]
        self.assertEqual(sorted(ids), sorted([name, "short"]))
        for asked in (name, "short"):
            self.assertEqual(self.post(CHAT, chat(model=asked), server)["model"], name)
        self.refused(CHAT, chat(), "model", "model_not_found", 404, server)
        for path in (name, urllib.parse.quote(name, safe="")):
            status, _, answer = server.request("DELETE", f"/v1/models/{path}")
            self.assertEqual((status, answer["error"]["code"], answer["error"]["type"]),
                             (403, "model_protected", "permission_error"))
        self.assertEqual(server.request("DELETE", "/v1/models/none")[0], 404)
        self.post(CHAT, chat(model="short"), server)

    def test_any_model_name(self):
        server = self.serve("--any-model-name")
        self.assertEqual(self.post(CHAT, chat(model="gpt-4o"), server)["model"], MODEL)
        self.assertEqual(server.request("GET", "/v1/models/gpt-4o")[0], 404)
        self.assertEqual(server.request("DELETE", "/v1/models/gpt-4o")[0], 404)


# ---- determinism

class Determinism(ApiCase):
    def outcome(self, path, body):
        answer = self.post(path, body)
        return [(plain_text(answer, i), json.dumps(c["logprobs"]))
                for i, c in enumerate(answer["choices"])]

    def test_alone_in_company_streamed_and_cached(self):
        bodies = [(CHAT, chat(max_tokens=40, logprobs=True, top_logprobs=3)),
                  (CHAT, chat(max_tokens=40, temperature=1.2, seed=42, n=3, logprobs=True)),
                  (COMPLETIONS, completion(prompt=["One", "Two"], temperature=1, seed=-5, n=2,
                                           logprobs=1, max_tokens=30)),
                  (COMPLETIONS, completion(temperature=0.8, seed=0, top_k=40, top_p=0.9, min_p=0.01,
                                           repetition_penalty=1.1, max_tokens=40))]
        alone = [self.outcome(path, body) for path, body in bodies]
        self.assertEqual([self.outcome(path, body) for path, body in bodies], alone)

        stop = threading.Event()

        def company(seed):
            while not stop.is_set():
                self.server.request("POST", COMPLETIONS, completion(
                    prompt=[END] + [400 + seed * 7 + i for i in range(50 + seed)], seed=seed,
                    temperature=1, max_tokens=30, n=2))

        threads = [threading.Thread(target=company, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        try:
            for (path, body), want in zip(bodies, alone):
                self.assertEqual(self.outcome(path, body), want)
                chunks = self.chunks(path, body)
                for index, (text, _) in enumerate(want):
                    self.assertEqual(text_of(chunks, index), text)
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def test_choices_and_prompts_have_draws_of_their_own(self):
        three = self.post(COMPLETIONS, completion(n=3, seed=11, temperature=1))
        five = self.post(COMPLETIONS, completion(n=5, seed=11, temperature=1))
        self.assertEqual([c["text"] for c in three["choices"]],
                         [c["text"] for c in five["choices"]][:3])
        self.assertGreater(len({c["text"] for c in five["choices"]}), 1)
        same = self.post(COMPLETIONS, completion(prompt=[PROMPT, PROMPT], seed=11, temperature=1))
        self.assertNotEqual(same["choices"][0]["text"], same["choices"][1]["text"])
        self.assertEqual(same["choices"][0]["text"], three["choices"][0]["text"])
        free = {plain_text(self.post(COMPLETIONS, completion(temperature=1))) for _ in range(4)}
        self.assertGreater(len(free), 1, "without a seed every request draws anew")


# ---- documentation

class Documentation(Case):
    def test_answers_have_the_keys_that_the_description_requires(self):
        server = Shared.start("plain")
        document = server.request("GET", "/openapi.json")[2]
        schemas = document["components"]["schemas"]

        def check(schema, value, where):
            if "$ref" in schema:
                return check(schemas[schema["$ref"].rsplit("/", 1)[1]], value, where)
            if "oneOf" in schema:
                faults = []
                for option in schema["oneOf"]:
                    try:
                        return check(option, value, where)
                    except AssertionError as fault:
                        faults.append(fault)
                raise AssertionError(f"{where}: {faults}")
            if "const" in schema:
                self.assertEqual(value, schema["const"], where)
            if "enum" in schema:
                self.assertIn(value, schema["enum"], where)
            if "type" in schema:
                types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
                kinds = {"object": dict, "array": list, "string": str, "boolean": bool,
                         "integer": int, "number": (int, float), "null": type(None)}
                self.assertIsInstance(value, tuple(
                    k for t in types for k in (kinds[t] if isinstance(kinds[t], tuple) else
                                               (kinds[t],))), where)
            if isinstance(value, dict):
                properties = schema.get("properties", {})
                for key in schema.get("required", []):
                    self.assertIn(key, value, where)
                for key, member in value.items():
                    rule = properties.get(key, schema.get("additionalProperties"))
                    self.assertIsNotNone(rule, f"{where}.{key} is not described")
                    check(rule, member, f"{where}.{key}")
            if isinstance(value, list):
                for index, item in enumerate(value):
                    check(schema["items"], item, f"{where}[{index}]")

        rich = {"n": 2, "logprobs": True, "top_logprobs": 2, "prompt_logprobs": 1,
                "return_token_ids": True}
        check({"$ref": "x/ChatCompletion"}, server.post(CHAT, chat(**rich)), "chat")
        chunks, _ = server.stream(CHAT, chat(stream_options={"include_usage": True}, **rich))
        for chunk in chunks:
            check({"$ref": "x/ChatCompletionChunk"}, chunk, "chunk")
        rich.update(logprobs=2)
        del rich["top_logprobs"]
        check({"$ref": "x/Completion"}, server.post(COMPLETIONS, completion(echo=True, **rich)), "")
        chunks, _ = server.stream(COMPLETIONS, completion(**rich))
        for chunk in chunks:
            check({"$ref": "x/Completion"}, chunk, "chunk")
        for method, path, body, schema in (
                ("GET", "/v1/models", None, "ModelList"),
                ("GET", f"/v1/models/{MODEL}", None, "Model"),
                ("GET", "/version", None, "Version"), ("GET", "/ready", None, "Status"),
                ("GET", "/v1/models/none", None, "Error"),
                ("POST", "/tokenize", {"prompt": "a", "return_token_strs": True}, "Tokens"),
                ("POST", "/detokenize", {"tokens": [300]}, "DetokenizedText"),
                ("POST", "/v1/render", {"messages": user()}, "RenderedChat")):
            check({"$ref": f"x/{schema}"}, server.request(method, path, body)[2], path)
        check({"$ref": "x/AdminModelList"},
              server.request("GET", "/admin/models", admin=True)[2], "/admin/models")


if __name__ == "__main__":
    harness.main()
