"""Anthropic's SDK: messages, streams, the tool runner, parsed objects, token counts, errors."""

import json
import unittest

import anthropic
from support import ADA, EXPECTED, KEY, MODEL, URL, Person, asked, get_weather

TOOL = {"name": "get_weather", "description": "The weather in a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}},
                         "required": ["city"]}}


def user(text):
    return [{"role": "user", "content": text}]


class Messages(unittest.TestCase):
    def setUp(self):
        asked.clear()
        self.client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)

    def ask(self, messages, **more):
        return self.client.messages.create(model=MODEL, max_tokens=200, messages=messages, **more)

    def test_a_message_has_text_a_reason_and_usage(self):
        message = self.ask(user("Hello"), system="Be brief.",
                           extra_body={"temperature": 1})

        self.assertEqual(message.content[0].text, EXPECTED["plain"])
        self.assertEqual(message.stop_reason, "end_turn")
        self.assertGreater(message.usage.output_tokens, 5)
        self.assertTrue(message.id.startswith("msg_"))

    def test_a_tool_loop(self):
        messages = user("Go #pair")
        message = self.ask(messages, tools=[TOOL])
        calls = [block for block in message.content if block.type == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call.id,
                    "content": get_weather(**call.input)} for call in calls]
        final = self.ask([*messages, {"role": "assistant", "content": message.content},
                          {"role": "user", "content": results}], tools=[TOOL])

        self.assertEqual(message.stop_reason, "tool_use")
        self.assertEqual([block.type for block in message.content],
                         ["text", "tool_use", "tool_use"])
        self.assertEqual(asked, ["Paris", "Oslo"])
        self.assertEqual(final.content[0].text, EXPECTED["both"])

    def test_the_tool_runner_runs_the_loop(self):
        runner = self.client.beta.messages.tool_runner(
            model=MODEL, max_tokens=200, messages=user("Go #weather"),
            tools=[anthropic.beta_tool(get_weather)])
        final = runner.until_done()

        self.assertEqual(final.content[0].text, EXPECTED["sunny"])
        self.assertEqual(asked, ["Paris"])

    def test_the_stream_helper_accumulates_blocks(self):
        kinds = []
        with self.client.messages.stream(model=MODEL, max_tokens=200, messages=user("Go #pair"),
                                         tools=[TOOL]) as stream:
            for event in stream:
                if not kinds or kinds[-1] != event.type:
                    kinds.append(event.type)
            final = stream.get_final_message()

        self.assertEqual(kinds[0], "message_start")
        self.assertEqual(kinds[-1], "message_stop")
        self.assertIn("input_json", kinds)
        self.assertEqual([block.input for block in final.content if block.type == "tool_use"],
                         [{"city": "Paris"}, {"city": "Oslo"}])
        self.assertEqual(final.stop_reason, "tool_use")

    def test_a_text_stream_spells_the_answer(self):
        with self.client.messages.stream(model=MODEL, max_tokens=200,
                                         messages=user("Hello")) as stream:
            pieces = list(stream.text_stream)

        self.assertEqual("".join(pieces), EXPECTED["plain"])
        self.assertGreater(len(pieces), 3)

    def test_forced_tools(self):
        for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
            message = self.ask(user("Go #weather"), tools=[TOOL], tool_choice=choice)
            self.assertEqual(message.content[0].input, {"city": "Paris"})

    def test_parse_returns_an_object(self):
        message = self.client.messages.parse(model=MODEL, max_tokens=200,
                                             messages=user("Who? #person"), output_format=Person)

        self.assertEqual(message.parsed_output, ADA)

    def test_max_tokens_and_stop_sequences_are_their_reasons(self):
        cut = self.ask(user("Hello"), stop_sequences=["model"])
        short = self.client.messages.create(model=MODEL, max_tokens=2, messages=user("Hello"))

        self.assertEqual((cut.stop_reason, cut.stop_sequence), ("stop_sequence", "model"))
        self.assertEqual(short.stop_reason, "max_tokens")

    def test_count_tokens_is_what_the_message_uses(self):
        ask = dict(model=MODEL, messages=user("Go #weather"), tools=[TOOL], system="Be brief.")
        counted = self.client.messages.count_tokens(**ask)
        usage = self.client.messages.create(max_tokens=5, **ask).usage

        self.assertEqual(counted.input_tokens, usage.input_tokens
                         + usage.cache_read_input_tokens + usage.cache_creation_input_tokens)

    def test_errors_are_the_classes_of_the_sdk(self):
        wrong = anthropic.Anthropic(base_url=URL, api_key="wrong", max_retries=0)
        with self.assertRaises(anthropic.AuthenticationError):
            wrong.messages.create(model=MODEL, max_tokens=5, messages=user("x"))
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.ask(user("x"), extra_body={"temperature": 7})
        self.assertEqual(caught.exception.body["error"]["type"], "invalid_request_error")
        self.assertIn("temperature", caught.exception.body["error"]["message"])
        with self.assertRaises(anthropic.BadRequestError):
            self.ask([{"role": "user", "content": [{"type": "image", "source": {
                "type": "url", "url": "http://127.0.0.1/x.png"}}]}])

    def test_history_with_an_error_result_is_accepted(self):
        messages = [*user("Go #weather"),
                    {"role": "assistant", "content": [
                        {"type": "text", "text": "I look."},
                        {"type": "tool_use", "id": "toolu_1", "name": "get_weather",
                         "input": {"city": "Paris"}}]},
                    {"role": "user", "content": [
                        {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True,
                         "content": [{"type": "text", "text": "no network"}],
                         "cache_control": {"type": "ephemeral"}}]}]
        message = self.ask(json.loads(json.dumps(messages)), tools=[TOOL])

        self.assertEqual(message.content[0].text, EXPECTED["sunny"])


if __name__ == "__main__":
    unittest.main()
