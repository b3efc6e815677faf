#!/usr/bin/env python3
"""Anthropic's Messages API of a running program.

`messages_test.py BINARY [unittest arguments]`.
"""

import http.client
import json
import shutil
import signal

import harness
from harness import GOLDEN, PATIENCE_S, Case, story

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
CHAT = "/v1/chat/completions"
QUESTION = "Tell me a story about a dog."
# Every message as <role:content|thought|calls|id>; the prompt opens a thought on request.
TEMPLATE = (
    "{% for t in tools or [] %}<tool:{{ t.function.name }}>{% endfor %}"
    "{% for m in messages %}<{{ m.role }}:{{ m.content }}|{{ m.reasoning_content }}|"
    "{% for c in m.tool_calls or [] %}{{ c.id }}={{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{% endfor %}|{{ m.tool_call_id }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant:{% if enable_thinking %}<think>{% endif %}{% endif %}")


def write_thinking_model(target):
    """A random model whose tokens spell ASCII, with the marks of a thought as single tokens."""
    shutil.copytree(GOLDEN / "qwen3-tiny", target)
    # GPT-2's alphabet: bytes that do not print move behind 255.
    letters = [chr(byte) if 33 <= byte <= 126 else chr(256 + (byte if byte < 33 else 33))
               for byte in range(128)]
    vocabulary = {letter: id_ for id_, letter in enumerate(letters, 3)}
    vocabulary.update({f"w{id_}": id_ for id_ in range(131, 254)})
    added = [(0, "<pad>"), (1, "<s>"), (2, "</s>"), (254, "<think>"), (255, "</think>")]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (target / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [
            {"id": id_, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True} for id_, text in added],
        "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}))
    (target / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}{% if enable_thinking %}<think>{% endif %}{% endif %}")


def body(**more):
    return dict({"model": "tandem-stories", "max_tokens": 40, "temperature": 0,
                 "messages": [{"role": "user", "content": QUESTION}]}, **more)


def ask(server, method, path, given=None, **headers):
    """(status, headers, JSON)"""
    connection = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
    text = given if isinstance(given, (str, type(None))) else json.dumps(given)
    connection.request(method, path, text, {"Content-Type": "application/json",
                                            **{k.replace("_", "-"): v for k, v in headers.items()}})
    reply = connection.getresponse()
    answer = json.loads(reply.read())
    connection.close()
    return reply.status, reply.headers, answer


def frames(text):
    """[(event, data)] of a stream."""
    out = []
    for frame in text.split("\n\n"):
        if not frame:
            continue
        event, data = frame.split("\n")
        assert event.startswith("event: ") and data.startswith("data: "), frame
        out.append((event[7:], json.loads(data[6:])))
    return out


def stream(server, given):
    connection = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
    connection.request("POST", MESSAGES, json.dumps(dict(given, stream=True)),
                       {"Content-Type": "application/json"})
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    assert reply.status == 200, text
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8", reply.headers
    return frames(text)


class MessagesCase(Case):
    def error(self, answer, type_, contains=""):
        self.assertEqual(set(answer), {"type", "error", "request_id"}, answer)
        self.assertEqual(set(answer["error"]), {"type", "message"})
        self.assertEqual((answer["type"], answer["error"]["type"]), ("error", type_), answer)
        self.assertIn(contains, answer["error"]["message"])

    def refused(self, server, given, contains, path=MESSAGES):
        status, _, answer = ask(server, "POST", path, given)
        self.assertEqual(status, 400, answer)
        self.error(answer, "invalid_request_error", contains)


class Answers(MessagesCase):
    def test_the_answer_is_that_of_chat_as_a_body_and_as_a_stream(self):
        server = self.serve()
        chat = server.post(CHAT, story(max_tokens=40, temperature=0))
        text = chat["choices"][0]["message"]["content"]
        n = chat["usage"]["completion_tokens"]
        prompt = chat["usage"]["prompt_tokens"]

        status, headers, answer = ask(server, "POST", MESSAGES, body())
        self.assertEqual(status, 200, answer)
        self.assertEqual(headers["request-id"], headers["x-request-id"])
        self.assertRegex(answer.pop("id"), "^msg_")
        usage = answer.pop("usage")
        self.assertEqual(answer, {"type": "message", "role": "assistant", "model": "tandem-stories",
                                  "content": [{"type": "text", "text": text}],
                                  "stop_reason": "max_tokens", "stop_sequence": None})
        self.assertEqual(set(usage), {"input_tokens", "cache_creation_input_tokens",
                                      "cache_read_input_tokens", "output_tokens"})
        self.assertEqual(usage["output_tokens"], n)
        self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"], prompt)
        self.assertEqual(usage["cache_creation_input_tokens"], 0)

        events = stream(server, body())
        names = [name for name, data in events if name != "ping"]
        self.assertTrue(all(name == data["type"] for name, data in events))
        n_deltas = names.count("content_block_delta")
        self.assertEqual(names, ["message_start", "content_block_start"]
                         + ["content_block_delta"] * n_deltas
                         + ["content_block_stop", "message_delta", "message_stop"])
        data = dict(events)
        start = data["message_start"]["message"]
        self.assertEqual((start["content"], start["stop_reason"], start["role"]), ([], None, "assistant"))
        self.assertEqual(start["usage"]["input_tokens"], prompt)
        self.assertEqual(data["content_block_start"],
                         {"type": "content_block_start", "index": 0,
                          "content_block": {"type": "text", "text": ""}})
        self.assertEqual("".join(d["delta"]["text"] for name, d in events
                                 if name == "content_block_delta"), text)
        self.assertEqual(data["message_delta"]["delta"],
                         {"stop_reason": "max_tokens", "stop_sequence": None})
        self.assertEqual(data["message_delta"]["usage"]["output_tokens"], n)

    def test_stop_sequences_and_the_end_of_a_turn(self):
        server = self.serve()
        text = server.post(MESSAGES, body())["content"][0]["text"]
        word = text.split()[5]
        answer = server.post(MESSAGES, body(stop_sequences=["never said", word]))
        self.assertEqual((answer["stop_reason"], answer["stop_sequence"]), ("stop_sequence", word))
        self.assertEqual(answer["content"][0]["text"], text[:text.index(word)])
        delta = dict(stream(server, body(stop_sequences=[word])))["message_delta"]["delta"]
        self.assertEqual(delta, {"stop_reason": "stop_sequence", "stop_sequence": word})

    def test_a_last_message_of_the_assistant_is_continued(self):
        server = self.serve()
        begun = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "Once there"}]
        chat = server.post(CHAT, story(max_tokens=40, temperature=0, messages=begun,
                                       continue_final_message=True))
        answer = server.post(MESSAGES, body(messages=begun))
        self.assertEqual(answer["content"][0]["text"], chat["choices"][0]["message"]["content"])
        self.refused(server, body(messages=[begun[0], {"role": "assistant", "content": [
            {"type": "tool_use", "id": "t", "name": "f", "input": {}}]}]), "messages[1].content")

    def test_output_formats(self):
        server = self.serve()
        schema = {"type": "object", "properties": {"kind": {"enum": ["cat", "dog"]}},
                  "required": ["kind"], "additionalProperties": False}
        format_ = {"type": "json_schema", "schema": schema}
        if server.request("GET", "/version")[2]["llguidance"] is None:
            return self.refused(server, body(output_format=format_), "")
        for fields in ({"output_format": format_}, {"output_config": {"format": format_}}):
            answer = server.post(MESSAGES, body(**fields))
            self.assertIn(json.loads(answer["content"][0]["text"]), ({"kind": "cat"}, {"kind": "dog"}))
            self.assertEqual(answer["stop_reason"], "end_turn")
        self.refused(server, body(output_format={"type": "json_schema", "schema": {"not": {}}}),
                     "output_format.schema")


class Prompts(MessagesCase):
    def setUp(self):
        super().setUp()
        self.template = self.path / "template.jinja"
        self.template.write_text(TEMPLATE)
        self.server = self.serve("--chat-template", str(self.template))

    def rendered(self, messages, **more):
        """The prompt of the chat with the same tokens, as text."""
        tokens = self.server.post("/tokenize", dict(
            {"model": "tandem-stories", "messages": messages}, **more))
        return tokens["count"]

    def count(self, messages, **more):
        status, headers, answer = ask(self.server, "POST", COUNT, dict(
            {"model": "tandem-stories", "messages": messages}, **more))
        self.assertEqual(status, 200, answer)
        self.assertEqual(set(answer), {"input_tokens"})
        return answer["input_tokens"]

    def test_count_tokens_is_what_usage_adds_up_to(self):
        call = {"type": "tool_use", "id": "t1", "name": "look", "input": {"city": "Bern"}}
        histories = [
            [{"role": "user", "content": "Hi"}],
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
            [{"role": "user", "content": "Weather?"},
             {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
                                               {"type": "text", "text": "See:"}, call]},
             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1",
                                           "is_error": True, "content": "no net"}]}],
        ]
        for messages in histories:
            for more in ({}, {"system": "Be brief."}, {"thinking": {"type": "enabled", "budget_tokens": 9}}):
                usage = self.server.post(MESSAGES, body(messages=messages, max_tokens=1, **more))["usage"]
                self.assertEqual(self.count(messages, **more),
                                 usage["input_tokens"] + usage["cache_read_input_tokens"])

    def test_the_prompt_is_that_of_the_translated_chat(self):
        call = {"type": "tool_use", "id": "t1", "name": "look", "input": {"city": "Bern"}}
        counted = self.count(
            [{"role": "user", "content": "Weather?"},
             {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
                                               {"type": "redacted_thinking", "data": "x"},
                                               {"type": "text", "text": "See:"}, call]},
             {"role": "user", "content": [
                 {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": "no net"},
                 {"type": "text", "text": "Well?"}]}],
            system=[{"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=00"},
                    {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}])
        self.assertEqual(counted, self.rendered(
            [{"role": "system", "content": "Be brief."},
             {"role": "user", "content": "Weather?"},
             {"role": "assistant", "content": "See:", "reasoning_content": "hm",
              "tool_calls": [{"id": "t1", "type": "function",
                              "function": {"name": "look", "arguments": "{\"city\": \"Bern\"}"}}]},
             {"role": "tool", "tool_call_id": "t1", "content": "Error: no net"},
             {"role": "user", "content": "Well?"}]))

    def test_cached_tokens_are_counted_apart(self):
        given = body(messages=[{"role": "user", "content": QUESTION * 12}])
        count = self.server.post(COUNT, given)["input_tokens"]
        first, second = (self.server.post(MESSAGES, given)["usage"] for _ in range(2))
        self.assertEqual((first["input_tokens"], first["cache_read_input_tokens"]), (count, 0))
        self.assertGreater(second["cache_read_input_tokens"], 0)
        self.assertEqual(second["input_tokens"] + second["cache_read_input_tokens"], count)

    def test_a_changing_billing_header_keeps_the_cached_prefix(self):
        def ask_with(header):
            return self.server.post(MESSAGES, body(max_tokens=1, system=[
                {"type": "text", "text": f"x-anthropic-billing-header: {header}"},
                {"type": "text", "text": "You are an agent. " * 10}]))["usage"]
        ask_with("cch=1")
        self.assertGreater(ask_with("cch=2")["cache_read_input_tokens"], 0)

    def test_a_prompt_that_is_too_long_says_so(self):
        long = [{"role": "user", "content": QUESTION * 400}]
        self.refused(self.server, body(messages=long), "prompt is too long")
        self.assertGreater(self.count(long), 2000)

    def test_late_messages_of_the_system(self):
        messages = [{"role": "user", "content": "Hi"}, {"role": "system", "content": "Be brief."},
                    {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Well"}]
        self.assertEqual(self.count(messages), self.rendered(messages))
        # A template that refuses them gets them in front.
        strict = self.path / "strict.jinja"
        strict.write_text("{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
                          "{{ raise_exception('system first') }}{% endif %}{% endfor %}" + TEMPLATE)
        self.assertEqual(self.server.stop(), 0)
        self.server = self.serve("--chat-template", str(strict))
        self.assertEqual(self.count(messages), self.rendered([messages[1], messages[0], *messages[2:]]))

    def test_thinking_is_a_block_with_a_signature(self):
        enabled = {"type": "enabled", "budget_tokens": 1024}
        answer = self.server.post(MESSAGES, body(thinking=enabled))
        self.assertEqual([block["type"] for block in answer["content"]], ["thinking"])
        self.assertTrue(answer["content"][0]["thinking"] and answer["content"][0]["signature"])

        events = stream(self.server, body(thinking={"type": "adaptive"}))
        kinds = [data["delta"]["type"] for name, data in events if name == "content_block_delta"]
        self.assertEqual(kinds, ["thinking_delta"] * (len(kinds) - 1) + ["signature_delta"])
        thought = "".join(data["delta"].get("thinking", "") for name, data in events
                          if name == "content_block_delta")
        self.assertEqual(thought, answer["content"][0]["thinking"])

        answer = self.server.post(MESSAGES, body(thinking={"type": "disabled"}))
        self.assertEqual([block["type"] for block in answer["content"]], ["text"])

    def test_tools_are_rendered_and_server_tools_are_named(self):
        status, headers, answer = ask(self.server, "POST", COUNT, body(tools=[
            {"type": "web_search_20250305", "name": "web_search"}, {"type": "bash_20250124", "name": "bash"}]))
        self.assertEqual((status, headers["x-ignored-tools"]),
                         (200, "web_search_20250305, bash_20250124"), answer)
        self.assertEqual(answer["input_tokens"], self.count(body()["messages"]))
        self.wait_until("logged", lambda: "web_search_20250305" in self.server.log_path.read_text())


class Tools(MessagesCase):
    TOOLS = [{"name": "look", "description": "Looks.", "input_schema": {
                  "type": "object", "required": ["city"], "additionalProperties": False,
                  "properties": {"city": {"enum": ["Bern", "Oslo"]}}}},
             {"name": "wait", "input_schema": {
                 "type": "object", "required": ["days"], "additionalProperties": False,
                 "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}}}}]

    def setUp(self):
        super().setUp()
        self.server = self.serve()
        if self.server.request("GET", "/version")[2]["llguidance"] is None:
            self.skipTest("built without Rust")

    def checked(self, block):
        self.assertEqual(set(block), {"type", "id", "name", "input"}, block)
        self.assertRegex(block["id"], "^toolu_")
        if block["name"] == "look":
            self.assertIn(block["input"], ({"city": "Bern"}, {"city": "Oslo"}))
        else:
            self.assertIn(block["input"]["days"], range(1, 10))

    def test_forced_calls(self):
        for choice, names in (({"type": "any"}, ("look", "wait")),
                              ({"type": "tool", "name": "wait"}, ("wait",))):
            for more in ({}, {"disable_parallel_tool_use": True}):
                answer = self.server.post(MESSAGES, body(tools=self.TOOLS, max_tokens=120, temperature=1,
                                                         tool_choice=dict(choice, **more)))
                # A model may begin calls until the limit ends them.
                reasons = ("tool_use",) if more else ("tool_use", "max_tokens")
                self.assertIn(answer["stop_reason"], reasons, answer)
                calls = [block for block in answer["content"] if block["type"] == "tool_use"]
                for block in calls:
                    self.checked(block)
                    self.assertIn(block["name"], names)
                self.assertTrue(calls if not more else len(calls) == 1)

    def test_a_stream_has_the_arguments_in_pieces(self):
        schema = {"type": "object", "required": ["text"], "additionalProperties": False,
                  "properties": {"text": {"type": "string", "minLength": 60, "maxLength": 80}}}
        given = body(tools=[{"name": "write", "input_schema": schema}], max_tokens=200,
                     tool_choice={"type": "tool", "name": "write"})
        whole = self.server.post(MESSAGES, given)
        events = [(name, data) for name, data in stream(self.server, given) if name != "ping"]
        start = next(data for name, data in events if name == "content_block_start")
        self.assertEqual(start["content_block"]["input"], {})
        pieces = [data["delta"]["partial_json"] for name, data in events if name == "content_block_delta"]
        self.assertGreater(len(pieces), 3)
        self.assertEqual(json.loads("".join(pieces)), whole["content"][0]["input"])
        self.assertEqual(dict(events)["message_delta"]["delta"]["stop_reason"], "tool_use")

    def test_a_cut_call_is_the_last_block(self):
        given = body(tools=self.TOOLS, max_tokens=6, tool_choice={"type": "tool", "name": "look"})
        answer = self.server.post(MESSAGES, given)
        self.assertEqual(answer["stop_reason"], "max_tokens", answer)
        self.assertTrue(all(block["input"] == {} for block in answer["content"]
                            if block["type"] == "tool_use"))
        self.assertEqual(dict(stream(self.server, given))["message_delta"]["delta"]["stop_reason"],
                         "max_tokens")

    def test_no_call_with_the_choice_none(self):
        answer = self.server.post(MESSAGES, body(tools=self.TOOLS, tool_choice={"type": "none"}))
        self.assertEqual([block["type"] for block in answer["content"]], ["text"])

    def test_tokens_of_tools_are_counted(self):
        for choice in (None, {"type": "any"}, {"type": "none"}):
            given = body(tools=self.TOOLS, tool_choice=choice, max_tokens=1)
            usage = self.server.post(MESSAGES, given)["usage"]
            self.assertEqual(self.server.post(COUNT, given)["input_tokens"],
                             usage["input_tokens"] + usage["cache_read_input_tokens"])

    def test_schemas_that_cannot_be_held_name_their_tool(self):
        self.refused(self.server, body(
            tools=[{"type": "web_search_20250305", "name": "web_search"},
                   {"name": "f", "input_schema": {"type": "object", "not": {}}}],
            tool_choice={"type": "any"}), "tools[1].input_schema")


class Thinking(MessagesCase):
    def test_a_budget_ends_the_thought_and_the_answer_follows(self):
        write_thinking_model(self.path / "thinker")
        server = self.serve("--model", f"thinker={self.path / 'thinker'}")
        messages = [{"role": "user", "content": "Hi"}]

        def ask_for(**thinking):
            return server.post(MESSAGES, body(model="thinker", messages=messages, max_tokens=20, **thinking))

        def chat(n):
            answer = server.post(CHAT, {"model": "thinker", "messages": messages, "max_tokens": n,
                                        "temperature": 0, "chat_template_kwargs": {"enable_thinking": True}})
            return answer["choices"][0]["message"]["reasoning_content"]

        free = ask_for(thinking={"type": "enabled", "budget_tokens": 1000})["content"]
        self.assertEqual(free, [{"type": "thinking", "thinking": chat(20), "signature": free[0]["signature"]}])
        for budget in (1, 5):
            content = ask_for(thinking={"type": "enabled", "budget_tokens": budget})["content"]
            self.assertEqual([block["type"] for block in content], ["thinking", "text"])
            self.assertEqual(content[0]["thinking"], chat(budget))
        status, headers, answer = ask(server, "POST", MESSAGES, body(
            model="thinker", messages=messages, thinking={"type": "enabled", "budget_tokens": 5},
            max_tokens=20))
        self.assertNotIn("x-ignored-params", headers)
        self.assertEqual(answer["usage"]["output_tokens"], 20)

    def test_a_budget_without_effect_is_named(self):
        server = self.serve()
        headers = ask(server, "POST", MESSAGES, body(thinking={"type": "enabled", "budget_tokens": 5}))[1]
        self.assertEqual(headers["x-ignored-params"], "thinking.budget_tokens")


class Fields(MessagesCase):
    def test_fields_without_effect_change_nothing(self):
        server = self.serve()
        plain = server.post(MESSAGES, body())["content"]
        status, headers, answer = ask(
            server, "POST", MESSAGES + "?beta=true",
            body(metadata={"user_id": "u"}, service_tier="auto", context_management={"edits": []},
                 cache_control={"type": "ephemeral"}, top_k=0, nonsense=1,
                 messages=[{"role": "user", "content": [
                     {"type": "text", "text": QUESTION, "cache_control": {"type": "ephemeral"}}]}]),
            anthropic_version="2023-06-01", anthropic_beta="oauth-2025-04-20")
        self.assertEqual((status, answer["content"]), (200, plain))
        self.assertEqual(headers["x-ignored-params"], "nonsense")

    def test_faults_name_their_field(self):
        server = self.serve()
        status, _, answer = ask(server, "POST", MESSAGES, body(thread={"type": "create"}))
        self.assertEqual((status, answer["error"]["details"]["error_code"]),
                         (400, "thread_unsupported_request"))
        for given, contains in (
                (body(max_tokens=None), "max_tokens"), (body(max_tokens=0), "max_tokens"),
                (body(temperature=1.5), "temperature"), (body(messages=[]), "messages"),
                (body(messages=[{"role": "tool", "content": "a"}]), "messages[0].role"),
                (body(messages=[{"role": "user", "content": [{"type": "image"}]}]),
                 "messages[0].content[0]"),
                (body(stop_sequences=["a"] * 17), "stop_sequences"),
                (body(tool_choice={"type": "any"}), "tool_choice"),
                (body(thinking={"type": "maybe"}), "thinking.type")):
            self.refused(server, given, contains)
        self.refused(server, "{", "the body")
        self.refused(server, "[]", "JSON")
        # A limit above the context is a cap.
        self.assertEqual(ask(server, "POST", MESSAGES, body(max_tokens=32000, stop_sequences=["."]))[0], 200)

    def test_counting_needs_no_limit(self):
        server = self.serve()
        self.assertEqual(ask(server, "POST", COUNT, body(max_tokens=None))[0], 200)
        self.refused(server, body(messages=[]), "messages", COUNT)


class Errors(MessagesCase):
    def test_errors_before_any_handler_have_anthropics_shape(self):
        server = self.serve("--api-key", "k1", "--max-body", "20000", "--rate-limit-rpm", "3")
        key = {"x_api_key": "k1"}
        for path in (MESSAGES, COUNT):
            status, headers, answer = ask(server, "POST", path, body(), x_request_id="req_mine")
            self.assertEqual((status, answer["request_id"], headers["request-id"]),
                             (401, "req_mine", "req_mine"))
            self.error(answer, "authentication_error", "x-api-key")
            status, _, answer = ask(server, "POST", path, body(), x_api_key="wrong")
            self.assertEqual(status, 401)
            self.error(answer, "authentication_error", "incorrect")
            status, headers, answer = ask(server, "GET", path, **key)
            self.assertEqual((status, headers["allow"]), (405, "POST, OPTIONS"))
            self.error(answer, "invalid_request_error")
            status, _, answer = ask(server, "POST", path, " " * 20001, **key)
            self.assertEqual(status, 413)
            self.error(answer, "request_too_large")
        status, _, answer = ask(server, "POST", "/v1/messages/nothing", {}, **key)
        self.assertEqual((status, answer["error"]["code"]), (404, "unknown_url"))

        statuses = []
        for _ in range(5):
            status, headers, answer = ask(server, "POST", MESSAGES, body(max_tokens=1), **key)
            statuses.append(status)
        self.assertEqual(statuses[-1], 429)
        self.error(answer, "rate_limit_error")
        self.assertGreaterEqual(int(headers["retry-after"]), 1)

    def test_either_header_carries_the_key(self):
        server = self.serve("--api-key", "k1")
        for headers in ({"x_api_key": "k1"}, {"authorization": "Bearer k1"},
                        {"authorization": "Bearer k1", "x_api_key": "other"}):
            self.assertEqual(ask(server, "POST", MESSAGES, body(max_tokens=1), **headers)[0], 200)
        for headers in ({"authorization": "Bearer other", "x_api_key": "k1"}, {"x_api_key": ""}):
            self.assertEqual(ask(server, "POST", MESSAGES, body(max_tokens=1), **headers)[0], 401)

    def test_unknown_models_and_aliases(self):
        server = self.serve()
        status, _, answer = ask(server, "POST", MESSAGES, body(model="claude-sonnet-4-5"))
        self.assertEqual(status, 404)
        self.error(answer, "not_found_error", "claude-sonnet-4-5")
        status, _, answer = server.request("PUT", "/admin/aliases/claude-sonnet-4-5",
                                           {"target": "tandem-stories"}, admin=True)
        self.assertEqual(status, 200, answer)
        self.assertEqual(ask(server, "POST", MESSAGES, body(model="claude-sonnet-4-5"))[0], 200)
        self.assertEqual(ask(server, "POST", COUNT, body(model="claude-sonnet-4-5"))[0], 200)

    def fill(self, server, n):
        """Streams that occupy the only place and the queue."""
        connections = []
        for _ in range(n):
            connection = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
            connection.request("POST", CHAT, json.dumps(story(n=100, stream=True, ignore_eos=True,
                                                              max_tokens=400)),
                               {"Content-Type": "application/json"})
            connection.getresponse()
            connections.append(connection)
        return connections

    def test_a_full_queue_is_529(self):
        server = self.serve("--max-seqs", "1", "--max-queue", "1")
        connections = self.fill(server, 2)
        status, headers, answer = ask(server, "POST", MESSAGES, body())
        self.assertEqual(status, 529, answer)
        self.error(answer, "overloaded_error")
        self.assertGreaterEqual(int(headers["retry-after"]), 1)
        for connection in connections:
            connection.close()

    def test_a_failure_after_the_start_is_one_error_event(self):
        server = self.serve("--max-seqs", "1", "--drain-timeout", "0.2")
        connections = self.fill(server, 1)
        connection = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
        connection.request("POST", MESSAGES, json.dumps(body(stream=True)),
                           {"Content-Type": "application/json"})
        reply = connection.getresponse()
        self.assertEqual(reply.status, 200)
        server.process.send_signal(signal.SIGTERM)
        events = frames(reply.read().decode())
        self.assertEqual([name for name, _ in events if name != "ping"], ["message_start", "error"])
        self.error(events[-1][1], "api_error")
        self.assertEqual(events[-1][1]["request_id"], reply.headers["request-id"])
        connection.close()
        for other in connections:
            other.close()


if __name__ == "__main__":
    harness.main()
