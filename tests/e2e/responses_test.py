#!/usr/bin/env python3
"""The Responses API of a running program.

`responses_test.py BINARY [unittest arguments]`.
"""

import http.client
import json
import threading

import harness
from harness import Case

RESPONSES = "/v1/responses"
CHAT = "/v1/chat/completions"
MODEL = "tandem-stories"
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
# Every key of OpenAI's response object that is not optional in its schema, and the ones that
# clients read.
KEYS = {"id", "object", "created_at", "completed_at", "status", "error", "incomplete_details",
        "instructions", "max_output_tokens", "model", "output", "parallel_tool_calls",
        "previous_response_id", "reasoning", "store", "temperature", "text", "tool_choice",
        "tools", "top_p", "truncation", "metadata", "background", "usage"}


def ask(**more):
    return dict({"model": MODEL, "input": "Tell me a story about a dog.", "temperature": 0,
                 "max_output_tokens": 40}, **more)


def text_of(response):
    return "".join(part["text"] for item in response["output"] if item["type"] == "message"
                   for part in item["content"])


def events_of(raw):
    """The events of a stream; fails if a frame's name differs from its type."""
    events = []
    for frame in raw.split("\n\n"):
        lines = [line for line in frame.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        name, data = lines
        event = json.loads(data[len("data: "):])
        assert name == "event: " + event["type"], frame
        events.append(event)
    return events


# The embedded model's own template shows the last message only. This one shows all of them, and
# writes tool calls as Hermes does.
TEMPLATE = """{%- if tools %}Tools: {{ tools | tojson }}
{% endif %}{%- for m in messages %}{{ m.role }}: {{ m.content }}
{%- for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""


class Server(Case):
    def setUp(self):
        super().setUp()
        self.server = self.start()

    def start(self, *arguments):
        template = self.path / "template.jinja"
        template.write_text(TEMPLATE)
        return self.serve("--chat-template", str(template), *arguments)

    def restart(self, *arguments):
        self.assertEqual(self.server.stop(), 0)
        self.server = self.start(*arguments)

    def request(self, method, path, body=None, key=None, server=None):
        """(status, headers, text)"""
        connection = http.client.HTTPConnection(*(server or self.server).address,
                                                timeout=harness.PATIENCE_S)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        if body is not None:
            body = json.dumps(body)
            headers["Content-Type"] = "application/json"
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, response.headers, text

    def create(self, **more):
        status, _, text = self.request("POST", RESPONSES, ask(**more))
        self.assertEqual(status, 200, text)
        return json.loads(text)

    def stream(self, path=RESPONSES, body=None):
        status, headers, text = self.request("POST" if body else "GET", path, body)
        self.assertEqual(status, 200, text)
        self.assertEqual(headers.get_content_type(), "text/event-stream")
        events = events_of(text)
        return events

    def get(self, response_id, suffix="", key=None):
        status, _, text = self.request("GET", f"{RESPONSES}/{response_id}{suffix}", key=key)
        return status, json.loads(text)

    def refused(self, body, param, code, path=RESPONSES, status=400):
        got, _, text = self.request("POST", path, body)
        self.assertEqual(got, status, text)
        error = json.loads(text)["error"]
        self.assertEqual((error["param"], error["code"]), (param, code), error)
        return error

    def check_stream(self, events):
        """The order rules of a stream. Returns the final response."""
        self.assertEqual([event["sequence_number"] for event in events], list(range(len(events))))
        types = [event["type"] for event in events if event["type"] != "keepalive"]
        self.assertEqual(types[:2], ["response.created", "response.in_progress"])
        self.assertIn(types[-1], ("response.completed", "response.incomplete", "response.failed"))
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        added = [event["item"]["id"] for event in events
                 if event["type"] == "response.output_item.added"]
        self.assertEqual(added, [item["id"] for item in done])
        final = events[-1]["response"]
        self.assertEqual(final["output"], done)
        deltas = "".join(event["delta"] for event in events
                         if event["type"] == "response.output_text.delta")
        self.assertEqual(deltas, text_of(final))
        return final

    def finish(self, response_id):
        """Waits for the end of a background response."""
        self.wait_until("ended", lambda: self.get(response_id)[1]["status"] not in
                        ("queued", "in_progress"))
        return self.get(response_id)[1]


class Create(Server):
    def test_a_response_has_every_key_and_the_tokens_of_chat(self):
        response = self.create()
        chat = self.server.post(CHAT, {"model": MODEL, "temperature": 0, "max_tokens": 40,
                                       "messages": [{"role": "user", "content": ask()["input"]}]})
        self.assertLessEqual(KEYS, set(response))
        self.assertEqual(text_of(response), chat["choices"][0]["message"]["content"])
        self.assertEqual(response["usage"]["input_tokens"], chat["usage"]["prompt_tokens"])
        self.assertEqual(response["usage"]["output_tokens"], chat["usage"]["completion_tokens"])
        self.assertEqual(response["temperature"], 0)
        self.assertEqual(response["max_output_tokens"], 40)
        self.assertTrue(response["id"].startswith("resp_"))

    def test_instructions_are_the_system_message(self):
        response = self.create(instructions="Be brief.",
                               input=[{"role": "user", "content": "A cat?"}])
        chat = self.server.post(CHAT, {"model": MODEL, "temperature": 0, "max_tokens": 40,
                                       "messages": [{"role": "system", "content": "Be brief."},
                                                    {"role": "user", "content": "A cat?"}]})
        self.assertEqual(text_of(response), chat["choices"][0]["message"]["content"])

    def test_a_stream_equals_the_body(self):
        body = self.create()
        final = self.check_stream(self.stream(body=ask(stream=True)))
        self.assertEqual(text_of(final), text_of(body))
        self.assertEqual(final["usage"]["output_tokens"], body["usage"]["output_tokens"])
        self.assertLessEqual(KEYS, set(final))

    def test_the_limit_makes_a_response_incomplete(self):
        response = self.create(max_output_tokens=3, ignore_eos=True)
        self.assertEqual(response["status"], "incomplete")
        self.assertEqual(response["incomplete_details"], {"reason": "max_output_tokens"})
        events = self.stream(body=ask(max_output_tokens=3, ignore_eos=True, stream=True))
        self.assertEqual(events[-1]["type"], "response.incomplete")

    def test_logprobs_spell_the_text(self):
        body = ask(include=["message.output_text.logprobs"], top_logprobs=2)
        part = json.loads(self.request("POST", RESPONSES, body)[2])["output"][0]["content"][0]
        spelt = b"".join(bytes(entry["bytes"] or []) for entry in part["logprobs"])
        self.assertEqual(spelt.decode(), part["text"])
        self.assertEqual(len(part["logprobs"][0]["top_logprobs"]), 2)
        final = self.check_stream(self.stream(body=dict(body, stream=True)))
        self.assertEqual(final["output"][0]["content"][0]["logprobs"], part["logprobs"])

    def test_token_ids(self):
        response = self.create(return_token_ids=True)
        self.assertEqual(len(response["prompt_token_ids"]), response["usage"]["input_tokens"])
        self.assertEqual(len(response["token_ids"]), response["usage"]["output_tokens"])
        body = {"model": MODEL, "temperature": 0, "max_output_tokens": 40, "store": False,
                "prompt_token_ids": response["prompt_token_ids"], "return_token_ids": True}
        status, _, text = self.request("POST", RESPONSES, body)
        self.assertEqual(status, 200, text)
        self.assertEqual(json.loads(text)["token_ids"], response["token_ids"])
        self.refused(dict(body, store=True), "prompt_token_ids", "invalid_value")

    def test_input_tokens_are_those_of_the_answer(self):
        status, _, text = self.request("POST", RESPONSES + "/input_tokens", ask())
        self.assertEqual(status, 200, text)
        self.assertEqual(json.loads(text),
                         {"object": "response.input_tokens",
                          "input_tokens": self.create()["usage"]["input_tokens"]})

    def test_hosted_tools_and_items_are_left_out_and_named(self):
        body = ask(tools=[{"type": "web_search"}, {"type": "local_shell"}],
                   input=[{"type": "web_search_call", "id": "ws_1"},
                          {"role": "user", "content": "Hi"}], zebra=1)
        status, headers, text = self.request("POST", RESPONSES, body)
        self.assertEqual(status, 200, text)
        self.assertEqual(headers["x-ignored-tools"], "web_search, local_shell")
        self.assertEqual(headers["x-ignored-params"], "zebra, input.web_search_call")
        self.assertEqual(json.loads(text)["tools"], [])
        self.wait_until("logged", lambda: "hosted_tools_left_out" in self.server.log_path.read_text())
        self.refused(dict(body, tool_choice={"type": "web_search"}), "tool_choice.type",
                     "unsupported_value")

    def test_the_request_of_codex_is_served(self):
        events = self.stream(body=ask(
            stream=True, store=False, instructions="You are a coding agent.",
            input=[{"type": "message", "role": "developer",
                    "content": [{"type": "input_text", "text": "Rules."}]},
                   {"type": "message", "role": "user",
                    "content": [{"type": "input_text", "text": "Hi"}]}],
            tools=[TOOL, {"type": "web_search", "external_web_access": False},
                   {"type": "image_generation"}],
            tool_choice="auto", parallel_tool_calls=False, reasoning=None,
            include=["reasoning.encrypted_content"], prompt_cache_key="key",
            client_metadata={"x": "y"}))
        final = self.check_stream(events)
        self.assertEqual(self.get(final["id"])[0], 404)

    def test_an_answer_with_a_schema(self):
        if self.server.request("GET", "/version")[2]["llguidance"] is None:
            self.skipTest("built without Rust")
        schema = {"type": "object", "additionalProperties": False, "required": ["kind"],
                  "properties": {"kind": {"enum": ["cat", "dog"]}}}
        response = self.create(text={"format": {"type": "json_schema", "name": "pet",
                                                "schema": schema}})
        self.assertIn(json.loads(text_of(response))["kind"], ("cat", "dog"))
        self.assertEqual(response["text"]["format"]["schema"], schema)

    def call_of(self, **more):
        """The only call of a forced answer, the same in a body and in a stream."""
        if self.server.request("GET", "/version")[2]["llguidance"] is None:
            self.skipTest("built without Rust")
        more = dict({"max_output_tokens": 200, "parallel_tool_calls": False}, **more)
        response = self.create(**more)
        calls = [item for item in response["output"] if "call_id" in item]
        self.assertEqual(len(calls), 1, response)
        self.assertEqual(response["status"], "completed")
        events = self.stream(body=ask(stream=True, **more))
        final = self.check_stream(events)
        streamed = [item for item in final["output"] if "call_id" in item][0]
        own = ("id", "call_id")
        self.assertEqual({k: v for k, v in streamed.items() if k not in own},
                         {k: v for k, v in calls[0].items() if k not in own})
        field = "input" if streamed["type"] == "custom_tool_call" else "arguments"
        deltas = [event["delta"] for event in events
                  if event["type"] in ("response.function_call_arguments.delta",
                                       "response.custom_tool_call_input.delta")]
        self.assertEqual("".join(deltas), streamed[field])
        return response, calls[0]

    def test_a_forced_call_is_an_item_and_its_result_continues_the_chain(self):
        tool = {"type": "function", "name": "look", "strict": True, "parameters": {
            "type": "object", "additionalProperties": False, "required": ["at"],
            "properties": {"at": {"enum": ["cat", "dog"]}}}}
        response, call = self.call_of(tools=[tool], tool_choice="required")
        self.assertEqual((call["type"], call["name"], call["status"]),
                         ("function_call", "look", "completed"))
        self.assertIn(json.loads(call["arguments"])["at"], ("cat", "dog"))
        after = self.create(tools=[tool], previous_response_id=response["id"], input=[
            {"type": "function_call_output", "call_id": call["call_id"], "output": "It sleeps."}])
        self.assertIn(after["status"], ("completed", "incomplete"))
        _, call = self.call_of(tools=[{"type": "namespace", "name": "eyes", "tools": [tool]}],
                               tool_choice={"type": "function", "name": "look"})
        self.assertEqual((call["name"], call["namespace"]), ("look", "eyes"))

    def test_a_forced_custom_call_obeys_its_grammar(self):
        tool = {"type": "custom", "name": "say",
                "format": {"type": "grammar", "syntax": "regex", "definition": "[a-c]{3}"}}
        _, call = self.call_of(tools=[tool], tool_choice={"type": "custom", "name": "say"})
        self.assertEqual((call["type"], call["name"]), ("custom_tool_call", "say"))
        self.assertRegex(call["input"], "^[a-c]{3}$")

    def test_truncation_drops_the_oldest_messages(self):
        system = [{"role": "system", "content": "Be kind."}]
        long = [{"role": "user", "content": f"{i} " + "word " * 60} for i in range(40)]
        last = [{"role": "user", "content": "The end?"}]
        self.refused(ask(input=system + long + last), "input", "context_length_exceeded")
        response = self.create(input=system + long + last, truncation="auto",
                               max_output_tokens=1)
        self.assertEqual(response["truncation"], "auto")
        # It kept as much as fits: one message more does not.
        sent = response["usage"]["input_tokens"]
        shown = [self.create(input=system + long[-n:] + last, max_output_tokens=1)
                 ["usage"]["input_tokens"] for n in (1, 2)]
        window = self.server.request("GET", "/v1/models")[2]["data"][0]["max_model_len"]
        self.assertLess(sent, window)
        self.assertGreaterEqual(sent + 2 * (shown[1] - shown[0]), window)
        self.refused(ask(input="word " * 4000, truncation="auto"), "input",
                     "context_length_exceeded")

    def test_faults_name_their_field(self):
        self.refused({"input": "x"}, "model", "missing_required_parameter")
        self.refused({"model": MODEL}, "input", "missing_required_parameter")
        self.refused(ask(model="nobody"), "model", "model_not_found", status=404)
        self.refused(ask(temperature=3), "temperature", "invalid_value")
        self.refused(ask(conversation="c"), "conversation", "unsupported_parameter")
        self.refused(ask(previous_response_id="resp_x"), "previous_response_id",
                     "previous_response_not_found")
        self.refused(ask(reasoning={"effort": "huge"}), "reasoning.effort", "invalid_value")
        self.refused(ask(tools=[{"type": "function", "name": "bad name"}]), "tools[0].name",
                     "invalid_value")
        self.refused(ask(input=[{"role": "user", "content": [{"type": "input_image"}]}]),
                     "input[0].content[0]", "unsupported_value")

    def test_models_are_listed_for_codex(self):
        _, _, plain = self.server.request("GET", "/v1/models")
        self.assertNotIn("models", plain)
        _, _, body = self.server.request("GET", "/v1/models?client_version=0.50")
        self.assertEqual(body["models"], body["data"])

    def test_a_vanished_client_leaves_no_response(self):
        connection = http.client.HTTPConnection(*self.server.address, timeout=harness.PATIENCE_S)
        connection.request("POST", RESPONSES,
                           json.dumps(ask(stream=True, ignore_eos=True, max_output_tokens=200)),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        first = response.readline() + response.readline()
        connection.close()
        self.assertIn(b"response.created", first)
        self.wait_until("the request ended",
                        lambda: "route=/v1/responses" in self.server.log_path.read_text())
        self.assertEqual(self.server.request("GET", "/health")[0], 200)


class Stored(Server):
    def test_a_chain_sees_its_history_and_its_items(self):
        first = self.create(input="My dog is called Bo.", instructions="Be kind.")
        second = self.create(input="What is it called?", previous_response_id=first["id"])
        chat = self.server.post(CHAT, {
            "model": MODEL, "temperature": 0, "max_tokens": 40,
            "messages": [{"role": "user", "content": "My dog is called Bo."},
                         {"role": "assistant", "content": text_of(first)},
                         {"role": "user", "content": "What is it called?"}]})
        self.assertEqual(text_of(second), chat["choices"][0]["message"]["content"])
        self.assertEqual(second["previous_response_id"], first["id"])
        self.assertIsNone(second["instructions"])

        _, items = self.get(second["id"], "/input_items?order=asc")
        self.assertEqual([item["role"] for item in items["data"]], ["user", "assistant", "user"])
        self.assertEqual(items["data"][1]["id"], first["output"][0]["id"])
        _, page = self.get(second["id"], "/input_items?limit=1")
        self.assertEqual(page["data"], [items["data"][2]])
        self.assertTrue(page["has_more"])
        _, page = self.get(second["id"], f"/input_items?after={page['last_id']}")
        self.assertEqual(page["data"], items["data"][1::-1])
        self.assertFalse(page["has_more"])

        reference = self.create(input=[{"type": "item_reference", "id": first["output"][0]["id"]},
                                       {"role": "user", "content": "More."}])
        chat = self.server.post(CHAT, {
            "model": MODEL, "temperature": 0, "max_tokens": 40,
            "messages": [{"role": "assistant", "content": text_of(first)},
                         {"role": "user", "content": "More."}]})
        self.assertEqual(text_of(reference), chat["choices"][0]["message"]["content"])

    def test_a_call_and_its_result_are_in_the_chain(self):
        first = self.create(tools=[TOOL])
        history = [{"role": "user", "content": "Look."},
                   {"type": "reasoning", "summary": [],
                    "content": [{"type": "reasoning_text", "text": "hm"}]},
                   {"type": "function_call", "call_id": "call_1", "name": "look",
                    "arguments": '{"at": "it"}'},
                   {"type": "function_call_output", "call_id": "call_1", "output": "It is red."}]
        second = self.create(tools=[TOOL], input=history, previous_response_id=first["id"])
        chat = self.server.post(CHAT, {
            "model": MODEL, "temperature": 0, "max_tokens": 40,
            "tools": [{"type": "function", "function": {k: TOOL[k] for k in TOOL if k != "type"}}],
            "messages": [{"role": "user", "content": ask()["input"]},
                         {"role": "assistant", "content": text_of(first)},
                         {"role": "user", "content": "Look."},
                         {"role": "assistant", "content": "", "reasoning_content": "hm",
                          "tool_calls": [{"id": "call_1", "type": "function", "function": {
                              "name": "look", "arguments": '{"at": "it"}'}}]},
                         {"role": "tool", "tool_call_id": "call_1", "content": "It is red."}]})
        self.assertEqual(second["usage"]["input_tokens"], chat["usage"]["prompt_tokens"])
        self.assertEqual(text_of(second), chat["choices"][0]["message"]["content"])

    def test_get_delete_and_store_false(self):
        response = self.create()
        self.assertEqual(self.get(response["id"]), (200, response))
        status, _, text = self.request("DELETE", f"{RESPONSES}/{response['id']}")
        self.assertEqual((status, json.loads(text)),
                         (200, {"id": response["id"], "object": "response", "deleted": True}))
        status, error = self.get(response["id"])
        self.assertEqual((status, error["error"]["code"]), (404, "response_not_found"))
        self.assertEqual(self.request("DELETE", f"{RESPONSES}/{response['id']}")[0], 404)
        unkept = self.create(store=False)
        self.assertFalse(unkept["store"])
        self.assertEqual(self.get(unkept["id"])[0], 404)

    def test_the_store_survives_a_kill(self):
        response = self.create()
        self.server.kill()
        self.server = self.start()
        self.assertEqual(self.get(response["id"]), (200, response))
        self.create(previous_response_id=response["id"])

    def test_a_replay_holds_the_order_rules(self):
        response = self.create()
        path = f"{RESPONSES}/{response['id']}?stream=true"
        events = self.stream(path)
        self.assertEqual(self.check_stream(events), response)
        self.assertEqual(self.stream(path + "&starting_after=3"), events[4:])
        self.refused_get(f"{RESPONSES}/{response['id']}?starting_after=3", "starting_after")

    def refused_get(self, path, param):
        status, _, text = self.request("GET", path)
        self.assertEqual((status, json.loads(text)["error"]["param"]), (400, param), text)

    def test_the_store_keeps_the_newest(self):
        self.restart("--response-store", "2")
        ids = [self.create()["id"] for _ in range(3)]
        self.assertEqual([self.get(one)[0] for one in ids], [404, 200, 200])

    def test_other_keys_find_nothing(self):
        self.restart("--api-key", "key-a", "--api-key", "key-b")
        status, _, text = self.request("POST", RESPONSES, ask(), key="key-a")
        self.assertEqual(status, 200, text)
        response = json.loads(text)
        path = f"{RESPONSES}/{response['id']}"
        for method, suffix in (("GET", ""), ("GET", "?stream=true"), ("GET", "/input_items"),
                               ("DELETE", ""), ("POST", "/cancel")):
            body = {} if method == "POST" else None
            self.assertEqual(self.request(method, path + suffix, body, key="key-b")[0], 404)
        status, _, text = self.request("POST", RESPONSES,
                                       ask(previous_response_id=response["id"]), key="key-b")
        self.assertEqual((status, json.loads(text)["error"]["code"]),
                         (400, "previous_response_not_found"))
        self.assertEqual(self.request("GET", path, key="key-a")[0], 200)
        self.assertEqual(self.request("GET", path, key=harness.ADMIN_KEY)[0], 200)


class Background(Server):
    def test_a_background_response_is_polled_and_replayed(self):
        queued = self.create(background=True)
        self.assertIn(queued["status"], ("queued", "in_progress"))
        self.assertEqual(queued["output"], [])
        response = self.finish(queued["id"])
        self.assertEqual(text_of(response), text_of(self.create()))
        self.assertTrue(response["background"])
        events = self.stream(f"{RESPONSES}/{queued['id']}?stream=true")
        self.assertEqual(self.check_stream(events), response)
        self.server.kill()
        self.server = self.start()
        self.assertEqual(self.get(queued["id"]), (200, response))
        self.assertEqual(self.stream(f"{RESPONSES}/{queued['id']}?stream=true"), events)

    def test_a_followed_response_outlives_its_client(self):
        body = ask(background=True, stream=True, ignore_eos=True, max_output_tokens=200)
        connection = http.client.HTTPConnection(*self.server.address, timeout=harness.PATIENCE_S)
        connection.request("POST", RESPONSES, json.dumps(body),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.readline()
        created = json.loads(response.readline()[len("data: "):])
        connection.close()
        path = f"{RESPONSES}/{created['response']['id']}?stream=true"
        # Followers, from the start and from the middle, while it runs.
        events = self.stream(path)
        final = self.check_stream(events)
        self.assertEqual(final["usage"]["output_tokens"], 200)
        self.assertEqual(self.stream(path + "&starting_after=10"), events[11:])

    def test_a_cancelled_response_stays_cancelled(self):
        self.restart("--max-seqs", "1")
        ids = [self.create(background=True, ignore_eos=True, max_output_tokens=200)["id"]
               for _ in range(12)]
        path = f"{RESPONSES}/{ids[-1]}"
        status, _, text = self.request("POST", path + "/cancel", {})
        self.assertEqual((status, json.loads(text)["status"]), (200, "cancelled"), text)
        self.assertEqual(self.request("POST", path + "/cancel", {})[0], 200)
        events = self.stream(path + "?stream=true")
        self.assertEqual(self.check_stream(events)["status"], "cancelled")
        for one in ids[:-1]:
            self.assertEqual(self.finish(one)["status"], "incomplete")
        self.assertEqual(self.get(ids[-1])[1]["status"], "cancelled")
        self.refused({}, "id", "job_not_active", f"{RESPONSES}/{ids[0]}/cancel")
        foreground = self.create()["id"]
        self.refused({}, "id", "job_not_active", f"{RESPONSES}/{foreground}/cancel")

    def test_after_a_kill_each_response_has_one_end(self):
        self.restart("--max-seqs", "1")
        ids = [self.create(background=True, ignore_eos=True, max_output_tokens=200)["id"]
               for _ in range(30)]
        done = {one: self.get(one)[1] for one in ids}
        self.server.kill()
        self.server = self.start()
        statuses = []
        for one in ids:
            status, response = self.get(one)
            self.assertEqual(status, 200)
            statuses.append(response["status"])
            self.assertIn(response["status"], ("incomplete", "failed"))
            if done[one]["status"] == "incomplete":
                self.assertEqual(response, done[one])
            if response["status"] == "failed":
                self.assertIn("stopped", response["error"]["message"])
            events = self.stream(f"{RESPONSES}/{one}?stream=true")
            self.assertEqual(self.check_stream(events), response)
        self.assertIn("failed", statuses)

    def test_a_stop_ends_responses_that_cannot_finish(self):
        self.restart("--max-seqs", "1", "--drain-timeout", "0")
        ids = [self.create(background=True, ignore_eos=True, max_output_tokens=200)["id"]
               for _ in range(30)]
        self.restart()
        statuses = {self.get(one)[1]["status"] for one in ids}
        self.assertLessEqual(statuses, {"incomplete", "failed"})
        self.assertIn("failed", statuses)

    def test_background_needs_the_store(self):
        self.refused(ask(background=True, store=False), "background", "invalid_value")

    def test_a_follower_that_reads_late_misses_nothing(self):
        queued = self.create(background=True, ignore_eos=True, max_output_tokens=200,
                             include=["message.output_text.logprobs"], top_logprobs=20)
        path = f"{RESPONSES}/{queued['id']}?stream=true"
        connection = http.client.HTTPConnection(*self.server.address, timeout=harness.PATIENCE_S)
        connection.request("GET", path)
        late = connection.getresponse()
        self.assertEqual(self.finish(queued["id"])["status"], "incomplete")
        events = events_of(late.read().decode())
        connection.close()
        self.check_stream(events)
        self.assertEqual(self.stream(path), events)

    def test_many_followers_of_one_response(self):
        queued = self.create(background=True, ignore_eos=True, max_output_tokens=200)
        results = []

        def follow():
            results.append(self.stream(f"{RESPONSES}/{queued['id']}?stream=true"))

        threads = [threading.Thread(target=follow) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(results), 8)
        for events in results:
            self.assertEqual(events, results[0])


if __name__ == "__main__":
    harness.main()
