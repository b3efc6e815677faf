#!/usr/bin/env python3
"""Ollama's API and llama-server's endpoints of a running program.

`ollama_test.py BINARY [unittest arguments]`.
"""

import datetime
import http.client
import json
import signal
import socket

import harness
import hub_test
from harness import ADMIN_KEY, PATIENCE_S, Case, story

CHAT = "/v1/chat/completions"
QUESTION = "Tell me a story about a dog."
MODEL = "tandem-stories"
COUNTS = {"total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration",
          "eval_count", "eval_duration"}


def turn(**more):
    return dict({"model": MODEL, "messages": [{"role": "user", "content": QUESTION}],
                 "options": {"num_predict": 40, "temperature": 0}}, **more)


def open_request(server, path, body, key=None, method="POST", content_type="application/json",
                 origin=None):
    """(connection, response)"""
    connection = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
    headers = {"Content-Type": content_type} if content_type else {}
    if origin:
        headers["Origin"] = origin
    if key:
        headers["Authorization"] = f"Bearer {key}"
    connection.request(method, path, body if isinstance(body, str) else json.dumps(body), headers)
    return connection, connection.getresponse()


def ask(server, path, body, **more):
    """(status, headers, JSON)"""
    connection, response = open_request(server, path, body, **more)
    text = response.read()
    connection.close()
    return response.status, response.headers, json.loads(text)


def lines(server, path, body, **more):
    """The JSON lines of a stream."""
    connection, response = open_request(server, path, body, **more)
    text = response.read().decode()
    connection.close()
    assert response.status == 200, text
    assert response.headers["content-type"] == "application/x-ndjson", response.headers
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


class OllamaCase(Case):
    def refused(self, server, status, path, body, contains, **more):
        got, headers, answer = ask(server, path, body, **more)
        self.assertEqual((got, set(answer)), (status, {"error"}), answer)
        self.assertIn(contains, answer["error"])
        return headers


class Answers(OllamaCase):
    def test_the_answer_is_that_of_chat_as_a_body_and_as_lines(self):
        server = self.serve()
        chat = server.post(CHAT, story(max_tokens=40, temperature=0))
        text = chat["choices"][0]["message"]["content"]

        answer = server.post("/api/chat", turn(stream=False))
        self.assertEqual(answer["model"], MODEL)
        self.assertEqual(answer["message"], {"role": "assistant", "content": text})
        self.assertEqual((answer["done"], answer["done_reason"]), (True, "length"))
        self.assertLessEqual(COUNTS, set(answer))
        self.assertEqual(answer["prompt_eval_count"], chat["usage"]["prompt_tokens"])
        self.assertEqual(answer["eval_count"], chat["usage"]["completion_tokens"])
        self.assertGreaterEqual(answer["total_duration"], answer["eval_duration"])
        datetime.datetime.fromisoformat(answer["created_at"].replace("Z", "+00:00"))

        parts = lines(server, "/api/chat", turn())
        self.assertEqual("".join(part["message"]["content"] for part in parts), text)
        self.assertEqual([part["done"] for part in parts], [False] * (len(parts) - 1) + [True])
        self.assertGreater(len(parts), 3)
        self.assertLessEqual(COUNTS, set(parts[-1]))

    def test_a_prompt_is_one_turn_and_its_context_continues_it(self):
        server = self.serve()
        options = {"num_predict": 20, "temperature": 0}
        first = server.post("/api/generate", {"model": MODEL, "prompt": QUESTION, "stream": False,
                                              "options": options})
        chat = server.post(CHAT, story(max_tokens=20, temperature=0, return_token_ids=True))
        self.assertEqual(first["response"], chat["choices"][0]["message"]["content"])
        self.assertEqual(first["context"], chat["prompt_token_ids"] + chat["choices"][0]["token_ids"])

        more = server.post("/api/generate", {"model": MODEL, "prompt": QUESTION, "stream": False,
                                             "context": first["context"], "options": options})
        self.assertGreater(more["prompt_eval_count"], len(first["context"]))
        self.assertEqual(more["context"][:len(first["context"])], first["context"])
        parts = lines(server, "/api/generate", {"model": MODEL, "prompt": QUESTION,
                                                "options": options})
        self.assertEqual("".join(part["response"] for part in parts), first["response"])
        self.assertEqual(parts[-1]["context"], first["context"])

    def test_a_raw_prompt_is_a_completion(self):
        server = self.serve()
        plain = server.post("/v1/completions", {"model": MODEL, "prompt": "Once upon a time",
                                                "max_tokens": 20, "temperature": 0})
        raw = server.post("/api/generate", {"model": MODEL, "prompt": "Once upon a time",
                                            "raw": True, "stream": False,
                                            "options": {"num_predict": 20, "temperature": 0}})
        self.assertEqual(raw["response"], plain["choices"][0]["text"])
        self.assertNotIn("context", raw)
        self.refused(server, 400, "/api/generate",
                     {"model": MODEL, "prompt": "def f():", "suffix": "return 1"}, "suffix")

    def test_formats_stops_logprobs_and_ignored_options(self):
        server = self.serve()
        if server.request("GET", "/version")[2]["llguidance"] is not None:
            schema = {"type": "object", "properties": {"age": {"type": "integer"}},
                      "required": ["age"], "additionalProperties": False}
            answer = server.post("/api/chat", turn(stream=False, format=schema,
                                                   options={"num_predict": 100}))
            self.assertEqual(set(json.loads(answer["message"]["content"])), {"age"})
            self.refused(server, 400, "/api/chat", turn(format={"type": "nothing"}), "format")
        text = server.post("/api/chat", turn(stream=False))["message"]["content"]
        word = text.split()[5]
        cut = server.post("/api/chat", turn(stream=False, options={
            "num_predict": 40, "temperature": 0, "stop": [word]}))
        self.assertEqual(cut["message"]["content"], text[:text.index(word)])
        self.assertEqual(cut["done_reason"], "stop")
        answer = server.post("/api/chat", turn(stream=False, logprobs=True, top_logprobs=2))
        self.assertEqual("".join(token["token"] for token in answer["logprobs"]), text)
        self.assertEqual(len(answer["logprobs"][0]["top_logprobs"]), 2)
        _, headers, _ = ask(server, "/api/chat", turn(
            stream=False, think=True, keep_alive="5m",
            options={"num_predict": 1, "num_gpu": 1, "num_ctx": 1 << 20}))
        self.assertEqual(set(headers["x-ignored-params"].replace(",", " ").split()),
                         {"options.num_ctx", "options.num_gpu", "think"})

    def test_names_with_and_without_the_tag_are_one_model(self):
        server = self.serve("--any-model-name")
        for name in (MODEL, MODEL + ":latest"):
            answer = server.post("/api/chat", turn(model=name, stream=False))
            self.assertEqual(answer["model"], name)
        server.stop()
        server = self.serve()
        self.refused(server, 404, "/api/chat", turn(model="llama3.2"), "llama3.2")

    def test_without_a_prompt_the_model_is_loaded(self):
        server = self.serve()
        chat = server.post("/api/chat", {"model": MODEL})
        self.assertEqual((chat["message"]["content"], chat["done_reason"]), ("", "load"))
        generate = server.post("/api/generate", {"model": MODEL, "keep_alive": -1})
        self.assertEqual((generate["response"], generate["done_reason"]), ("", "load"))

    def test_only_an_administrator_unloads_a_model(self):
        server = self.serve()
        unload = {"model": MODEL, "keep_alive": 0}
        self.refused(server, 403, "/api/generate", unload, "admin")
        self.assertEqual(len(server.request("GET", "/api/ps")[2]["models"]), 1)
        status, _, answer = ask(server, "/api/generate", unload, key=ADMIN_KEY)
        self.assertEqual((status, answer["done_reason"]), (200, "unload"))
        self.assertEqual(server.request("GET", "/api/ps")[2]["models"], [])
        self.refused(server, 404, "/api/chat", turn(), "unloaded")


class Faults(OllamaCase):
    def test_errors_have_ollamas_form_whoever_makes_them(self):
        server = self.serve("--api-key", "secret")
        self.refused(server, 401, "/api/chat", turn(), "key")
        self.refused(server, 401, "/api/tags", "", "key", method="GET")
        self.refused(server, 403, "/api/pull", {"model": "org/name"}, "admin", key="secret")
        key = {"key": "secret"}
        self.refused(server, 405, "/api/chat", "", "method", method="GET", **key)
        self.refused(server, 400, "/api/chat", "{", "the body", **key)
        self.refused(server, 400, "/api/chat", {}, "model", **key)
        self.refused(server, 400, "/api/chat", turn(options={"temperature": 9}),
                     "options.temperature", **key)
        self.refused(server, 400, "/api/chat", turn(options={"mirostat": 1}), "mirostat", **key)
        self.refused(server, 400, "/api/chat", turn(
            messages=[{"role": "user", "content": "a", "images": ["aGk="]}]), "text only", **key)
        self.refused(server, 400, "/api/generate", {"model": MODEL, "prompt": "dog " * 5000,
                                                    "raw": True}, "too long", **key)

    def test_routes_that_are_missing_name_the_alternative(self):
        server = self.serve()
        for method, path, words in (("POST", "/api/create", "/admin/models/load"),
                                    ("POST", "/api/copy", "/admin/aliases"),
                                    ("DELETE", "/api/delete", "/admin/models/unload"),
                                    ("POST", "/api/push", "directory"),
                                    ("POST", "/api/blobs/sha256:00", "/admin/models/load")):
            self.refused(server, 501, path, {"model": MODEL}, words, method=method)

    def test_a_stopping_server_ends_a_stream_with_a_line(self):
        server = self.serve("--drain-timeout", "0")
        connection, response = open_request(server, "/api/generate", {
            "model": MODEL, "prompt": QUESTION, "options": {"num_predict": -1, "stop": ["never"]}})
        first = response.readline()
        self.assertIs(json.loads(first)["done"], False)
        server.process.send_signal(signal.SIGTERM)
        rest = [json.loads(line) for line in response.read().splitlines()]
        connection.close()
        self.assertTrue(rest[-1].get("done") or "error" in rest[-1], rest[-1])

    def test_a_client_that_leaves_frees_its_place(self):
        server = self.serve()
        connection, response = open_request(server, "/api/chat", turn(options={"num_predict": -1}))
        response.readline()
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()

        def is_idle():
            return all(not slot["is_processing"] for slot in server.request("GET", "/slots")[2])
        self.wait_until("idle", is_idle)

    def test_pages_of_other_origins_are_refused_and_pages_of_programs_are_not(self):
        server = self.serve()
        status, headers, answer = ask(server, "/api/chat", turn(stream=False),
                                      origin="https://evil.example")
        self.assertEqual((status, set(answer)), (403, {"error"}))
        self.assertIsNone(headers["access-control-allow-origin"])
        for origin in ("app://obsidian.md", "tauri://localhost", "vscode-webview://0a1b"):
            status, headers, _ = ask(server, "/api/chat", turn(stream=False), origin=origin)
            self.assertEqual((status, headers["access-control-allow-origin"]), (200, origin))

    def test_a_program_needs_no_content_type_and_a_page_does(self):
        server = self.serve()
        form = "application/x-www-form-urlencoded"
        for path, body in (("/api/chat", turn(stream=False)), ("/api/show", {"model": MODEL}),
                           ("/api/generate", {"model": MODEL, "prompt": "Once", "stream": False,
                                              "options": {"num_predict": 4}}),
                           ("/api/embed", {"model": MODEL, "input": "A dog."})):
            for content_type in ("", form, "text/plain;charset=UTF-8"):
                self.assertEqual(ask(server, path, body, content_type=content_type)[0], 200)
            status, _, answer = ask(server, path, body, content_type=form,
                                    origin="http://localhost:3000")
            self.assertEqual(status, 415)
            self.assertIn("application/json", answer["error"])


class Lists(OllamaCase):
    def test_lists_have_what_clients_read(self):
        server = self.serve("--served-model-name", "stories:7b", "--served-model-name", "second")
        tags = server.request("GET", "/api/tags")[2]["models"]
        self.assertEqual([model["name"] for model in tags], ["stories:7b", "second:latest"])
        for model in tags:
            self.assertEqual(model["model"], model["name"])
            self.assertGreater(model["size"], 1000)
            self.assertRegex(model["digest"], "^[0-9a-f]{64}$")
            datetime.datetime.fromisoformat(model["modified_at"].replace("Z", "+00:00"))
            self.assertEqual(model["details"]["families"], [model["details"]["family"]])
            self.assertRegex(model["details"]["parameter_size"], r"^[0-9.]+[MB]$")
            self.assertTrue(model["details"]["quantization_level"])
        running = server.request("GET", "/api/ps")[2]["models"]
        self.assertEqual([model["name"] for model in running], ["stories:7b"])
        self.assertEqual(running[0]["size_vram"], 0)
        self.assertGreater(running[0]["expires_at"], "2100")
        # Clients of Ollama probe both.
        for path in ("/", "/api/version"):
            connection, response = open_request(server, path, "", method="HEAD")
            self.assertEqual((response.status, response.read()), (200, b""))
            connection.close()

    def test_details_of_a_model(self):
        server = self.serve()
        show = server.post("/api/show", {"model": MODEL + ":latest"})
        info = show["model_info"]
        family = info["general.architecture"]
        self.assertEqual(show["details"]["family"], family)
        self.assertEqual(info[family + ".context_length"],
                         server.request("GET", "/v1/models")[2]["data"][0]["max_model_len"])
        self.assertGreater(info["general.parameter_count"], 1000)
        self.assertIn("completion", show["capabilities"])
        self.assertIn("tools", show["capabilities"])
        self.assertIn("embedding", show["capabilities"])
        self.assertIn("messages", show["template"])
        self.assertEqual(server.post("/api/show", {"name": MODEL}), show)
        self.refused(server, 404, "/api/show", {"model": "nobody"}, "nobody")

    def test_embeddings_are_those_of_v1(self):
        server = self.serve()
        texts = ["A dog ran.", "A cat slept."]
        given = server.post("/v1/embeddings", {"model": MODEL, "input": texts})
        embed = server.post("/api/embed", {"model": MODEL, "input": texts})
        self.assertEqual(embed["embeddings"], [entry["embedding"] for entry in given["data"]])
        self.assertEqual(embed["prompt_eval_count"], given["usage"]["prompt_tokens"])
        one = server.post("/api/embeddings", {"model": MODEL, "prompt": texts[0]})
        self.assertEqual(one, {"embedding": embed["embeddings"][0]})
        self.assertEqual(server.post("/api/embed", {"model": MODEL, "input": ""})["embeddings"], [])
        long = {"model": MODEL, "input": "dog " * 5000}
        self.assertEqual(len(server.post("/api/embed", long)["embeddings"]), 1)
        self.refused(server, 400, "/api/embed", dict(long, truncate=False), "too long")


class Pulling(hub_test.HubCase):
    refused = OllamaCase.refused

    def start_server(self, hub, *arguments):
        return self.serve(*arguments, env={"HF_ENDPOINT": hub.url, "HF_HOME": str(self.home)})

    def test_a_model_is_pulled_with_progress_and_served(self):
        hub = self.hub()
        server = self.start_server(hub)
        self.refused(server, 401, "/api/pull", {"model": "org/name"}, "key")
        parts = lines(server, "/api/pull", {"model": "hf.co/org/name:latest"}, key=ADMIN_KEY)
        self.assertEqual(parts[-1], {"status": "success"})
        progress = [part for part in parts if "completed" in part]
        self.assertTrue(progress)
        self.assertEqual({part["digest"] for part in progress}, {progress[0]["digest"]})
        self.assertEqual(progress[-1]["completed"], progress[-1]["total"])
        for name in ("org/name", "org/name:latest", "hf.co/org/name"):
            answer = server.post("/api/chat", turn(model=name, stream=False))
            self.assertTrue(answer["message"]["content"])
        self.assertIn("org/name:latest",
                      [model["name"] for model in server.request("GET", "/api/tags")[2]["models"]])
        requests = len(hub.log)
        body = {"model": "org/name", "stream": False}
        self.assertEqual(ask(server, "/api/pull", body, key=ADMIN_KEY)[2], {"status": "success"})
        self.assertEqual(len(hub.log), requests)

    def test_a_pull_that_fails_says_why(self):
        hub = self.hub()
        server = self.start_server(hub)
        self.refused(server, 400, "/api/pull", {"model": "llama3.2"}, "ORG/NAME", key=ADMIN_KEY)
        self.refused(server, 400, "/api/pull", {"model": "org/name", "insecure": True}, "insecure",
                     key=ADMIN_KEY)
        status, _, answer = ask(server, "/api/pull", {"model": "org/other", "stream": False},
                                key=ADMIN_KEY)
        self.assertGreaterEqual(status, 400)
        self.assertIn("org/other", answer["error"])
        parts = lines(server, "/api/pull", {"model": "org/other"}, key=ADMIN_KEY)
        self.assertEqual(set(parts[-1]), {"error"})
        server.stop()
        broken = self.hub(dict(hub_test.stories(), **{"config.json": b"{}"}))
        server = self.start_server(broken)
        parts = lines(server, "/api/pull", {"model": "org/name"}, key=ADMIN_KEY)
        self.assertIn("cannot be served", parts[-1]["error"])

    def test_a_client_that_leaves_ends_its_download(self):
        hub = self.hub(hub_test.large(64))
        hub.bytes_per_s = 4 << 20
        server = self.start_server(hub)
        connection, response = open_request(server, "/api/pull", {"model": "org/name"},
                                            key=ADMIN_KEY)
        self.wait_until("bytes arrive", lambda: "completed" in json.loads(response.readline()))
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
        self.wait_until("end", lambda: "model_pull_ended" in server.log_path.read_text())
        self.assertEqual(server.stop(), 0)

    def test_a_stopping_server_ends_a_download(self):
        hub = self.hub(hub_test.large(64))
        hub.bytes_per_s = 4 << 20
        server = self.start_server(hub, "--drain-timeout", "1")
        connection, response = open_request(server, "/api/pull", {"model": "org/name"},
                                            key=ADMIN_KEY)
        self.wait_until("bytes arrive", lambda: "completed" in json.loads(response.readline()))
        server.process.send_signal(signal.SIGTERM)
        rest = response.read().splitlines()
        connection.close()
        self.assertIn("error", json.loads(rest[-1]))
        self.assertEqual(server.process.wait(PATIENCE_S), 0)


class LlamaServer(Case):
    def test_a_completion_is_that_of_v1(self):
        server = self.serve()
        plain = server.post("/v1/completions", {"model": MODEL, "prompt": "Once upon a time",
                                                "max_tokens": 20, "temperature": 0})
        body = {"prompt": "Once upon a time", "n_predict": 20, "temperature": 0}
        answer = server.post("/completion", dict(body, n_probs=2, return_tokens=True))
        self.assertEqual(answer["content"], plain["choices"][0]["text"])
        self.assertEqual((answer["stop"], answer["stop_type"]), (True, "limit"))
        self.assertEqual(answer["tokens_predicted"], 20)
        self.assertEqual(len(answer["tokens"]), 20)
        self.assertEqual(answer["tokens_evaluated"], plain["usage"]["prompt_tokens"])
        self.assertEqual(len(answer["completion_probabilities"]), 20)
        self.assertEqual(answer["generation_settings"]["n_predict"], 20)
        self.assertEqual(answer["timings"]["predicted_n"], 20)
        self.assertGreater(answer["timings"]["predicted_per_second"], 0)
        events, is_done = server.stream("/completion", body)
        self.assertFalse(is_done)
        self.assertEqual("".join(event["content"] for event in events), answer["content"])
        self.assertEqual([event["stop"] for event in events], [False] * (len(events) - 1) + [True])
        tokens = [token for event in events for token in event["tokens"]]
        self.assertEqual(tokens, answer["tokens"])

    def test_props_slots_template_and_pieces(self):
        server = self.serve("--max-seqs", "3")
        props = server.request("GET", "/props")[2]
        self.assertEqual(props["total_slots"], 3)
        self.assertEqual(props["model_path"], MODEL)
        self.assertIn("messages", props["chat_template"])
        self.assertIn("temperature", props["default_generation_settings"]["params"])
        slots = server.request("GET", "/slots")[2]
        self.assertEqual([slot["id"] for slot in slots], [0, 1, 2])
        messages = [{"role": "user", "content": QUESTION}]
        prompt = server.post("/apply-template", {"messages": messages})["prompt"]
        self.assertEqual(prompt, server.post("/v1/render", {"messages": messages})["text"])
        pieces = server.post("/tokenize", {"content": "Once upon", "with_pieces": True,
                                           "add_special": False})["tokens"]
        self.assertEqual("".join(piece["piece"] for piece in pieces).strip(), "Once upon")

    def test_what_it_lacks_is_refused_in_words(self):
        server = self.serve()
        for body, words in (({"grammar": "root ::= \"a\""}, "Lark"), ({"mirostat": 2}, "mirostat"),
                            ({"prompt": ["a", "b"]}, "/v1/completions")):
            status, _, answer = server.request("POST", "/completion", dict({"prompt": "a"}, **body))
            self.assertEqual(status, 400)
            self.assertIn(words, answer["error"]["message"])
        status, _, answer = server.request("POST", "/infill",
                                           {"input_prefix": "a", "input_suffix": "b"})
        self.assertEqual((status, answer["error"]["param"]), (400, "suffix"))


class Plugins(OllamaCase):
    """The requests of Obsidian's plugins: those that use fetch name their origin, the others nothing."""
    ORIGIN = "app://obsidian.md"

    def preflight(self, server, path, wanted):
        connection = http.client.HTTPConnection(*server.address, timeout=PATIENCE_S)
        connection.request("OPTIONS", path, headers={
            "Origin": self.ORIGIN, "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": ",".join(wanted)})
        response = connection.getresponse()
        response.read()
        connection.close()
        self.assertEqual(response.status, 204)
        self.assertEqual(response.headers["access-control-allow-origin"], self.ORIGIN)
        self.assertLessEqual(set(wanted),
                             set(response.headers["access-control-allow-headers"].split(", ")))

    def test_copilot_and_local_gpt_ask_with_fetch(self):
        server = self.serve()
        tags = json.loads(self.text_of(server, "GET", "/api/tags"))
        self.assertEqual([model["name"] for model in tags["models"]], [f"{MODEL}:latest"])
        for path in ("/api/chat", "/api/show", "/api/embed"):
            self.preflight(server, path, ["authorization", "content-type", "user-agent"])
        shown = json.loads(self.text_of(server, "POST", "/api/show", {"model": f"{MODEL}:latest"}))
        lengths = [value for key, value in shown["model_info"].items()
                   if key.endswith(".context_length")]
        self.assertEqual(len(lengths), 1)
        text = self.text_of(server, "POST", "/api/chat", turn(
            stream=True, options={"temperature": 0.1, "num_predict": 20, "num_ctx": lengths[0]}))
        answers = [json.loads(line) for line in text.splitlines()]
        self.assertEqual([answer["done"] for answer in answers].count(True), 1)
        self.assertEqual(answers[-1]["done_reason"], "length")
        embedded = json.loads(self.text_of(server, "POST", "/api/embed",
                                           {"model": f"{MODEL}:latest", "input": ["A note."]}))
        self.assertEqual(len(embedded["embeddings"]), 1)

    def text_of(self, server, method, path, body=""):
        connection, response = open_request(server, path, body, method=method, origin=self.ORIGIN)
        text = response.read().decode()
        connection.close()
        self.assertEqual((response.status, response.headers["access-control-allow-origin"]),
                         (200, self.ORIGIN), text)
        return text

    def test_smart_connections_asks_without_a_content_type(self):
        server = self.serve()
        status, _, shown = ask(server, "/api/show", {"model": f"{MODEL}:latest"}, content_type="")
        self.assertEqual(status, 200)
        self.assertTrue(any(".context_length" in key for key in shown["model_info"]))
        answers = lines(server, "/api/chat", turn(stream=True), content_type="")
        self.assertEqual([line for line in answers if "done_reason" in line], answers[-1:])


class Benchmarks(Case):
    """The requests of guidellm's HTTP backend, in its order."""

    def test_the_requests_of_guidellm(self):
        server = self.serve()
        self.assertEqual(server.request("GET", "/health")[0], 200)
        model = server.request("GET", "/v1/models")[2]["data"][0]["id"]
        limits = {"stream_options": {"include_usage": True, "continuous_usage_stats": True},
                  "stop": None, "ignore_eos": True}
        for path, body in (
                ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 12}),
                (CHAT, {"messages": [{"role": "user", "content": [
                    {"type": "text", "text": QUESTION}]}], "max_completion_tokens": 12})):
            chunks, is_done = server.stream(path, dict(body, model=model, **limits))
            self.assertTrue(is_done)
            self.assertTrue(all(chunk["usage"] for chunk in chunks))
            self.assertEqual(chunks[-1]["choices"], [])
            self.assertEqual(chunks[-1]["usage"]["completion_tokens"], 12)


if __name__ == "__main__":
    harness.main()
