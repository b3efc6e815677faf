"""Haystack: an agent with a tool, a structured answer, and a stream."""

import json
import unittest

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
from support import ADA, BASE, EXPECTED, KEY, MODEL, Person, asked, get_weather


def generator(**options):
    return OpenAIChatGenerator(model=MODEL, api_base_url=BASE, api_key=Secret.from_token(KEY),
                               max_retries=0, **options)


class Agents(unittest.TestCase):
    def setUp(self):
        asked.clear()

    def test_an_agent_calls_its_tools_and_answers(self):
        agent = Agent(chat_generator=generator(), tools=[create_tool_from_function(get_weather)])
        for name, want in (("weather", "sunny"), ("pair", "both")):
            result = agent.run(messages=[ChatMessage.from_user(f"Go #{name}")])
            self.assertEqual(result["messages"][-1].text, EXPECTED[want])

        self.assertEqual(sorted(asked), ["Oslo", "Paris", "Paris"])

    def test_a_response_format_makes_an_object(self):
        answer = generator(generation_kwargs={"response_format": Person}).run(
            [ChatMessage.from_user("Who? #person")])

        self.assertEqual(Person(**json.loads(answer["replies"][0].text)), ADA)

    def test_a_streaming_agent_reports_its_pieces(self):
        pieces = []
        agent = Agent(chat_generator=generator(), tools=[create_tool_from_function(get_weather)],
                      streaming_callback=lambda chunk: pieces.append(chunk.content))
        result = agent.run(messages=[ChatMessage.from_user("Go #weather")])

        self.assertEqual(result["messages"][-1].text, EXPECTED["sunny"])
        self.assertTrue(any(piece and piece in EXPECTED["sunny"] for piece in pieces))


if __name__ == "__main__":
    unittest.main()
