"""langchain-openai: chat and plain models, invoke, stream, batch, and their errors."""

import asyncio
import unittest

import openai
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI

from support import API_KEY, BUSY_URL, MODEL, URL, becomes_idle, work


def chat(url=URL, **options):
    return ChatOpenAI(**{"base_url": url + "/v1", "api_key": API_KEY, "model": MODEL,
                         "temperature": 0, "max_tokens": 40, "max_retries": 0, **options})


class Chat(unittest.TestCase):
    def test_invoke(self):
        answer = chat().invoke([SystemMessage("Be brief."), HumanMessage("A story about a dog")])

        self.assertIsInstance(answer, AIMessage)
        self.assertGreater(len(answer.content), 40)
        self.assertEqual(answer.response_metadata["finish_reason"], "length")
        self.assertEqual(answer.response_metadata["model_name"], MODEL)
        self.assertEqual(answer.usage_metadata["output_tokens"], 40)

    def test_stream_has_the_text_and_the_usage_of_invoke(self):
        model = chat(stream_usage=True)
        want = model.invoke("A story about a dog")
        chunks = list(model.stream("A story about a dog"))
        whole = chunks[0]
        for chunk in chunks[1:]:
            whole += chunk

        self.assertGreater(len(chunks), 5)
        self.assertEqual(whole.content, want.content)
        self.assertEqual(whole.usage_metadata["output_tokens"],
                         want.usage_metadata["output_tokens"])
        self.assertEqual(whole.usage_metadata["input_tokens"], want.usage_metadata["input_tokens"])
        self.assertEqual(whole.response_metadata["finish_reason"], "length")

    def test_batch_has_the_texts_of_single_calls(self):
        model = chat()
        words = ["dog", "cat", "bird", "tree", "ball", "boat"]
        stories = [f"A story about a {word}" for word in words]

        self.assertEqual([answer.content for answer in model.batch(stories)],
                         [model.invoke(story).content for story in stories])

    def test_asynchronous_calls(self):
        async def calls():
            model = chat()
            invoked = await model.ainvoke("A story about a dog")
            streamed = [chunk.content async for chunk in model.astream("A story about a dog")]
            batched = await model.abatch(["A story about a dog"] * 8)
            return invoked.content, "".join(streamed), {answer.content for answer in batched}

        invoked, streamed, batched = asyncio.run(calls())
        self.assertEqual(streamed, invoked)
        self.assertEqual(batched, {invoked})

    def test_a_chain_with_bound_stop_and_logprobs(self):
        model = chat()
        chain = (ChatPromptTemplate.from_messages([("system", "Be kind."),
                                                   ("user", "A story about a {animal}")])
                 | model.bind(stop=["."]) | StrOutputParser())
        scored = model.bind(logprobs=True, top_logprobs=2).invoke("A story about a dog")

        self.assertNotIn(".", chain.invoke({"animal": "dog"}))
        self.assertEqual("".join(entry["token"]
                                 for entry in scored.response_metadata["logprobs"]["content"]),
                         scored.content)

    def test_seed_makes_a_draw_repeatable(self):
        draws = [chat(temperature=0.9, seed=seed).invoke("A story about a dog").content
                 for seed in (4, 4, 5)]

        self.assertEqual(draws[0], draws[1])
        self.assertNotEqual(draws[0], draws[2])

    def test_leaving_a_stream_ends_the_work(self):
        stream = chat(max_tokens=900, n=128, extra_body={"ignore_eos": True}).stream("A dog")
        next(stream)
        self.assertGreater(work(), 0)
        stream.close()

        self.assertTrue(becomes_idle())


class Plain(unittest.TestCase):
    def test_invoke_stream_and_batch(self):
        model = OpenAI(base_url=URL + "/v1", api_key=API_KEY, model=MODEL, temperature=0,
                       max_tokens=30, max_retries=0)
        want = model.invoke("Once upon a time")

        self.assertGreater(len(want), 20)
        self.assertEqual("".join(model.stream("Once upon a time")), want)
        self.assertEqual(model.batch(["Once upon a time"] * 3), [want] * 3)


class Errors(unittest.TestCase):
    def test_wrong_key_model_and_value(self):
        for options, kind in (({"api_key": "wrong"}, openai.AuthenticationError),
                              ({"model": "gpt-4o"}, openai.NotFoundError),
                              ({"top_p": 7}, openai.BadRequestError)):
            with self.assertRaises(kind):
                chat(**options).invoke("hello")

    def test_a_prompt_beyond_the_context_is_known_as_such(self):
        for call in (lambda text: chat(BUSY_URL).invoke(text),
                     lambda text: list(chat(BUSY_URL).stream(text))):
            with self.assertRaises(ContextOverflowError):
                call("dog " * 2000)


if __name__ == "__main__":
    unittest.main()
