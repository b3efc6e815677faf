"""The OpenAI SDK over /v1/responses: loops, helpers of streams, parsed objects, stored responses."""

import json
import time
import unittest

import openai
from support import (ADA, BASE, EXPECTED, KEY, MODEL, PATCH_GRAMMAR, WEATHER_PARAMETERS, Person,
                     asked, get_weather)

TOOL = {"type": "function", "name": "get_weather", "parameters": WEATHER_PARAMETERS,
        "strict": True}


def outputs(response):
    return [{"type": "function_call_output", "call_id": item.call_id,
             "output": get_weather(**json.loads(item.arguments))}
            for item in response.output if item.type == "function_call"]


class Responses(unittest.TestCase):
    def setUp(self):
        asked.clear()
        self.client = openai.OpenAI(base_url=BASE, api_key=KEY, max_retries=0)

    def ask(self, text, **more):
        return self.client.responses.create(model=MODEL, input=text, **more)

    def test_a_response_has_text_status_and_usage(self):
        response = self.ask("Hello", instructions="Be brief.")

        self.assertEqual(response.output_text, EXPECTED["plain"])
        self.assertEqual(response.status, "completed")
        self.assertEqual(response.usage.total_tokens,
                         response.usage.input_tokens + response.usage.output_tokens)

    def test_a_tool_loop_by_previous_response_id(self):
        first = self.ask("Go #pair", tools=[TOOL])
        last = self.ask(outputs(first), tools=[TOOL], previous_response_id=first.id)

        self.assertEqual(last.output_text, EXPECTED["both"])
        self.assertEqual(asked, ["Paris", "Oslo"])

    def test_a_tool_loop_with_its_whole_history_and_nothing_stored(self):
        history = [{"role": "user", "content": "Go #weather"}]
        first = self.ask(history, tools=[TOOL], store=False)
        last = self.ask([*history, *first.output, *outputs(first)], tools=[TOOL], store=False)

        self.assertEqual(last.output_text, EXPECTED["sunny"])
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(first.id)

    def test_the_stream_helper_ends_in_the_response_of_its_events(self):
        text, kinds = "", []
        with self.client.responses.stream(model=MODEL, input="Go #pair", tools=[TOOL]) as stream:
            for event in stream:
                kinds.append(event.type)
                if event.type == "response.output_text.delta":
                    text += event.delta
            final = stream.get_final_response()

        self.assertEqual((kinds[0], kinds[-1]), ("response.created", "response.completed"))
        self.assertEqual(text, "I ask for both.")
        self.assertEqual([item.type for item in final.output],
                         ["message", "function_call", "function_call"])
        self.assertEqual(kinds.count("response.function_call_arguments.done"), 2)

    def test_parse_returns_an_object(self):
        response = self.client.responses.parse(model=MODEL, input="Who? #person",
                                               text_format=Person)

        self.assertEqual(response.output_parsed, ADA)

    def test_a_stream_parses_its_object(self):
        with self.client.responses.stream(model=MODEL, input="Who? #person",
                                          text_format=Person) as stream:
            final = stream.get_final_response()

        self.assertEqual(final.output_parsed, ADA)

    def test_forced_tools(self):
        for choice in ("required", {"type": "function", "name": "get_weather"}):
            response = self.ask("Go #weather", tools=[TOOL], tool_choice=choice)
            self.assertEqual(json.loads(response.output[0].arguments), {"city": "Paris"})

    def test_a_custom_tool_takes_its_input_and_gives_its_output(self):
        tool = {"type": "custom", "name": "apply_patch",
                "format": {"type": "grammar", **PATCH_GRAMMAR}}
        first = self.ask("Change the greeting. #patch", tools=[tool])
        [call] = first.output
        last = self.ask([{"type": "custom_tool_call_output", "call_id": call.call_id,
                          "output": "done"}], tools=[tool], previous_response_id=first.id)

        self.assertEqual((call.type, call.name), ("custom_tool_call", "apply_patch"))
        self.assertEqual(call.input, EXPECTED["patch"])
        self.assertEqual(last.output_text, "The greeting is changed.")

    def test_a_custom_call_streams_its_input(self):
        tool = {"type": "custom", "name": "apply_patch",
                "format": {"type": "grammar", **PATCH_GRAMMAR}}
        text, kinds = "", []
        for event in self.ask("Change the greeting. #patch", tools=[tool], stream=True):
            kinds.append(event.type)
            if event.type == "response.custom_tool_call_input.delta":
                text += event.delta

        self.assertEqual(text, EXPECTED["patch"])
        self.assertEqual(kinds.count("response.custom_tool_call_input.done"), 1)

    def test_a_call_of_a_namespace_says_so(self):
        group = {"type": "namespace", "name": "weather", "description": "Weather.",
                 "tools": [TOOL]}
        response = self.ask("Go #weather", tools=[group])

        self.assertEqual(response.output[0].name, "get_weather")
        self.assertEqual(response.output[0].namespace, "weather")

    def test_a_token_limit_makes_the_response_incomplete(self):
        response = self.ask("Hello", max_output_tokens=2)

        self.assertEqual(response.status, "incomplete")
        self.assertEqual(response.incomplete_details.reason, "max_output_tokens")

    def test_stored_responses_are_read_listed_and_deleted(self):
        response = self.ask("Hello")
        again = self.client.responses.retrieve(response.id)
        items = list(self.client.responses.input_items.list(response.id))
        self.client.responses.delete(response.id)

        self.assertEqual(again.output_text, response.output_text)
        self.assertEqual(items[0].content[0].text, "Hello")
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(response.id)

    def test_a_background_response_is_polled_to_its_end(self):
        response = self.ask("Hello", background=True)
        self.assertIn(response.status, ("queued", "in_progress", "completed"))
        end = time.monotonic() + 30
        while response.status in ("queued", "in_progress") and time.monotonic() < end:
            response = self.client.responses.retrieve(response.id)

        self.assertEqual(response.output_text, EXPECTED["plain"])

    def test_a_background_stream_resumes_after_an_event(self):
        with self.ask("Hello", background=True, stream=True) as stream:
            first = [next(iter(stream)) for _ in range(4)]
        response = first[0].response
        rest = list(self.client.responses.retrieve(response.id, stream=True,
                                                   starting_after=first[-1].sequence_number))

        numbers = [event.sequence_number for event in [*first, *rest]]
        self.assertEqual(numbers, list(range(len(numbers))))
        self.assertEqual(rest[-1].response.output_text, EXPECTED["plain"])

    def test_input_tokens_are_those_of_the_response(self):
        counted = self.client.responses.input_tokens.count(model=MODEL, input="Hello")

        self.assertEqual(counted.input_tokens, self.ask("Hello").usage.input_tokens)


if __name__ == "__main__":
    unittest.main()
