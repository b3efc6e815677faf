"""The openai package: plain and asynchronous client, streams, helpers, errors, retries."""

import asyncio
import io
import json
import ssl
import threading
import time
import unittest

import openai

from support import (ADMIN_KEY, API_KEY, BUSY_URL, CA_FILE, LONG, MESSAGES, MODEL, TLS_URL, URL,
                     arrivals, ask, becomes_idle, client, stubbed, work)


def chat(sdk, **more):
    return sdk.chat.completions.create(**{"model": MODEL, "messages": MESSAGES, "max_tokens": 60,
                                          **more})


def text_of(stream):
    """The text of choice 0 of a stream, chat or completions."""
    out = ""
    for chunk in stream:
        for choice in chunk.choices:
            if choice.index == 0:
                out += choice.delta.content or "" if hasattr(choice, "delta") else choice.text
    return out


class Models(unittest.TestCase):
    def test_list_iterates_over_every_served_name(self):
        self.assertEqual({model.id for model in client().models.list()},
                         {MODEL, "org/tandem:stories"})

    def test_retrieve(self):
        model = client().models.retrieve(MODEL)

        self.assertEqual((model.id, model.object, model.owned_by), (MODEL, "model", "local"))

    def test_a_name_with_slash_and_colon_is_retrieved_and_generates(self):
        sdk = client()

        self.assertEqual(sdk.models.retrieve("org/tandem:stories").id, "org/tandem:stories")
        self.assertEqual(chat(sdk, model="org/tandem:stories", temperature=0).choices[0].message,
                         chat(sdk, temperature=0).choices[0].message)


    def test_the_base_model_cannot_be_deleted(self):
        with self.assertRaises(openai.PermissionDeniedError) as caught:
            client().models.delete(MODEL)

        self.assertEqual(caught.exception.code, "model_protected")


class Batches(unittest.TestCase):
    def upload(self, lines):
        text = "\n".join(json.dumps(line) for line in lines).encode()
        return client().files.create(file=("in.jsonl", io.BytesIO(text)), purpose="batch")

    def end_of(self, batch):
        while batch.status not in ("completed", "failed", "expired", "cancelled"):
            time.sleep(0.05)
            batch = client().batches.retrieve(batch.id)
        return batch

    def test_a_batch_is_created_watched_and_read(self):
        lines = [{"custom_id": f"r{i}", "method": "POST", "url": "/v1/chat/completions",
                  "body": {"model": MODEL, "messages": MESSAGES, "max_tokens": 8,
                           "temperature": 9 if i == 3 else 0}} for i in range(5)]
        batch = self.end_of(client().batches.create(
            input_file_id=self.upload(lines).id, endpoint="/v1/chat/completions",
            completion_window="24h", metadata={"a": "b"},
            output_expires_after={"anchor": "created_at", "seconds": 3600}))

        self.assertEqual((batch.status, batch.metadata), ("completed", {"a": "b"}))
        self.assertEqual((batch.request_counts.completed, batch.request_counts.failed), (4, 1))
        rows = client().files.content(batch.output_file_id).text.splitlines()
        self.assertEqual([json.loads(row)["custom_id"] for row in rows], ["r0", "r1", "r2", "r4"])
        bad = json.loads(client().files.content(batch.error_file_id).text)
        self.assertEqual(bad["response"]["status_code"], 400)
        self.assertIn(batch.id, [one.id for one in client().batches.list(limit=1)])
        with self.assertRaises(openai.BadRequestError):
            client().batches.cancel(batch.id)

    def test_faults_of_the_input_have_types(self):
        batch = self.end_of(client().batches.create(
            input_file_id=self.upload([{"custom_id": "a"}]).id, endpoint="/v1/embeddings",
            completion_window="24h"))

        self.assertEqual(batch.status, "failed")
        self.assertEqual((batch.errors.data[0].line, batch.errors.data[0].param), (1, "method"))
        with self.assertRaises(openai.NotFoundError):
            client().batches.retrieve("batch_none")


class Embeddings(unittest.TestCase):
    def test_the_default_asks_for_base64_and_decodes_to_the_same_floats(self):
        texts = ["A dog ran.", "It rained."]

        plain = client().embeddings.create(model=MODEL, input=texts, encoding_format="float")
        # The library decodes base64 after it has checked types, so its strict mode refuses every answer.
        decoded = client(strict=False).embeddings.create(model=MODEL, input=texts)

        self.assertEqual([entry.index for entry in decoded.data], [0, 1])
        self.assertEqual(decoded.usage, plain.usage)
        for got, want in zip(decoded.data, plain.data):
            self.assertEqual(len(got.embedding), len(want.embedding))
            for a, b in zip(got.embedding, want.embedding):
                self.assertAlmostEqual(a, b, places=7)

    def test_dimensions(self):
        answer = client().embeddings.create(model=MODEL, input="A dog.", dimensions=8,
                                           encoding_format="float")

        self.assertEqual(len(answer.data[0].embedding), 8)

    def test_an_empty_input_is_a_bad_request(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            client().embeddings.create(model=MODEL, input="")

        self.assertEqual(caught.exception.param, "input")


class Chat(unittest.TestCase):
    def test_plain_answer(self):
        answer = chat(client(), temperature=0)

        self.assertTrue(answer.id.startswith("chatcmpl-"))
        self.assertEqual(answer.model, MODEL)
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertGreater(len(answer.choices[0].message.content), 40)
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.completion_tokens, 60)
        self.assertEqual(answer.usage.total_tokens, 60 + answer.usage.prompt_tokens)
        self.assertLess(answer.usage.prompt_tokens_details.cached_tokens,
                        answer.usage.prompt_tokens)

    def test_the_same_seed_gives_the_same_text_plain_and_streamed(self):
        sdk = client()
        want = chat(sdk, temperature=0.9, seed=11).choices[0].message.content

        self.assertEqual(chat(sdk, temperature=0.9, seed=11).choices[0].message.content, want)
        self.assertEqual(text_of(chat(sdk, temperature=0.9, seed=11, stream=True)), want)
        self.assertNotEqual(chat(sdk, temperature=0.9, seed=12).choices[0].message.content, want)

    def test_choices_of_n_are_the_same_streamed_and_plain(self):
        sdk = client()
        plain = chat(sdk, n=3, seed=5, temperature=1)
        streamed = {}
        for chunk in chat(sdk, n=3, seed=5, temperature=1, stream=True):
            for choice in chunk.choices:
                streamed[choice.index] = (streamed.get(choice.index, "")
                                          + (choice.delta.content or ""))

        self.assertEqual([streamed[i] for i in range(3)],
                         [choice.message.content for choice in plain.choices])
        self.assertEqual([choice.index for choice in plain.choices], [0, 1, 2])
        self.assertEqual(len(set(streamed.values())), 3)

    def test_stop_ends_the_text_before_the_stop_string(self):
        sdk = client()
        whole = chat(sdk, temperature=0).choices[0].message.content
        stop = whole.split()[7]
        cut = chat(sdk, temperature=0, stop=[stop, "never said"])

        self.assertEqual(cut.choices[0].finish_reason, "stop")
        self.assertEqual(cut.choices[0].message.content, whole[:whole.index(stop)])
        self.assertEqual(text_of(chat(sdk, temperature=0, stop=stop, stream=True)),
                         whole[:whole.index(stop)])

    def test_logprobs_spell_the_text_and_are_the_same_streamed(self):
        sdk = client()
        asked = {"temperature": 0, "logprobs": True, "top_logprobs": 3}
        plain = chat(sdk, **asked).choices[0]
        streamed = [entry for chunk in chat(sdk, **asked, stream=True)
                    for choice in chunk.choices if choice.logprobs
                    for entry in choice.logprobs.content]

        self.assertEqual(b"".join(bytes(e.bytes) for e in plain.logprobs.content).decode(),
                         plain.message.content)
        self.assertEqual(streamed, plain.logprobs.content)
        for entry in streamed:
            self.assertEqual(len(entry.top_logprobs), 3)
            self.assertEqual(entry.top_logprobs[0].token, entry.token)

    def test_usage_comes_last_in_a_stream_that_asks_for_it_and_never_otherwise(self):
        sdk = client()
        plain = chat(sdk, temperature=0)
        chunks = list(chat(sdk, temperature=0, stream=True,
                           stream_options={"include_usage": True}))

        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, plain.usage.completion_tokens)
        self.assertEqual(chunks[-1].usage.prompt_tokens, plain.usage.prompt_tokens)
        self.assertEqual([chunk.usage for chunk in chunks[:-1]], [None] * (len(chunks) - 1))
        self.assertEqual({chunk.id for chunk in chunks}, {chunks[0].id})
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        for chunk in chat(sdk, temperature=0, stream=True):
            self.assertIsNone(chunk.usage)
            self.assertNotEqual(chunk.choices, [])

    def test_the_stream_helper_ends_with_the_plain_answer(self):
        sdk = client()
        asked = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "stop": ".",
                 "logprobs": True}
        plain = sdk.chat.completions.create(**asked)
        with sdk.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
            events = list(stream)
            final = stream.get_final_completion()

        deltas = [event for event in events if event.type == "content.delta"]
        self.assertEqual(deltas[-1].snapshot, plain.choices[0].message.content)
        self.assertEqual("".join(event.delta for event in deltas), deltas[-1].snapshot)
        self.assertEqual([e.content for e in events if e.type == "content.done"],
                         [plain.choices[0].message.content])
        self.assertEqual(len([e for e in events if e.type == "logprobs.content.done"]), 1)
        self.assertEqual(final.choices[0].message.content, plain.choices[0].message.content)
        self.assertEqual(final.choices[0].finish_reason, "stop")
        self.assertEqual(final.choices[0].logprobs.content, plain.choices[0].logprobs.content)
        self.assertEqual(final.usage.completion_tokens, plain.usage.completion_tokens)

    def test_parts_roles_and_fields_without_effect_are_accepted(self):
        answer = chat(client(), temperature=0, store=False, user="u", metadata={"k": "v"},
                      service_tier="auto", parallel_tool_calls=None, logit_bias={"5": -100},
                      messages=[{"role": "system", "content": "Be brief."},
                                {"role": "developer", "content": "Be kind."},
                                {"role": "user", "name": "ann", "content": [
                                    {"type": "text", "text": "Tell me a story"},
                                    {"type": "text", "text": "about a dog."}]},
                                {"role": "assistant", "content": "One day"},
                                {"role": "user", "content": "Go on."}])

        self.assertEqual(answer.choices[0].finish_reason, "length")


class Completions(unittest.TestCase):
    def test_plain_and_streamed(self):
        sdk = client(strict=False)
        asked = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 30, "seed": 3,
                 "temperature": 0.8}
        plain = sdk.completions.create(**asked)
        chunks = list(sdk.completions.create(**asked, stream=True,
                                             stream_options={"include_usage": True}))

        self.assertTrue(plain.id.startswith("cmpl-"))
        self.assertGreater(len(plain.choices[0].text), 20)
        self.assertEqual(text_of(chunks), plain.choices[0].text)
        self.assertEqual(chunks[-1].usage.completion_tokens, plain.usage.completion_tokens)

    def test_several_prompts_n_echo_and_logprobs(self):
        # The first token of a prompt has no log-probability; the type does not allow this null.
        answer = client(strict=False).completions.create(
            model=MODEL, prompt=["A cat", "A dog"], n=2, seed=1, max_tokens=5, echo=True,
            logprobs=2)

        self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2, 3])
        self.assertEqual([choice.text[:5] for choice in answer.choices],
                         ["A cat", "A cat", "A dog", "A dog"])
        for choice in answer.choices:
            self.assertIsNone(choice.logprobs.token_logprobs[0])
            self.assertEqual(len(choice.logprobs.tokens), len(choice.logprobs.text_offset))
            self.assertEqual("".join(choice.logprobs.tokens)[-5:], choice.text[-5:])

    def test_token_ids_and_best_of(self):
        answer = client().completions.create(model=MODEL, prompt=[0, 55, 1741], max_tokens=5,
                                             best_of=3, n=1)

        self.assertEqual(answer.usage.prompt_tokens, 3)
        self.assertEqual(len(answer.choices), 1)


    def test_any_text_comes_back_as_it_was(self):
        text = 'Zoë \u00a0 "said"\n\t\\ 犬 \U0001f415 \x01'
        answer = client().completions.create(model=MODEL, prompt=text, echo=True, max_tokens=0)

        self.assertEqual(answer.choices[0].text, text)


class Files(unittest.TestCase):
    def test_create_list_retrieve_content_delete(self):
        sdk = client()
        content = b'{"messages": []}\r\n' * 3

        file = sdk.files.create(file=("ä b.jsonl", content), purpose="fine-tune",
                                expires_after={"anchor": "created_at", "seconds": 3600})

        self.assertEqual((file.filename, file.bytes, file.purpose, file.status),
                         ("ä b.jsonl", len(content), "fine-tune", "processed"))
        self.assertEqual(file.expires_at, file.created_at + 3600)
        self.assertEqual(sdk.files.retrieve(file.id), file)
        self.assertIn(file.id, [one.id for one in sdk.files.list(purpose="fine-tune", limit=1)])
        self.assertEqual(sdk.files.content(file.id).read(), content)
        self.assertTrue(sdk.files.delete(file.id).deleted)
        with self.assertRaises(openai.NotFoundError) as caught:
            sdk.files.content(file.id)
        self.assertEqual(caught.exception.code, "file_not_found")

    def test_pages_are_iterated(self):
        sdk = client()
        ids = [sdk.files.create(file=b"x", purpose="user_data").id for _ in range(3)]

        listed = [file.id for file in sdk.files.list(purpose="user_data", limit=1, order="asc")]

        self.assertEqual(listed, ids)
        for file_id in ids:
            sdk.files.delete(file_id)

    def test_what_is_wrong_is_named(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            client().files.create(file=b"x", purpose="play")

        self.assertEqual((caught.exception.param, caught.exception.code),
                         ("purpose", "invalid_value"))


class Pings(unittest.TestCase):
    def test_a_stream_that_waits_shows_only_its_text(self):
        sdk = client(BUSY_URL, strict=False, max_retries=8)
        asked = {"model": MODEL, "prompt": "A dog", "max_tokens": 8, "temperature": 0}
        want = sdk.completions.create(**asked).choices[0].text
        running = sdk.completions.create(**LONG, stream=True)
        next(iter(running))
        waiting = sdk.completions.create(**asked, stream=True)
        read = waiting.response.iter_bytes
        pings = []

        def watched(*arguments):
            for piece in read(*arguments):
                if b": ping" in piece:
                    pings.append(piece)
                    running.close()
                yield piece

        waiting.response.iter_bytes = watched

        self.assertEqual(text_of(waiting), want)
        self.assertNotEqual(pings, [])


class Leaving(unittest.TestCase):
    def test_a_closed_stream_ends_the_work(self):
        sdk = client(strict=False)
        stream = sdk.completions.create(**LONG, stream=True)
        next(iter(stream))
        self.assertGreater(work(), 0)
        stream.close()

        self.assertTrue(becomes_idle())
        self.assertEqual(chat(sdk, max_tokens=1).usage.completion_tokens, 1)

    def test_leaving_the_stream_helper_ends_the_work(self):
        with client().chat.completions.stream(model=MODEL, messages=MESSAGES, n=128, max_tokens=900,
                                              extra_body={"ignore_eos": True}) as stream:
            next(iter(stream))
            self.assertGreater(work(), 0)

        self.assertTrue(becomes_idle())

    def test_a_client_that_times_out_ends_the_work(self):
        with self.assertRaises(openai.APITimeoutError):
            client(timeout=0.5).completions.create(**LONG)

        self.assertTrue(becomes_idle())

    def test_a_timeout_is_retried_as_often_as_asked_and_nothing_is_left_running(self):
        sent = []
        http = openai.DefaultHttpxClient(event_hooks={"request": [sent.append]})
        with self.assertRaises(openai.APITimeoutError):
            client(timeout=0.5, max_retries=1, http_client=http).completions.create(**LONG)

        self.assertEqual(len(sent), 2)
        self.assertTrue(becomes_idle())


class Errors(unittest.TestCase):
    def fails(self, kind, status, code, param, call):
        with self.assertRaises(kind) as caught:
            call()
        error = caught.exception
        self.assertIs(type(error), kind)
        self.assertEqual((error.status_code, error.code, error.param), (status, code, param))
        self.assertTrue(error.request_id.startswith("req_"), error.request_id)
        self.assertEqual(error.body["message"], error.response.json()["error"]["message"])
        return error

    def test_wrong_key(self):
        error = self.fails(openai.AuthenticationError, 401, "invalid_api_key", None,
                           lambda: chat(client(api_key="wrong")))

        self.assertEqual(error.response.headers["www-authenticate"], "Bearer")
        self.assertNotIn("wrong", error.message)

    def test_an_ordinary_key_on_an_admin_route(self):
        self.fails(openai.PermissionDeniedError, 403, "insufficient_permissions", None,
                   lambda: client().with_options(base_url=URL).get("/admin/models",
                                                                   cast_to=object))

    def test_the_admin_key_works_where_an_ordinary_one_does(self):
        self.assertEqual(client(api_key=ADMIN_KEY).models.retrieve(MODEL).id, MODEL)

    def test_unknown_model(self):
        error = self.fails(openai.NotFoundError, 404, "model_not_found", "model",
                           lambda: chat(client(), model="gpt-4o"))

        self.assertIn(MODEL, error.message)
        self.fails(openai.NotFoundError, 404, "model_not_found", "model",
                   lambda: client().models.retrieve("gpt-4o"))

    def test_unknown_route(self):
        self.fails(openai.NotFoundError, 404, "unknown_url", None,
                   lambda: client().get("/no/such/route", cast_to=object))

    def test_faults_of_a_field_name_it_also_before_a_stream(self):
        for stream in (False, True):
            self.fails(openai.BadRequestError, 400, "invalid_value", "temperature",
                       lambda: chat(client(), temperature=3, stream=stream))
            self.fails(openai.BadRequestError, 400, "invalid_type", "max_tokens",
                       lambda: chat(client(), max_tokens="7", stream=stream))
            self.fails(openai.BadRequestError, 400, "unsupported_parameter", "functions",
                       lambda: chat(client(), functions=[{"name": "f"}], stream=stream))
            self.fails(openai.BadRequestError, 400, "missing_required_parameter", "messages",
                       lambda: client().post("/chat/completions", body={"model": MODEL},
                                             cast_to=object))

    def test_a_prompt_beyond_the_context(self):
        self.fails(openai.BadRequestError, 400, "context_length_exceeded", "prompt",
                   lambda: client().completions.create(model=MODEL, prompt="dog " * 2000))
        self.fails(openai.BadRequestError, 400, "context_length_exceeded", "messages",
                   lambda: chat(client(BUSY_URL),
                                messages=[{"role": "user", "content": "dog " * 2000}]))

    def test_a_body_beyond_the_limit_is_answered_while_it_is_sent(self):
        error = self.fails(openai.APIStatusError, 413, "request_too_large", None,
                           lambda: client().completions.create(model=MODEL, prompt="x" * (40 << 20)))

        self.assertIn("33554432", error.message)


class Headers(unittest.TestCase):
    def test_raw_answers_show_them(self):
        raw = client().chat.completions.with_raw_response.create(
            model=MODEL, messages=MESSAGES, max_tokens=2, extra_body={"colour": "red"})

        self.assertEqual(raw.http_response.status_code, 200)
        self.assertTrue(raw.request_id.startswith("req_"))
        self.assertEqual(raw.headers["content-type"], "application/json")
        self.assertEqual(raw.headers["x-ignored-params"], "colour")
        self.assertRegex(raw.headers["openai-processing-ms"], r"^\d+$")
        self.assertEqual(raw.retries_taken, 0)
        self.assertEqual(raw.parse()._request_id, raw.request_id)

    def test_a_request_id_of_the_client_comes_back(self):
        answer = chat(client(), max_tokens=1, extra_headers={"X-Request-Id": "mine-1.2_3"})

        self.assertEqual(answer._request_id, "mine-1.2_3")

    def test_streams_have_theirs(self):
        with client().chat.completions.with_streaming_response.create(
                model=MODEL, messages=MESSAGES, max_tokens=2, stream=True) as raw:
            self.assertEqual(raw.headers["content-type"], "text/event-stream; charset=utf-8")
            self.assertEqual(raw.headers["cache-control"], "no-cache")
            self.assertEqual(list(raw.iter_lines())[-2:], ["data: [DONE]", ""])


class Retries(unittest.TestCase):
    def test_429_and_503_are_retried_after_the_time_they_name(self):
        for status in (429, 503):
            sdk, stub_id = stubbed(f"{status}*1", retry_after=2, max_retries=2)

            self.assertEqual(chat(sdk, max_tokens=3).usage.completion_tokens, 3)
            times = arrivals(stub_id)
            self.assertEqual(len(times), 2)
            self.assertGreaterEqual(times[1] - times[0], 1.99)

    def test_with_no_retries_left_the_error_has_its_class(self):
        for status, kind in ((429, openai.RateLimitError), (503, openai.InternalServerError)):
            sdk, stub_id = stubbed(f"{status}*9", retry_after=1, max_retries=0)
            with self.assertRaises(kind) as caught:
                chat(sdk)

            self.assertEqual(caught.exception.response.headers["retry-after"], "1")
            self.assertEqual(len(arrivals(stub_id)), 1)

    def test_a_conflict_is_not_retried_when_the_server_says_so(self):
        sdk, stub_id = stubbed("409*9", should_retry="false", max_retries=2)
        with self.assertRaises(openai.ConflictError):
            chat(sdk)

        self.assertEqual(len(arrivals(stub_id)), 1)

    def crowd(self, max_retries):
        """Sends two requests to a server with one running request and room for one more. Returns
        their outcomes. The long request leaves after the first refusal.
        """
        refused = threading.Event()

        def note(response):
            if response.status_code == 503:
                refused.set()

        def ask_for_two_tokens():
            sdk = client(BUSY_URL, max_retries=max_retries,
                         http_client=openai.DefaultHttpxClient(event_hooks={"response": [note]}))
            try:
                outcomes.append(sdk.chat.completions.with_raw_response.create(
                    model=MODEL, messages=MESSAGES, max_tokens=2))
            except openai.APIStatusError as error:
                outcomes.append(error)

        outcomes = []
        running = client(BUSY_URL, strict=False).completions.create(**LONG, stream=True)
        next(iter(running))
        threads = [threading.Thread(target=ask_for_two_tokens) for _ in range(2)]
        for thread in threads:
            thread.start()
        self.assertTrue(refused.wait(60), "a full server refused nobody")
        running.close()
        for thread in threads:
            thread.join()
        return outcomes

    def test_a_full_server_is_asked_again_and_then_answers(self):
        began = time.monotonic()
        answers = self.crowd(max_retries=8)

        self.assertGreaterEqual(time.monotonic() - began, 0.99)
        self.assertGreaterEqual(sum(answer.retries_taken for answer in answers), 1)
        for answer in answers:
            self.assertEqual(answer.parse().usage.completion_tokens, 2)

    def test_a_full_server_without_retries_is_an_error_that_names_the_delay(self):
        (error,) = [outcome for outcome in self.crowd(max_retries=0)
                    if isinstance(outcome, Exception)]

        self.assertIs(type(error), openai.InternalServerError)
        self.assertEqual((error.status_code, error.code), (503, "server_overloaded"))
        self.assertGreaterEqual(int(error.response.headers["retry-after"]), 1)
        self.assertGreaterEqual(int(error.response.headers["retry-after-ms"]), 1000)


class Tls(unittest.TestCase):
    def test_plain_streamed_and_left(self):
        http = openai.DefaultHttpxClient(verify=ssl.create_default_context(cafile=CA_FILE))
        sdk = client(TLS_URL, strict=False, http_client=http)
        want = chat(sdk, temperature=0).choices[0].message.content

        self.assertEqual(text_of(chat(sdk, temperature=0, stream=True)), want)
        with sdk.completions.create(**LONG, stream=True) as stream:
            next(iter(stream))
        self.assertEqual(chat(sdk, temperature=0).choices[0].message.content, want)

    def test_a_request_that_takes_too_long_is_an_error_also_in_the_middle_of_a_stream(self):
        http = openai.DefaultHttpxClient(verify=ssl.create_default_context(cafile=CA_FILE))
        sdk = client(TLS_URL, strict=False, http_client=http)
        with self.assertRaises(openai.APIError) as streamed:
            for chunk in sdk.completions.create(**LONG, stream=True):
                self.assertTrue(chunk.id)
        with self.assertRaises(openai.InternalServerError) as plain:
            sdk.completions.create(**LONG)

        self.assertIs(type(streamed.exception), openai.APIError)
        self.assertEqual(plain.exception.status_code, 503)
        self.assertEqual(streamed.exception.code, plain.exception.code)
        self.assertGreaterEqual(int(plain.exception.response.headers["retry-after"]), 1)

    def test_an_unknown_certificate_is_refused_by_the_client(self):
        with self.assertRaises(openai.APIConnectionError):
            client(TLS_URL).models.list()


class Async(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.sdk = client(kind=openai.AsyncOpenAI)

    async def asyncTearDown(self):
        await self.sdk.close()

    async def text(self, **more):
        stream = await self.sdk.chat.completions.create(
            **{"model": MODEL, "messages": MESSAGES, "max_tokens": 60, "stream": True, **more})
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def test_fifty_streams_at_once_have_the_text_of_one_alone(self):
        want = {seed: await self.text(seed=seed, temperature=0.9) for seed in range(5)}
        got = await asyncio.gather(*[self.text(seed=i % 5, temperature=0.9) for i in range(50)])

        self.assertEqual(got, [want[i % 5] for i in range(50)])
        self.assertEqual(len(set(want.values())), 5)

    async def test_a_cancelled_task_ends_the_work_and_no_other(self):
        want = await self.text(temperature=0)
        long = asyncio.ensure_future(self.sdk.completions.create(**LONG))
        other = asyncio.ensure_future(self.text(temperature=0))
        while work() < 2:
            await asyncio.sleep(0.02)
        long.cancel()

        self.assertEqual(await other, want)
        self.assertTrue(becomes_idle())

    async def test_the_stream_helper(self):
        async with self.sdk.chat.completions.stream(model=MODEL, messages=MESSAGES, temperature=0,
                                                    stop=".") as stream:
            final = await stream.get_final_completion()

        self.assertEqual(final.choices[0].message.content,
                         (await self.text(temperature=0, stop=".")))

    async def test_errors(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            await self.text(model="gpt-4o")

        self.assertEqual(caught.exception.code, "model_not_found")

    async def test_models(self):
        self.assertIn(MODEL, [model.id async for model in self.sdk.models.list()])

    async def test_health_answers_while_everything_is_busy(self):
        async with await client(kind=openai.AsyncOpenAI, strict=False).completions.create(
                **LONG, stream=True) as stream:
            await stream.__anext__()
            answer = await asyncio.to_thread(ask, URL, "/health")

        self.assertEqual(answer, (200, '{"status":"ok"}'))
        self.assertTrue(becomes_idle())


if __name__ == "__main__":
    unittest.main()
