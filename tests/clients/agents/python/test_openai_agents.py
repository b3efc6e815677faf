"""The OpenAI Agents SDK over both APIs: tool loops, hand-offs, objects, streams."""

import os
import unittest

import agents
import openai
from support import BASE, EXPECTED, KEY, MODEL, REPORT, Report, asked
from support import get_weather as plain_get_weather

get_weather = agents.function_tool(plain_get_weather)


# The clients of the running test.
clients = []


def model():
    sdk = openai.AsyncOpenAI(base_url=BASE, api_key=KEY, max_retries=0)
    clients.append(sdk)
    if os.environ["TANDEM_AGENTS_API"] == "responses":
        return agents.OpenAIResponsesModel(model=MODEL, openai_client=sdk)
    return agents.OpenAIChatCompletionsModel(model=MODEL, openai_client=sdk)


def agent(**options):
    return agents.Agent(name="Reporter", instructions="Be brief.", model=model(),
                        tools=[get_weather], **options)


class Agents(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        agents.set_tracing_disabled(True)
        asked.clear()

    async def asyncTearDown(self):
        while clients:
            await clients.pop().close()

    async def test_a_tool_loop_ends_in_text(self):
        result = await agents.Runner.run(agent(), "#weather")

        self.assertEqual(result.final_output, EXPECTED["sunny"])
        self.assertEqual(asked, ["Paris"])

    async def test_parallel_calls_run_both_tools(self):
        result = await agents.Runner.run(agent(), "#pair")

        self.assertEqual(result.final_output, EXPECTED["both"])
        self.assertEqual(sorted(asked), ["Oslo", "Paris"])

    async def test_a_tool_loop_ends_in_an_object(self):
        result = await agents.Runner.run(agent(output_type=Report), "#report")

        self.assertEqual(result.final_output, REPORT)
        self.assertEqual(asked, ["Paris"])

    async def test_a_forced_tool_is_called(self):
        settings = agents.ModelSettings(tool_choice="get_weather")
        result = await agents.Runner.run(agent(model_settings=settings), "#weather")

        self.assertEqual(result.final_output, EXPECTED["sunny"])

    async def test_a_streamed_loop_reports_deltas_and_items(self):
        result = agents.Runner.run_streamed(agent(), "#weather")
        deltas, items = [], []
        async for event in result.stream_events():
            if event.type == "raw_response_event":
                if event.data.type == "response.output_text.delta":
                    deltas.append(event.data.delta)
            elif event.type == "run_item_stream_event":
                items.append(event.name)

        self.assertEqual("".join(deltas), EXPECTED["sunny"])
        self.assertEqual(items, ["tool_called", "tool_output", "message_output_created"])

    async def test_a_hand_off_is_a_call(self):
        specialist = agent()
        desk = agents.Agent(name="Desk", model=model(),
                            handoffs=[agents.handoff(specialist, tool_name_override="to_reporter")])
        result = await agents.Runner.run(desk, "#hand-off")

        self.assertEqual(result.last_agent.name, "Reporter")
        self.assertEqual(result.final_output, EXPECTED["sunny"])


if __name__ == "__main__":
    unittest.main()
