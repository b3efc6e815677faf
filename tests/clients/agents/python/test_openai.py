"""The OpenAI SDK: tool loops, helpers of streams, parsed objects, embeddings, errors.

The suite `tests/clients/python/test_openai.py` covers everything without tools.
"""

import asyncio
import json
import unittest

import openai
import pydantic
from support import (ADA, BASE, EXPECTED, KEY, MODEL, PATCH_GRAMMAR, REPORT, WEATHER_PARAMETERS,
                     Person, Report, asked, get_weather)

TOOLS = [{"type": "function",
          "function": {"name": "get_weather", "parameters": WEATHER_PARAMETERS}}]


class City(pydantic.BaseModel):
    city: str


def client(kind=openai.OpenAI, **options):
    return kind(base_url=BASE, api_key=KEY, max_retries=0, timeout=60, **options)


def user(text):
    return [{"role": "user", "content": text}]


def answers_to(message):
    """The results of a message's calls, as messages."""
    return [{"role": "tool", "tool_call_id": call.id,
             "content": get_weather(**json.loads(call.function.arguments))}
            for call in message.tool_calls]


class Tools(unittest.TestCase):
    def setUp(self):
        asked.clear()
        self.client = client(_strict_response_validation=True)

    def ask(self, messages, **more):
        return self.client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS,
                                                   **more).choices[0]

    def test_a_call_and_its_result_lead_to_the_answer(self):
        messages = user("What is the weather? #weather")
        choice = self.ask(messages, temperature=2)
        self.assertEqual(choice.finish_reason, "tool_calls")
        self.assertIsNone(choice.message.content)
        final = self.ask([*messages, choice.message, *answers_to(choice.message)], temperature=2)

        self.assertEqual(asked, ["Paris"])
        self.assertEqual(final.message.content, EXPECTED["sunny"])
        self.assertEqual(final.finish_reason, "stop")
        self.assertIsNone(final.message.tool_calls)

    def test_two_calls_in_one_answer_have_their_own_ids_and_text_before_them(self):
        messages = user("Compare. #pair")
        message = self.ask(messages).message
        final = self.ask([*messages, message, *answers_to(message)])

        self.assertEqual(message.content, "I ask for both.")
        self.assertEqual(asked, ["Paris", "Oslo"])
        self.assertEqual(len({call.id for call in message.tool_calls}), 2)
        self.assertEqual(final.message.content, EXPECTED["both"])

    def test_parallel_tool_calls_false_means_one_call(self):
        message = self.ask(user("Compare. #pair"), parallel_tool_calls=False).message

        self.assertEqual(len(message.tool_calls), 1)

    def test_forced_calls(self):
        named = {"type": "function", "function": {"name": "get_weather"}}
        allowed = {"type": "allowed_tools",
                   "allowed_tools": {"mode": "required", "tools": [named]}}
        for choice in ("required", named, allowed):
            answer = self.ask(user("What is the weather? #weather"), tool_choice=choice)
            self.assertEqual(answer.message.tool_calls[0].function.name, "get_weather")
            self.assertEqual(json.loads(answer.message.tool_calls[0].function.arguments),
                             {"city": "Paris"})

    def test_the_input_of_a_custom_tool_obeys_its_grammar(self):
        tool = {"type": "custom", "custom": {"name": "apply_patch", "format": {
            "type": "grammar", "grammar": PATCH_GRAMMAR}}}
        for choice in ("auto", "required",
                       {"type": "custom", "custom": {"name": "apply_patch"}}):
            answer = client().chat.completions.create(
                model=MODEL, messages=user("Change the greeting. #patch"), tools=[tool],
                tool_choice=choice).choices[0]
            [call] = answer.message.tool_calls
            self.assertEqual((call.type, call.custom.name), ("custom", "apply_patch"))
            self.assertEqual(call.custom.input, EXPECTED["patch"])
            self.assertEqual(answer.finish_reason, "tool_calls")

    def test_tool_choice_none_is_text(self):
        message = self.ask(user("Hello"), tool_choice="none").message

        self.assertEqual(message.content, EXPECTED["plain"])

    def test_stream_deltas_join_to_the_calls_of_the_plain_answer(self):
        want = self.ask(user("Compare. #pair")).message
        calls, pieces = {}, 0
        for chunk in self.client.chat.completions.create(
                model=MODEL, messages=user("Compare. #pair"), tools=TOOLS, stream=True):
            for delta in chunk.choices[0].delta.tool_calls or []:
                call = calls.setdefault(delta.index, {"name": "", "arguments": "", "ids": []})
                call["name"] += delta.function.name or ""
                call["arguments"] += delta.function.arguments or ""
                call["ids"] += [delta.id] if delta.id else []
                pieces += 1
            reason = chunk.choices[0].finish_reason or ""

        self.assertEqual([(call["name"], json.loads(call["arguments"])) for call in calls.values()],
                         [(call.function.name, json.loads(call.function.arguments))
                          for call in want.tool_calls])
        self.assertTrue(all(len(call["ids"]) == 1 for call in calls.values()))
        self.assertGreater(pieces, 4)
        self.assertEqual(reason, "tool_calls")

    def test_the_stream_helper_reports_calls_and_parses_arguments(self):
        tool = openai.pydantic_function_tool(City, name="get_weather")
        kinds = []
        with self.client.chat.completions.stream(
                model=MODEL, messages=user("What is the weather? #weather"), tools=[tool]) as stream:
            for event in stream:
                if not kinds or kinds[-1] != event.type:
                    kinds.append(event.type)
            final = stream.get_final_completion()

        self.assertIn("tool_calls.function.arguments.delta", kinds)
        self.assertIn("tool_calls.function.arguments.done", kinds)
        call = final.choices[0].message.tool_calls[0].function
        self.assertEqual(call.parsed_arguments, City(city="Paris"))

    def test_async_streams_at_once_do_not_mix(self):
        async def one(sdk, name):
            stream = await sdk.chat.completions.create(model=MODEL, messages=user(f"Go #{name}"),
                                                       tools=TOOLS, stream=True)
            text = ""
            async for chunk in stream:
                delta = chunk.choices[0].delta
                text += delta.content or ""
                for call in delta.tool_calls or []:
                    text += call.function.arguments or ""
            return text

        async def every():
            async with client(openai.AsyncOpenAI) as sdk:
                return await asyncio.gather(*[one(sdk, ("plain", "weather")[i % 2])
                                              for i in range(20)])

        texts = asyncio.run(every())
        self.assertEqual(set(texts[::2]), {EXPECTED["plain"]})
        self.assertEqual({json.loads(text)["city"] for text in texts[1::2]}, {"Paris"})


class Objects(unittest.TestCase):
    def setUp(self):
        self.client = client()

    def test_parse_returns_an_object(self):
        answer = self.client.chat.completions.parse(
            model=MODEL, messages=user("Who? #person"), response_format=Person, temperature=2)

        self.assertEqual(answer.choices[0].message.parsed, ADA)

    def test_the_stream_helper_parses_an_object(self):
        with self.client.chat.completions.stream(
                model=MODEL, messages=user("Who? #person"), response_format=Person) as stream:
            partial = [event.parsed for event in stream if event.type == "content.delta"]
            final = stream.get_final_completion()

        self.assertEqual(final.choices[0].message.parsed, ADA)
        self.assertGreater(len(partial), 3)

    def test_parse_returns_the_object_of_a_strict_tool(self):
        answer = self.client.chat.completions.parse(
            model=MODEL, messages=user("Who? #person-call"), tool_choice="required",
            tools=[openai.pydantic_function_tool(Person)])

        call = answer.choices[0].message.tool_calls[0].function
        self.assertEqual(call.parsed_arguments, ADA)

    def test_tools_then_an_object(self):
        messages = user("Report. #report")
        ask = dict(model=MODEL, tools=[openai.pydantic_function_tool(City, name="get_weather")],
                   response_format=Report)
        message = self.client.chat.completions.parse(messages=messages, **ask).choices[0].message
        final = self.client.chat.completions.parse(
            messages=[*messages, message, *answers_to(message)], **ask)

        self.assertEqual(final.choices[0].message.parsed, REPORT)

    def test_an_answer_cut_within_an_object_is_the_length_error(self):
        with self.assertRaises(openai.LengthFinishReasonError):
            self.client.chat.completions.parse(model=MODEL, messages=user("Who? #person"),
                                               response_format=Person, max_tokens=3)


class Rest(unittest.TestCase):
    def setUp(self):
        self.client = client()

    def test_embeddings_in_both_encodings_are_the_same(self):
        packed = self.client.embeddings.create(model=MODEL, input=["one", "two"])
        plain = self.client.embeddings.create(model=MODEL, input=["one", "two"],
                                              encoding_format="float")

        self.assertEqual([item.index for item in packed.data], [0, 1])
        for a, b in zip(packed.data, plain.data):
            self.assertEqual(len(a.embedding), len(b.embedding))
            self.assertLess(max(abs(x - y) for x, y in zip(a.embedding, b.embedding)), 1e-6)

    def test_faults_of_tools_are_bad_requests_with_their_place(self):
        tool = TOOLS[0]
        twice = [tool, tool]
        bad = [{"type": "function", "function": {"name": "no spaces"}}]
        for more, param in (({"tools": twice}, "tools"), ({"tools": bad}, "tools"),
                            ({"tool_choice": "required"}, "tool_choice"),
                            ({"tools": [tool], "tool_choice": {
                                "type": "function", "function": {"name": "other"}}},
                             "tool_choice")):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.client.chat.completions.create(model=MODEL, messages=user("x"), **more)
            self.assertTrue(caught.exception.param.startswith(param), caught.exception)

    def test_a_schema_that_cannot_be_held_is_a_bad_request(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(
                model=MODEL, messages=user("x"), response_format={
                    "type": "json_schema", "json_schema": {"name": "x", "schema": {
                        "type": "array", "uniqueItems": True}}})

        self.assertEqual(caught.exception.code, "unsupported_schema")
        self.assertIn("uniqueItems", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
