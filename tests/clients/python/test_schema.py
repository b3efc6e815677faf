"""Replies against the official types: every required member, no other types, no extra members.

The SDK's pydantic models come from the official OpenAPI document. They cannot distinguish an absent
member from a required one that may be null; REQUIRED_NULLABLE lists the latter. EXTENSIONS are the
program's own members; any other unknown member is a fault.
"""

import json
import typing
import unittest
import urllib.request

import pydantic
from openai.types import Completion, CompletionChoice, CompletionUsage, Model
from openai.types.chat import (ChatCompletion, ChatCompletionChunk, ChatCompletionMessage,
                               ChatCompletionTokenLogprob, chat_completion, chat_completion_chunk)
from openai.types.completion_choice import Logprobs

from support import API_KEY, MESSAGES, MODEL, URL, ask

REQUIRED_NULLABLE = {
    chat_completion.Choice: {"logprobs"},
    chat_completion.ChoiceLogprobs: {"content", "refusal"},
    chat_completion_chunk.ChoiceLogprobs: {"content", "refusal"},
    ChatCompletionMessage: {"content", "refusal"},
    ChatCompletionTokenLogprob: {"bytes"},
    CompletionChoice: {"logprobs"},
    Logprobs: {"tokens", "token_logprobs", "top_logprobs", "text_offset"},
    # Optional in the document; the program promises them.
    ChatCompletion: {"usage", "system_fingerprint"},
    ChatCompletionChunk: {"system_fingerprint"},
    Completion: {"usage", "system_fingerprint"},
    CompletionUsage: {"prompt_tokens_details", "completion_tokens_details"},
}
EXTENSIONS = {
    chat_completion.Choice: {"stop_reason"},
    chat_completion_chunk.Choice: {"stop_reason"},
    CompletionChoice: {"stop_reason"},
    Model: {"max_model_len", "root", "parent", "capabilities", "provenance"},
}
# Faults of the document: its author sends null here.
NULL_IN_SPITE_OF_THE_TYPE = {
    (CompletionChoice, "finish_reason"): "in every chunk of a stream except the last",
}


def members_of(kind):
    """The pydantic models inside a type such as Optional[List[Choice]]."""
    if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        return [kind]
    return [model for part in typing.get_args(kind) for model in members_of(part)]


def faults(kind, value, path="$"):
    """Missing and extra members by path, at every depth."""
    out = []
    fields = {field.alias or name: (name, field) for name, field in kind.model_fields.items()}
    for wire_name, (_, field) in fields.items():
        required = field.is_required() or wire_name in REQUIRED_NULLABLE.get(kind, ())
        if required and wire_name not in value:
            out.append(f"{path}.{wire_name} is missing")
    for name, member in value.items():
        if name not in fields:
            if name not in EXTENSIONS.get(kind, ()):
                out.append(f"{path}.{name} is not in {kind.__name__}")
            continue
        for model in members_of(fields[name][1].annotation):
            for index, item in enumerate(member if isinstance(member, list) else [member]):
                if isinstance(item, dict):
                    out += faults(model, item, f"{path}.{name}[{index}]")
    return out


class Schema(unittest.TestCase):
    def check(self, kind, value):
        self.assertEqual(faults(kind, value), [])
        tolerated = set()
        try:
            # Strict: "5" is not an integer, 1 is not a boolean, and a Literal has one of its
            # values.
            kind.model_validate_json(json.dumps(value), strict=True)
        except pydantic.ValidationError as error:
            for fault in error.errors():
                name = fault["loc"][-1]
                if fault["input"] is None and (CompletionChoice, name) in NULL_IN_SPITE_OF_THE_TYPE:
                    tolerated.add(name)
                    continue
                raise
        return tolerated

    def post(self, path, body):
        """The parsed reply, or the parsed events of a stream."""
        request = urllib.request.Request(
            URL + path, json.dumps({"model": MODEL, **body}).encode(),
            {"Authorization": f"Bearer {API_KEY}", "Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read().decode()
        if not body.get("stream"):
            return json.loads(text)
        events = text.split("\n\n")
        self.assertEqual(events[-2:], ["data: [DONE]", ""])
        return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]

    def test_models(self):
        listed = json.loads(ask(URL, "/v1/models")[1])

        self.assertEqual(set(listed), {"object", "data"})
        for model in listed["data"]:
            self.check(Model, model)
            self.check(Model, json.loads(ask(URL, f"/v1/models/{model['id']}")[1]))

    def test_chat(self):
        for more in ({}, {"n": 2}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 2},
                     {"stop": "."}, {"max_tokens": 1}):
            self.check(ChatCompletion,
                       self.post("/v1/chat/completions",
                                 {"messages": MESSAGES, "max_tokens": 40, **more}))

    def test_chat_chunks(self):
        for more in ({}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}, {"stop": "."},
                     {"stream_options": {"include_usage": True}}):
            chunks = self.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 40,
                                                        "stream": True, **more})
            self.assertGreater(len(chunks), 2)
            for chunk in chunks:
                self.check(ChatCompletionChunk, chunk)
            ended = [choice["index"] for chunk in chunks for choice in chunk["choices"]
                     if choice["finish_reason"]]
            self.assertEqual(sorted(ended), list(range(more.get("n", 1))))

    def test_completions(self):
        for more in ({}, {"n": 2}, {"logprobs": 0}, {"logprobs": 3}, {"prompt": ["A", "B"]},
                     {"stop": "."}):
            self.assertEqual(
                self.check(Completion,
                           self.post("/v1/completions", {"prompt": "Once", "max_tokens": 20,
                                                         **more})), set())

    def test_completion_chunks(self):
        for more in ({}, {"logprobs": 2}, {"stream_options": {"include_usage": True}}):
            for chunk in self.post("/v1/completions", {"prompt": "Once", "max_tokens": 20,
                                                       "stream": True, **more}):
                # The usage of a chunk is optional; if it was requested, null is allowed too.
                if chunk.get("usage") is None:
                    chunk.setdefault("usage", None)
                tolerated = self.check(Completion, chunk)
                if tolerated:
                    self.assertIsNone(chunk["choices"][0]["finish_reason"])

    def test_errors(self):
        request = urllib.request.Request(
            URL + "/v1/completions", b'{"model":"none","prompt":"x"}',
            {"Authorization": f"Bearer {API_KEY}", "Content-Type": "application/json"})
        with self.assertRaises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=60)
        with caught.exception as answer:
            body = json.loads(answer.read())

        self.assertEqual(set(body), {"error"})
        self.assertEqual(set(body["error"]), {"message", "type", "param", "code"})

    def test_the_check_itself_finds_faults(self):
        good = self.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2})
        for spoil in (lambda a: a.pop("usage"), lambda a: a.pop("id"),
                      lambda a: a["choices"][0].pop("logprobs"),
                      lambda a: a["choices"][0]["message"].pop("refusal"),
                      lambda a: a["choices"][0].update(colour="red"),
                      lambda a: a["choices"][0].update(finish_reason="done"),
                      lambda a: a.update(created="1700000000"),
                      lambda a: a.update(object="chat"),
                      lambda a: a["usage"].update(prompt_tokens=None)):
            bad = json.loads(json.dumps(good))
            spoil(bad)
            with self.assertRaises((AssertionError, pydantic.ValidationError)):
                self.check(ChatCompletion, bad)


if __name__ == "__main__":
    unittest.main()
