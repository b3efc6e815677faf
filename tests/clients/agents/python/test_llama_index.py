"""LlamaIndex: OpenAILike with a function agent, a prediction of an object, and a stream."""

import asyncio
import unittest

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.openai_like import OpenAILike
from support import ADA, BASE, EXPECTED, KEY, MODEL, Person, asked, get_weather


def llm(**options):
    return OpenAILike(model=MODEL, api_base=BASE, api_key=KEY, is_chat_model=True,
                      is_function_calling_model=True, context_window=32768, max_retries=0,
                      **options)


class Agents(unittest.TestCase):
    def setUp(self):
        asked.clear()

    def test_a_function_agent_calls_its_tools_and_answers(self):
        async def run(name):
            agent = FunctionAgent(tools=[get_weather], llm=llm(), system_prompt="Be brief.")
            return await agent.run(f"Go #{name}")

        answer = asyncio.run(run("weather"))
        self.assertEqual(str(answer), EXPECTED["sunny"])
        self.assertEqual(asked, ["Paris"])

        self.assertEqual(str(asyncio.run(run("pair"))), EXPECTED["both"])
        self.assertEqual(sorted(asked), ["Oslo", "Paris", "Paris"])

    def test_a_structured_prediction_forces_its_tool(self):
        person = llm().structured_predict(Person, PromptTemplate("Who? #person-call"))

        self.assertEqual(person, ADA)

    def test_a_response_format_predicts_an_object(self):
        person = llm(should_use_structured_outputs=True).structured_predict(
            Person, PromptTemplate("Who? #person"))

        self.assertEqual(person, ADA)

    def test_a_chat_streams(self):
        pieces = [piece.delta for piece in
                  llm().stream_chat([ChatMessage(role="user", content="Hello")])]

        self.assertEqual("".join(pieces), EXPECTED["plain"])
        self.assertGreater(len(pieces), 3)


if __name__ == "__main__":
    unittest.main()
