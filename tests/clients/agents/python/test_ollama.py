"""Ollama's Python client: chats, prompts, tools, thoughts, objects, embeddings, lists, pulls."""

import asyncio
import functools
import json
import os
import unittest

import ollama
import pydantic
from support import ADA, EXPECTED, KEY, MODEL, URL, Person, asked, get_weather

ADMIN_KEY = os.environ["TANDEM_TEST_ADMIN_KEY"]


@functools.cache
def client(key=KEY):
    return ollama.Client(host=URL, headers={"Authorization": f"Bearer {key}"})


def user(text):
    return [{"role": "user", "content": text}]


class Chats(unittest.TestCase):
    def setUp(self):
        asked.clear()
        self.client = client()

    def test_an_answer_has_text_a_reason_and_counts(self):
        answer = self.client.chat(model=MODEL, messages=user("Hello"))

        self.assertEqual(answer.message.content, EXPECTED["plain"])
        self.assertEqual((answer.done, answer.done_reason), (True, "stop"))
        self.assertGreater(answer.eval_count, 5)
        self.assertGreater(answer.prompt_eval_count, 0)
        self.assertGreaterEqual(answer.total_duration, answer.eval_duration)

    def test_a_stream_spells_the_answer(self):
        parts = list(self.client.chat(model=MODEL + ":latest", messages=user("Hello"), stream=True))

        self.assertEqual("".join(part.message.content for part in parts), EXPECTED["plain"])
        self.assertGreater(len(parts), 3)
        self.assertEqual([part.done for part in parts], [False] * (len(parts) - 1) + [True])

    def test_a_tool_loop_with_results_by_name(self):
        messages = user("Go #pair")
        first = self.client.chat(model=MODEL, messages=messages, tools=[get_weather])
        messages.append(first.message)
        for call in first.message.tool_calls:
            messages.append({"role": "tool", "tool_name": call.function.name,
                             "content": get_weather(**call.function.arguments)})
        final = self.client.chat(model=MODEL, messages=messages, tools=[get_weather])

        self.assertEqual(asked, ["Paris", "Oslo"])
        self.assertTrue(first.message.content)
        self.assertEqual(final.message.content, EXPECTED["both"])

    def test_streamed_calls_have_their_arguments(self):
        calls = [call for part in self.client.chat(model=MODEL, messages=user("Go #pair"),
                                                   tools=[get_weather], stream=True)
                 for call in part.message.tool_calls or []]

        self.assertEqual([dict(call.function.arguments) for call in calls],
                         [{"city": "Paris"}, {"city": "Oslo"}])

    def test_thoughts_are_apart_from_the_text(self):
        answer = self.client.chat(model=MODEL, messages=user("Go #thought"), think=True)
        self.assertEqual(answer.message.thinking, EXPECTED["thought"])
        self.assertEqual(answer.message.content, EXPECTED["sunny"])
        parts = list(self.client.generate(model=MODEL, prompt="Go #thought", think=True,
                                          stream=True))
        self.assertEqual("".join(part.thinking or "" for part in parts), EXPECTED["thought"])
        self.assertEqual("".join(part.response for part in parts), EXPECTED["sunny"])

    def test_a_schema_makes_an_object(self):
        answer = self.client.chat(model=MODEL, messages=user("Go #person"),
                                  format=Person.model_json_schema())
        self.assertEqual(Person.model_validate_json(answer.message.content), ADA)
        answer = self.client.generate(model=MODEL, prompt="Go #person", format="json")
        self.assertEqual(json.loads(answer.response), EXPECTED["ada"])

    def test_options_reach_the_model(self):
        answer = self.client.chat(model=MODEL, messages=user("Hello"),
                                  options=ollama.Options(num_predict=2, temperature=0, num_ctx=4096,
                                                         stop=["never"], seed=3))
        self.assertEqual((answer.done_reason, answer.eval_count), ("length", 2))
        with self.assertRaises(ollama.ResponseError) as caught:
            self.client.chat(model=MODEL, messages=user("Hello"), options={"mirostat": 1})
        self.assertEqual(caught.exception.status_code, 400)
        self.assertIn("mirostat", caught.exception.error)

    def test_a_context_continues_a_prompt(self):
        first = self.client.generate(model=MODEL, prompt="Hello")
        second = self.client.generate(model=MODEL, prompt="Hello", context=first.context)
        self.assertEqual(second.context[:len(first.context)], first.context)

    def test_log_probabilities(self):
        answer = self.client.chat(model=MODEL, messages=user("Hello"), logprobs=True,
                                  top_logprobs=2)
        # A token that is no text of its own is named by its bytes.
        spelled = "".join(token.token for token in answer.logprobs)
        self.assertTrue(EXPECTED["plain"].startswith(spelled.split("bytes:")[0]), spelled)
        self.assertEqual(len(answer.logprobs[0].top_logprobs), 2)

    def test_images_are_refused(self):
        with self.assertRaises(ollama.ResponseError) as caught:
            self.client.chat(model=MODEL, messages=[dict(user("What is it?")[0], images=[b"GIF89a"])])
        self.assertIn("text only", caught.exception.error)

    def test_a_client_that_leaves_ends_its_stream(self):
        stream = self.client.chat(model=MODEL, messages=user("Hello"), stream=True)
        next(iter(stream))
        stream.close()
        self.assertEqual(self.client.chat(model=MODEL, messages=user("Hello")).message.content,
                         EXPECTED["plain"])

    def test_the_asynchronous_client(self):
        async def chat():
            asynchronous = ollama.AsyncClient(host=URL, headers={"Authorization": f"Bearer {KEY}"})
            parts = [part.message.content async for part in await asynchronous.chat(
                model=MODEL, messages=user("Hello"), stream=True)]
            many = await asyncio.gather(*[asynchronous.chat(model=MODEL, messages=user("Hello"))
                                          for _ in range(8)])
            return "".join(parts), [answer.message.content for answer in many]
        streamed, many = asyncio.run(chat())
        self.assertEqual(streamed, EXPECTED["plain"])
        self.assertEqual(many, [EXPECTED["plain"]] * 8)


class Models(unittest.TestCase):
    def test_lists_and_details(self):
        models = client().list().models
        self.assertIn(MODEL + ":latest", [model.model for model in models])
        model = models[0]
        self.assertIsInstance(model.size, pydantic.ByteSize)
        self.assertEqual(model.details.family, "llama")
        running = client().ps().models[0]
        self.assertEqual(running.name, model.model)
        self.assertGreater(running.expires_at, model.modified_at)
        details = client().show(MODEL)
        self.assertEqual(details.modelinfo["general.architecture"], "llama")
        self.assertEqual(details.modelinfo["llama.context_length"], 262144)
        self.assertLessEqual({"completion", "tools", "thinking"}, set(details.capabilities))
        self.assertIn("tool_call", details.template)

    def test_embeddings(self):
        embed = client().embed(model=MODEL, input=["one", "two"])
        self.assertEqual(len(embed.embeddings), 2)
        self.assertAlmostEqual(sum(x * x for x in embed.embeddings[0]), 1, places=3)
        one = client().embeddings(model=MODEL, prompt="one")
        self.assertEqual(list(one.embedding), list(embed.embeddings[0]))

    def test_a_pull_needs_the_admin_key_and_serves_the_model(self):
        with self.assertRaises(ollama.ResponseError) as caught:
            client().pull("org/name")
        self.assertEqual(caught.exception.status_code, 403)
        parts = list(client(ADMIN_KEY).pull("org/name", stream=True))
        self.assertEqual(parts[-1].status, "success")
        names = [model.model for model in client().list().models]
        self.assertIn("org/name:latest", names)
        answer = client().chat(model="org/name", messages=user("A story"),
                               options={"num_predict": 10})
        self.assertTrue(answer.message.content)
        self.assertEqual(client(ADMIN_KEY).pull("org/name").status, "success")
        self.assertEqual(client(ADMIN_KEY).generate(model="org/name", keep_alive=0).done_reason,
                         "unload")

    def test_errors_are_the_clients_own(self):
        with self.assertRaises(ollama.ResponseError) as caught:
            client("wrong").list()
        self.assertEqual(caught.exception.status_code, 401)
        with self.assertRaises(ollama.ResponseError) as caught:
            client(ADMIN_KEY).pull("llama3.2")
        self.assertIn("ORG/NAME", caught.exception.error)
        for action in (lambda: client().create(model="mine", from_=MODEL),
                       lambda: client().copy(MODEL, "mine"), lambda: client().delete(MODEL),
                       lambda: client().push(MODEL)):
            with self.assertRaises(ollama.ResponseError) as caught:
                action()
            self.assertEqual(caught.exception.status_code, 501)


if __name__ == "__main__":
    unittest.main()
