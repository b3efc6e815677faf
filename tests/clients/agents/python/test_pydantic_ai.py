"""pydantic-ai over chat completions: a tool loop that ends in text, and in objects of two kinds."""

import asyncio
import unittest

from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from support import (ADA, BASE, EXPECTED, KEY, MODEL, REPORT, Person, Report, asked,
                     get_weather)


def agent(**options):
    return Agent(OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE, api_key=KEY)),
                 **options)


class Agents(unittest.TestCase):
    def setUp(self):
        asked.clear()

    def test_a_tool_loop_ends_in_text(self):
        result = agent(tools=[get_weather], instructions="Be brief.").run_sync("#weather")

        self.assertEqual(result.output, EXPECTED["sunny"])
        self.assertEqual(asked, ["Paris"])
        self.assertEqual(result.usage.requests, 2)

    def test_parallel_calls_run_both_tools(self):
        result = agent(tools=[get_weather]).run_sync("#pair")

        self.assertEqual(result.output, EXPECTED["both"])
        self.assertEqual(sorted(asked), ["Oslo", "Paris"])

    def test_a_tool_loop_ends_in_the_object_of_the_output_tool(self):
        result = agent(tools=[get_weather], output_type=Report).run_sync("#report-call")

        self.assertEqual(result.output, REPORT)
        self.assertEqual(asked, ["Paris"])

    def test_native_output_is_the_response_format(self):
        result = agent(output_type=NativeOutput(Person)).run_sync("#person")

        self.assertEqual(result.output, ADA)

    def test_a_streamed_tool_loop(self):
        async def run():
            async with agent(tools=[get_weather]).run_stream("#weather") as stream:
                return [text async for text in stream.stream_text(delta=True, debounce_by=None)]

        pieces = asyncio.run(run())
        self.assertEqual("".join(pieces), EXPECTED["sunny"])
        self.assertGreater(len(pieces), 2)
        self.assertEqual(asked, ["Paris"])


if __name__ == "__main__":
    unittest.main()
