"""Replies with tools, responses, events and embeddings against the SDKs' own types, strictly.

A reply must have all required members, no other types, and no members that the types do not know.
The types come from the official API documents. The arguments name the classes to run.
"""

import functools
import json
import time
import unittest
import urllib.request

import anthropic.types
import openai
import openai.types.chat
import openai.types.responses
import pydantic
from openai.types import CreateEmbeddingResponse
from support import KEY, MODEL, URL, Person, WEATHER_PARAMETERS

SCHEMA = Person.model_json_schema()
# The program's own members, by class. OpenAI sends those of Response without documenting them.
EXTENSIONS = {"Choice": {"stop_reason"}, "ChatCompletionMessage": {"reasoning_content"},
              # In deltas. The type of the whole text has them.
              "Logprob": {"bytes"}, "LogprobTopLogprob": {"bytes"},
              "Response": {"store", "presence_penalty", "frequency_penalty"}}
# Required by the document and nullable, which the types cannot tell from optional.
RESPONSE_MEMBERS = {
    "id", "object", "created_at", "completed_at", "status", "error", "incomplete_details",
    "instructions", "model", "output", "parallel_tool_calls", "previous_response_id", "reasoning",
    "store", "temperature", "text", "tool_choice", "tools", "top_p", "truncation",
    "max_output_tokens", "metadata", "background", "usage"}


def until_done(ask):
    """The first status for which the work has ended."""
    end = time.monotonic() + 60
    while (batch := ask()).status not in ("completed", "failed", "expired", "cancelled"):
        assert time.monotonic() < end, batch
        time.sleep(0.05)
    return batch


@functools.cache
def adapter(kind):
    return pydantic.TypeAdapter(kind)


def unknown(value, path="$"):
    """The members that the types do not know, by path."""
    if isinstance(value, list):
        return [fault for i, item in enumerate(value) for fault in unknown(item, f"{path}[{i}]")]
    if not isinstance(value, pydantic.BaseModel):
        return []
    known = EXTENSIONS.get(type(value).__name__, set())
    out = [f"{path}.{name} is not in {type(value).__name__}"
           for name in value.model_extra or {} if name not in known]
    for name in value.model_fields_set:
        out += unknown(getattr(value, name), f"{path}.{name}")
    return out


def post(path, body):
    """The reply, or the events of a stream as [(name, data)]."""
    request = urllib.request.Request(
        URL + path, json.dumps({"model": MODEL, **body}).encode(),
        {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read().decode()
    if not body.get("stream"):
        return json.loads(text)
    events = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n")
                      if ": " in line and not line.startswith(":"))
        if "data" in fields and fields["data"] != "[DONE]":
            events.append((fields.get("event"), json.loads(fields["data"])))
    return events


class Types(unittest.TestCase):
    def check(self, kind, value):
        parsed = adapter(kind).validate_json(json.dumps(value), strict=True)
        self.assertEqual(unknown(parsed), [])
        return parsed


class Chat(Types):
    tool = {"type": "function", "function": {"name": "get_weather",
                                             "parameters": WEATHER_PARAMETERS}}

    def bodies(self):
        for name, more in (("weather", {"tools": [self.tool]}), ("pair", {"tools": [self.tool]}),
                           ("pair", {"tools": [self.tool], "n": 2, "logprobs": True}),
                           ("person", {"response_format": {"type": "json_schema", "json_schema": {
                               "name": "Person", "schema": SCHEMA}}})):
            yield {"messages": [{"role": "user", "content": f"Go #{name}"}], **more}

    def test_replies(self):
        for body in self.bodies():
            self.check(openai.types.chat.ChatCompletion, post("/v1/chat/completions", body))

    def test_chunks(self):
        for body in self.bodies():
            events = post("/v1/chat/completions",
                          dict(body, stream=True, stream_options={"include_usage": True}))
            self.assertGreater(len(events), 3)
            for _, event in events:
                self.check(openai.types.chat.ChatCompletionChunk, event)

    def test_embeddings(self):
        answer = post("/v1/embeddings", {"input": ["one", "two"], "encoding_format": "float"})
        self.check(CreateEmbeddingResponse, answer)

    def test_batches(self):
        sdk = openai.OpenAI(base_url=URL + "/v1", api_key=KEY, max_retries=0)
        lines = [json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions",
                             "body": {"model": MODEL, **body}})
                 for i, body in enumerate(self.bodies())]
        file = sdk.files.create(file=("lines.jsonl", "\n".join(lines).encode()), purpose="batch")
        batch = sdk.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions",
                                   completion_window="24h")
        done = until_done(lambda: sdk.batches.retrieve(batch.id))
        output = sdk.files.content(done.output_file_id).text

        self.assertEqual(done.request_counts.completed, len(lines))
        for value in (batch, done):
            self.check(openai.types.Batch, json.loads(value.to_json(exclude_unset=False,
                                                                    exclude_none=True)))
        for line in output.splitlines():
            reply = json.loads(line)["response"]
            self.assertEqual(reply["status_code"], 200)
            self.check(openai.types.chat.ChatCompletion, reply["body"])


class Responses(Types):
    tool = {"type": "function", "name": "get_weather", "parameters": WEATHER_PARAMETERS,
            "strict": True}

    def bodies(self):
        yield {"input": "Hello", "instructions": "Be brief.", "metadata": {"a": "b"}}
        yield {"input": "Hello", "max_output_tokens": 2}
        yield {"input": "Hello", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
        for name in ("weather", "pair"):
            yield {"input": [{"role": "user", "content": [
                {"type": "input_text", "text": f"Go #{name}"}]}], "tools": [self.tool]}
        yield {"input": "Who? #person", "text": {"format": {
            "type": "json_schema", "name": "Person", "schema": SCHEMA}}}

    def check_response(self, value):
        parsed = self.check(openai.types.responses.Response, value)
        self.assertEqual(RESPONSE_MEMBERS - set(value), set())
        return parsed

    def test_replies(self):
        for body in self.bodies():
            response = self.check_response(post("/v1/responses", body))
            self.assertIn(response.status, ("completed", "incomplete"))

    def test_events(self):
        for body in self.bodies():
            events = post("/v1/responses", dict(body, stream=True))
            for number, (name, event) in enumerate(events):
                self.check(openai.types.responses.ResponseStreamEvent, event)
                self.assertEqual((name, number), (event["type"], event["sequence_number"]))
                if "response" in event:
                    self.check_response(event["response"])
            self.assertIn(events[-1][0], ("response.completed", "response.incomplete"))
            done = [event["item"] for name, event in events if name == "response.output_item.done"]
            self.assertEqual(done, events[-1][1]["response"]["output"])


class Messages(Types):
    tool = {"name": "get_weather", "input_schema": WEATHER_PARAMETERS}

    def bodies(self):
        for name, more in (("plain", {}), ("plain", {"stop_sequences": ["model"]}),
                           ("weather", {"tools": [self.tool]}), ("pair", {"tools": [self.tool]})):
            yield {"max_tokens": 200, **more,
                   "messages": [{"role": "user", "content": f"Go #{name}"}]}
        yield {"max_tokens": 2, "messages": [{"role": "user", "content": "Hello"}]}

    def test_replies(self):
        for body in self.bodies():
            self.check(anthropic.types.Message, post("/v1/messages", body))

    def test_events(self):
        for body in self.bodies():
            events = post("/v1/messages", dict(body, stream=True))
            open_blocks = []
            for name, event in events:
                self.assertEqual(name, event["type"])
                if name == "ping":
                    continue
                self.check(anthropic.types.RawMessageStreamEvent, event)
                if name == "content_block_start":
                    self.assertEqual(open_blocks, [])
                    open_blocks.append(event["index"])
                elif name == "content_block_stop":
                    self.assertEqual(open_blocks.pop(), event["index"])
            self.assertEqual((events[0][0], events[-1][0]), ("message_start", "message_stop"))


class TheCheck(Types):
    def test_finds_faults(self):
        good = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [
            {"index": 0, "finish_reason": "stop", "logprobs": None,
             "message": {"role": "assistant", "content": "a", "refusal": None}}]}
        self.check(openai.types.chat.ChatCompletion, good)
        for spoil in (lambda a: a.pop("id"), lambda a: a.update(created="1"),
                      lambda a: a.update(colour="red"),
                      lambda a: a["choices"][0].update(finish_reason="done"),
                      lambda a: a["choices"][0]["message"].update(colour="red")):
            bad = json.loads(json.dumps(good))
            spoil(bad)
            with self.assertRaises((AssertionError, pydantic.ValidationError)):
                self.check(openai.types.chat.ChatCompletion, bad)


if __name__ == "__main__":
    unittest.main()
