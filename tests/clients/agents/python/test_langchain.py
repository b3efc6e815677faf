"""LangChain and LangGraph: an agent's tool loop, streamed and not, and structured output."""

import unittest

from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from support import ADA, BASE, EXPECTED, KEY, MODEL, REPORT, Person, Report, asked
from support import get_weather as plain_get_weather

get_weather = tool(plain_get_weather)


def model(**options):
    return ChatOpenAI(model=MODEL, base_url=BASE, api_key=KEY, max_retries=0, **options)


def user(text):
    return {"messages": [{"role": "user", "content": text}]}


class Agents(unittest.TestCase):
    def setUp(self):
        asked.clear()

    def test_an_agent_calls_the_tool_and_answers(self):
        result = create_agent(model(), [get_weather], system_prompt="Be brief.").invoke(
            user("#weather"))

        self.assertEqual([message.type for message in result["messages"]],
                         ["human", "ai", "tool", "ai"])
        self.assertEqual(result["messages"][-1].content, EXPECTED["sunny"])
        self.assertEqual(asked, ["Paris"])

    def test_a_streaming_agent_yields_tokens_and_steps(self):
        agent = create_agent(model(streaming=True), [get_weather])
        tokens, steps = [], []
        for mode, value in agent.stream(user("#pair"), stream_mode=["messages", "updates"]):
            if mode == "updates":
                steps += list(value)
            elif value[0].type == "AIMessageChunk":
                tokens.append(value[0].content)

        self.assertEqual(steps, ["model", "tools", "tools", "model"])
        self.assertTrue("".join(tokens).endswith(EXPECTED["both"]))
        self.assertEqual(sorted(asked), ["Oslo", "Paris"])

    def test_an_agent_returns_an_object_through_the_response_format(self):
        result = create_agent(model(), [get_weather],
                              response_format=ProviderStrategy(Report)).invoke(user("#report"))

        self.assertEqual(result["structured_response"], REPORT)
        self.assertEqual(asked, ["Paris"])

    def test_an_agent_returns_an_object_through_a_tool(self):
        result = create_agent(model(), [], response_format=ToolStrategy(Person)).invoke(
            user("#person-call"))

        self.assertEqual(result["structured_response"], ADA)

    def test_structured_output_by_every_method(self):
        for method, name in (("json_schema", "person"), ("function_calling", "person-call"),
                             ("json_mode", "person")):
            chain = model().with_structured_output(Person, method=method)
            self.assertEqual(chain.invoke(f"Who? #{name}"), ADA)


if __name__ == "__main__":
    unittest.main()
