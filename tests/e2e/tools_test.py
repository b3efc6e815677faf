#!/usr/bin/env python3
"""Tools of a running program, at a temperature at which free text would be noise.

`tools_test.py BINARY [unittest arguments]`.
"""

import json
import re

import harness
from harness import Case

CHAT = "/v1/chat/completions"
FORMATS = ("hermes", "qwen3-coder", "mistral", "mistral-args", "functiongemma", "gemma4",
           "harmony", "llama3-json", "pythonic", "json")
WEATHER = {"type": "object", "additionalProperties": False, "required": ["city", "days"],
           "properties": {"city": {"enum": ["Bern", "Oslo"]},
                          "days": {"type": "integer", "minimum": 1, "maximum": 14},
                          "exact": {"type": "boolean"}}}
PING = {"type": "object", "additionalProperties": False, "properties": {}}


def function(name, parameters=None, **more):
    inner = dict({"name": name}, **more)
    if parameters is not None:
        inner["parameters"] = parameters
    return {"type": "function", "function": inner}


def custom(name, syntax=None, definition=None):
    inner = {"name": name, "description": "Takes text."}
    if syntax:
        inner["format"] = {"type": "grammar",
                           "grammar": {"syntax": syntax, "definition": definition}}
    return {"type": "custom", "custom": inner}


TOOLS = [function("weather", WEATHER), function("ping", PING)]


def chat(**more):
    return dict({"model": "tandem-stories", "temperature": 1.5, "max_tokens": 200, "tools": TOOLS,
                 "messages": [{"role": "user", "content": "How is the weather?"}]}, **more)


class Tools(Case):
    arguments = ()

    def setUp(self):
        super().setUp()
        self.server = self.serve(*self.arguments)
        self.has_rust = self.server.request("GET", "/version")[2]["llguidance"] is not None

    def restart(self, *arguments):
        """Another server in place of the first one: both have the same data directory."""
        self.server.stop()
        self.server = self.serve(*arguments)
        return self.server

    def need_rust(self):
        if not self.has_rust:
            self.skipTest("built without Rust")

    def refused(self, body, param, code):
        for stream in (False, True):
            status, _, answer = self.server.request("POST", CHAT, dict(body, stream=stream))
            self.assertEqual(status, 400, answer)
            self.assertEqual((answer["error"]["param"], answer["error"]["code"]), (param, code),
                             answer)

    def check_weather(self, arguments):
        self.assertLessEqual(set(arguments), {"city", "days", "exact"})
        self.assertIn(arguments["city"], ("Bern", "Oslo"))
        self.assertIn(arguments["days"], range(1, 15))
        self.assertIn(arguments.get("exact", True), (True, False))

    def check_call(self, call):
        self.assertEqual(call["type"], "function")
        arguments = json.loads(call["function"]["arguments"])
        if call["function"]["name"] == "weather":
            self.check_weather(arguments)
        else:
            self.assertEqual((call["function"]["name"], arguments), ("ping", {}))

    def check_forced(self, choice, most=None):
        """The calls of a forced answer; None if the token limit has cut it."""
        message = choice["message"]
        if choice["finish_reason"] == "length":
            return None
        self.assertEqual(choice["finish_reason"], "tool_calls", choice)
        self.assertIsNone(message["content"])
        for call in message["tool_calls"]:
            self.check_call(call)
        if most is not None:
            self.assertLessEqual(len(message["tool_calls"]), most)
        return message["tool_calls"]


def joined(events):
    """The message and the finish reason that a stream spells."""
    message = {"content": "", "tool_calls": []}
    reason = None
    for event in events:
        for choice in event["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            for part in delta.get("tool_calls", []):
                if part["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append(part)
                    continue
                call = message["tool_calls"][part["index"]]
                kind = call["type"]
                key = "input" if kind == "custom" else "arguments"
                call[kind][key] += part[kind][key]
            reason = choice["finish_reason"] or reason
    return message, reason


class EveryChoice(Tools):
    def setUp(self):
        super().setUp()
        self.need_rust()

    def test_every_choice_that_forces_a_call_makes_one(self):
        named = {"type": "function", "function": {"name": "weather"}}
        allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
        for choice, names in (("required", {"weather", "ping"}), (named, {"weather"}),
                              (allowed, {"weather"})):
            for parallel in (True, False):
                with self.subTest(choice=choice, parallel=parallel):
                    found = 0
                    for seed in range(4):
                        answer = self.server.post(CHAT, chat(tool_choice=choice, seed=seed, n=2,
                                                             parallel_tool_calls=parallel))
                        self.assertEqual(len(answer["choices"]), 2)
                        for one in answer["choices"]:
                            calls = self.check_forced(one, None if parallel else 1) or []
                            found += len(calls)
                            self.assertLessEqual({call["function"]["name"] for call in calls}, names)
                    self.assertGreater(found, 0)

    def test_a_stream_spells_the_same_calls(self):
        for seed in range(4):
            body = chat(tool_choice="required", seed=seed, parallel_tool_calls=False)
            whole = self.server.post(CHAT, body)["choices"][0]
            events, is_done = self.server.stream(CHAT, body)
            message, reason = joined(events)
            self.assertTrue(is_done)
            self.assertEqual(reason, whole["finish_reason"])
            self.assertEqual([call["function"] for call in message["tool_calls"]],
                             [call["function"] for call in whole["message"].get("tool_calls", [])])

    def test_a_cut_call_has_the_reason_length(self):
        body = chat(tool_choice="required", max_tokens=4)
        self.assertEqual(self.server.post(CHAT, body)["choices"][0]["finish_reason"], "length")
        self.assertEqual(joined(self.server.stream(CHAT, body)[0])[1], "length")

    def test_free_answers_are_text_or_valid_calls(self):
        for seed in range(6):
            choice = self.server.post(CHAT, chat(seed=seed, max_tokens=60))["choices"][0]
            for call in choice["message"].get("tool_calls", []):
                if choice["finish_reason"] == "tool_calls":
                    self.check_call(call)
        for body in (chat(tool_choice="none", max_tokens=20),
                     chat(tool_choice={"type": "allowed_tools",
                                       "allowed_tools": {"mode": "auto", "tools": []}}, max_tokens=20)):
            message = self.server.post(CHAT, body)["choices"][0]["message"]
            self.assertNotIn("tool_calls", message)
            self.assertTrue(message["content"])

    def test_absent_parameters_are_any_object(self):
        for seed in range(3):
            choice = self.server.post(CHAT, chat(tools=[function("any")], tool_choice="required", seed=seed,
                                                 parallel_tool_calls=False))["choices"][0]
            if choice["finish_reason"] == "tool_calls":
                call = choice["message"]["tool_calls"][0]["function"]
                self.assertEqual(call["name"], "any")
                self.assertIsInstance(json.loads(call["arguments"]), dict)

    def test_calls_of_the_history_and_results_are_read(self):
        messages = [{"role": "user", "content": "Weather?"},
                    {"role": "assistant", "content": None, "tool_calls": [
                        {"id": "a", "type": "function",
                         "function": {"name": "ping", "arguments": "{}"}},
                        {"id": "b", "type": "custom", "custom": {"name": "note", "input": "x\n"}}]},
                    {"role": "tool", "tool_call_id": "a", "content": "pong"},
                    {"role": "tool", "tool_call_id": "b", "content": "kept"}]
        choice = self.server.post(CHAT, chat(messages=messages, tool_choice="required",
                                             parallel_tool_calls=False, seed=1))["choices"][0]
        self.check_forced(choice, 1)

    def test_custom_inputs_obey_their_formats(self):
        cases = [("regex", "[0-9]{3}-[a-f]{2}", re.compile("[0-9]{3}-[a-f]{2}").fullmatch),
                 ("lark", 'start: "add " NAME ("\\n" NAME)?\nNAME: /[a-z"<>]{1,4}/',
                  re.compile('add [a-z"<>]{1,4}(\n[a-z"<>]{1,4})?').fullmatch),
                 (None, None, lambda text: True)]
        for syntax, definition, obeys in cases:
            named = {"type": "custom", "custom": {"name": "note"}}
            tools = TOOLS + [custom("note", syntax, definition)]
            found = 0
            for seed in range(4):
                body = chat(tools=tools, tool_choice=named, seed=seed, max_tokens=100)
                choice = self.server.post(CHAT, body)["choices"][0]
                message, reason = joined(self.server.stream(CHAT, body)[0])
                self.assertEqual(reason, choice["finish_reason"])
                calls = choice["message"].get("tool_calls", [])
                self.assertEqual([call["custom"] for call in message["tool_calls"]],
                                 [call["custom"] for call in calls])
                if reason != "tool_calls":
                    continue
                found += 1
                self.assertEqual((len(calls), calls[0]["type"], calls[0]["custom"]["name"]),
                                 (1, "custom", "note"))
                self.assertTrue(obeys(calls[0]["custom"]["input"]), calls)
            if syntax:
                self.assertGreater(found, 0, syntax)

    def test_bad_definitions_are_refused_with_their_path(self):
        bad = function("f", {"type": "object", "properties": {"a": {"not": {}}}})
        param = "tools[1].function.parameters.properties.a.not"
        self.refused(chat(tools=[TOOLS[0], bad], tool_choice="required"), param, "unsupported_schema")
        strict = function("f", bad["function"]["parameters"], strict=True)
        self.refused(chat(tools=[TOOLS[0], strict]), param, "unsupported_schema")
        empty = {"type": "integer", "minimum": 3, "maximum": 2}
        self.refused(chat(tools=[function("f", {"type": "object", "properties": {"a": empty},
                                                "required": ["a"]})], tool_choice="required"),
                     "tools[0].function.parameters", "unsupported_schema")
        self.refused(chat(tools=[function("f", {"type": "string"})], tool_choice="required"),
                     "tools[0].function.parameters.type", "invalid_schema")
        at = "tools[0].custom.format.grammar.definition"
        for syntax, definition in (("lark", "start: start"), ("lark", "start: \"a\" } x {"),
                                   ("regex", "(?=a)b"), ("regex", "(")):
            self.refused(chat(tools=[custom("c", syntax, definition)]), at, "invalid_value")
        self.refused(chat(tools=[function("a"), custom("a")]), "tools[1].custom.name", "invalid_value")
        self.refused(chat(tools=[function(f"f{i}") for i in range(513)]), "tools", "invalid_value")
        self.refused(chat(tool_choice={"type": "custom", "custom": {"name": "ping"}}),
                     "tool_choice.custom.name", "invalid_value")
        large = [function(f"f{i}", {"type": "object", "description": "x" * 200_000 + str(i)})
                 for i in range(4)]
        self.refused(chat(tools=large, tool_choice="required"), "tools", "unsupported_schema")
        # A free call of a tool that is not strict takes any object, and the server says so.
        status, headers, _ = self.server.request("POST", CHAT, chat(tools=[bad], max_tokens=4))
        self.assertEqual((status, headers["x-ignored-params"]),
                         (200, "tools.0.function.parameters.properties.a.not"))


class EveryFormat(Tools):
    def test_every_format_makes_forced_calls(self):
        self.need_rust()
        for name in FORMATS:
            server = self.restart("--tool-parser", name)
            found = 0
            for seed in range(3):
                body = chat(tool_choice="required", seed=seed, parallel_tool_calls=False)
                with self.subTest(format=name, seed=seed):
                    choice = server.post(CHAT, body)["choices"][0]
                    found += len(self.check_forced(choice, 1) or [])
                    message, reason = joined(server.stream(CHAT, body)[0])
                    self.assertEqual(reason, choice["finish_reason"])
                    self.assertEqual([call["function"] for call in message["tool_calls"]],
                                     [call["function"]
                                      for call in choice["message"].get("tool_calls", [])])
            self.assertGreater(found, 0, name)
            server.post(CHAT, chat(max_tokens=8))


class Template(Tools):
    """A template that takes tools and writes none of them, so that prompts stay short."""

    def setUp(self):
        super().setUp()
        self.need_rust()
        template = self.path / "template.jinja"
        template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}:{% endif %}")
        self.template = ("--chat-template", str(template), "--tool-parser")

    def test_512_tools_are_served(self):
        server = self.restart(*self.template, "json")
        many = [function(f"tool_{i}", dict(WEATHER, description=str(i))) for i in range(512)]
        for choice in ("required", "auto", {"type": "function", "function": {"name": "tool_511"}}):
            body = chat(tools=many, tool_choice=choice, parallel_tool_calls=False, seed=1)
            answer = server.post(CHAT, body)["choices"][0]
            if answer["finish_reason"] == "tool_calls":
                call, = answer["message"]["tool_calls"]
                self.assertRegex(call["function"]["name"], "^tool_[0-9]+$")
                self.check_weather(json.loads(call["function"]["arguments"]))

    def test_structured_output_beside_tools_is_a_call_or_the_value(self):
        server = self.restart(*self.template, "hermes")
        value = {"type": "json_schema", "json_schema": {"name": "v", "schema": {
            "type": "object", "properties": {"v": {"enum": [1, 2]}}, "required": ["v"],
            "additionalProperties": False}}}
        kinds = set()
        for seed in range(12):
            choice = server.post(CHAT, chat(response_format=value, seed=seed))["choices"][0]
            if choice["finish_reason"] == "tool_calls":
                self.check_forced(choice)
            elif choice["finish_reason"] == "stop":
                self.assertIn(json.loads(choice["message"]["content"])["v"], (1, 2))
            kinds.add(choice["finish_reason"])
        self.assertIn("stop", kinds)
        self.restart(*self.template, "json")
        self.refused(chat(response_format=value), "response_format.json_schema.schema",
                     "unsupported_parameter")


class WithoutRust(Tools):
    def test_forced_calls_are_refused_and_free_ones_served(self):
        if self.has_rust:
            self.skipTest("built with Rust")
        self.refused(chat(tool_choice="required"), "tool_choice", "unsupported_parameter")
        self.refused(chat(tools=[custom("c", "regex", "a")]), "tools[0].custom.format",
                     "unsupported_parameter")
        status, headers, _ = self.server.request("POST", CHAT, chat(max_tokens=4))
        self.assertEqual(status, 200)
        self.assertEqual(headers["x-ignored-params"], "tools.function.parameters")


class Refused(Tools):
    arguments = ("--tool-parser", "none")

    def test_a_server_without_a_format_takes_no_tools(self):
        self.refused(chat(), "tools", "unsupported_parameter")


if __name__ == "__main__":
    harness.main()
