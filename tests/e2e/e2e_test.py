#!/usr/bin/env python3
"""Models, streams and jobs of a running program.

`e2e_test.py BINARY [unittest arguments]`.
"""

import http.client
import json
import math
import re
import socket
import struct
import subprocess
import threading

import harness
from harness import GOLDEN, PATIENCE_S, ROOT, Case, story


def read_safetensors(path):
    """name -> (shape, floats); f32 only."""
    raw = path.read_bytes()
    (size,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8:8 + size])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        begin, end = entry["data_offsets"]
        tensors[name] = (entry["shape"],
                         struct.unpack_from(f"<{(end - begin) // 4}f", raw, 8 + size + begin))
    return tensors


class Goldens(Case):
    """Reference numbers through --dtype f32 and /v1/completions with token ids."""

    def check(self, name):
        golden = json.loads((GOLDEN / name / "golden" / "golden.json").read_text())
        forward = read_safetensors(GOLDEN / name / "golden" / "forward.safetensors")
        server = self.serve("--model", str(GOLDEN / name), "--dtype", "f32")
        for index, sequence in enumerate(golden["sequences"]):
            ids = sequence["input_ids"]
            common = {"model": name, "prompt": ids, "temperature": 0,
                      "return_tokens_as_token_ids": True, "ignore_eos": True}

            scored = server.post("/v1/completions",
                                 dict(common, max_tokens=0, echo=True, logprobs=1))
            logprobs = scored["choices"][0]["logprobs"]
            self.assertEqual(logprobs["tokens"], [f"token_id:{i}" for i in ids])
            self.assertIsNone(logprobs["token_logprobs"][0])
            (_, vocab), logits = forward[f"logits.{index}"]
            for position in range(1, len(ids)):
                row = logits[(position - 1) * vocab:position * vocab]
                top = max(row)
                lse = top + math.log(sum(math.exp(x - top) for x in row))
                self.assertAlmostEqual(logprobs["token_logprobs"][position],
                                       row[ids[position]] - lse, delta=1e-3)

            greedy = sequence["greedy_ids"]
            answer = server.post("/v1/completions",
                                 dict(common, max_tokens=len(greedy), logprobs=1))
            logprobs = answer["choices"][0]["logprobs"]
            self.assertEqual(logprobs["tokens"], [f"token_id:{i}" for i in greedy])
            for got, want in zip(logprobs["token_logprobs"], sequence["greedy_logprobs"]):
                self.assertAlmostEqual(got, want, delta=1e-3)
        self.assertEqual(server.stop(), 0)

    def test_llama2_two_shards(self):
        self.check("llama2-tiny-two-shards")

    def test_llama3_rope_scaling(self):
        self.check("llama3-tiny-rope-scaling")

    def test_minigpt(self):
        self.check("minigpt-tiny")

    def test_a_model_without_tokenizer_says_so_when_text_is_asked_for(self):
        server = self.serve("--model", str(GOLDEN / "minigpt-tiny"))

        status, _, answer = server.request(
            "POST", "/v1/completions", {"model": "minigpt-tiny", "prompt": "text"})

        self.assertEqual(status, 400)
        self.assertIn("tokenizer", answer["error"]["message"])


class Adapters(Case):
    """A base and its adapter in one server, each with its name."""

    MODEL = GOLDEN / "gemma2-tiny"

    def golden(self, *parts):
        return json.loads(self.MODEL.joinpath(*parts, "golden", "golden.json").read_text())

    def greedy(self, server, model, sequence):
        answer = server.post("/v1/completions", {
            "model": model, "prompt": sequence["input_ids"], "temperature": 0, "ignore_eos": True,
            "max_tokens": len(sequence["greedy_ids"]), "logprobs": 1,
            "return_tokens_as_token_ids": True})
        self.assertEqual(answer["model"], model)
        return ([int(t.removeprefix("token_id:")) for t in
                 answer["choices"][0]["logprobs"]["tokens"]], answer["system_fingerprint"])

    def test_both_answer_at_once_each_as_itself(self):
        server = self.serve("--model", str(self.MODEL), "--dtype", "f32",
                            "--adapter", f"tuned={self.MODEL / 'lora'}",
                            "--adapter", f"again={self.MODEL / 'lora'}")
        listed = {m["id"]: m for m in server.request("GET", "/v1/models")[2]["data"]}
        self.assertEqual(set(listed), {"gemma2-tiny", "tuned", "again"})
        self.assertIsNone(listed["gemma2-tiny"]["parent"])
        for name in ("tuned", "again"):
            self.assertEqual(listed[name]["parent"], "gemma2-tiny")
            self.assertEqual(listed[name]["root"], "gemma2-tiny")
        admin = server.request("GET", "/admin/models", admin=True)[2]["data"]
        self.assertEqual([(m["id"], m["adapters"]) for m in admin],
                         [("gemma2-tiny", ["tuned", "again"])])

        want = {"gemma2-tiny": self.golden()["sequences"],
                "tuned": self.golden("lora")["sequences"],
                "again": self.golden("lora")["sequences"]}
        got = {}

        def ask(model, index):
            got[model, index] = self.greedy(server, model, want[model][index])

        for _ in range(2):  # the second time from the prefix cache
            threads = [threading.Thread(target=ask, args=(model, index))
                       for model in want for index in range(len(want[model]))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for (model, index), (ids, _) in got.items():
                self.assertEqual(ids, want[model][index]["greedy_ids"], (model, index))
        # Where the model's name is optional, the default is the base.
        refused = server.request("POST", "/detokenize", {"tokens": [1]})[2]
        self.assertIn("'gemma2-tiny' has no tokenizer", refused["error"]["message"])
        prints = {model: got[model, 0][1] for model in want}
        self.assertEqual(prints["tuned"], prints["again"])
        self.assertNotEqual(prints["tuned"], prints["gemma2-tiny"])
        # One engine serves all three, and is reported once.
        metrics = server.request("GET", "/metrics")[2]
        self.assertNotIn('kv_cache_usage_perc{model_name="tuned"', metrics)
        self.assertIn('lora_requests_info{max_lora="64",model_name="gemma2-tiny",'
                      'running_lora_adapters="",waiting_lora_adapters=""}', metrics)
        self.assertEqual(server.stop(), 0)

    def test_what_does_not_fit_ends_the_start_with_the_reason(self):
        other = GOLDEN / "minigpt-tiny" / "lora"
        for arguments, part in (
                (("--adapter", f"tuned={other}"), "belongs to no linear layer"),
                (("--adapter", f"tuned={self.path / 'nowhere'}"), "nowhere"),
                (("--adapter", "tuned"), "NAME=DIR"),
                (("--adapter", f"gemma2-tiny={self.MODEL / 'lora'}"),
                 "'gemma2-tiny' names two models")):
            result = subprocess.run(
                [harness.BINARY, "serve", "--port", "0", "--data-dir", str(self.path / "data"),
                 "--model", str(self.MODEL), *arguments],
                capture_output=True, text=True, timeout=PATIENCE_S)
            self.assertNotEqual(result.returncode, 0, arguments)
            self.assertIn(part, result.stderr, arguments)


class EmbeddedModel(Case):
    def test_weights_in_integers_say_nearly_the_same(self):
        text = ("Once upon a time, there was a little girl named Lily. She loved to play with her "
                "toys. One day, she found a big box.")
        scores = {}
        for dtype in ("bf16", "int8", "int4"):
            server = self.serve("--dtype", dtype)
            answer = server.post("/v1/completions",
                                 {"model": "tandem-stories", "prompt": text, "max_tokens": 0,
                                  "echo": True, "logprobs": 1})
            scores[dtype] = answer["choices"][0]["logprobs"]["token_logprobs"][1:]
            self.assertEqual(server.stop(), 0)
        for dtype, tolerance in (("int8", 0.1), ("int4", 0.6)):  # nats
            errors = [abs(a - b) for a, b in zip(scores[dtype], scores["bf16"])]
            self.assertLess(sum(errors) / len(errors), tolerance)
            self.assertGreater(max(errors), 1e-4)  # the weights are really rounded

    def test_a_request_becomes_a_line_of_its_words_and_names(self):
        server = self.serve()
        for request, line in (
                ("Tell me a story about a brave dog.", "Words: brave, dog\n"),
                ("A story about a girl named lily and Tom's red ball!", "Words: girl, Lily, Tom, red\n"),
                ("TELL ME ABOUT A DOG", "Words: dog\n"),
                ("Snow falls. Lily and Ben play with Lily's cat.", "Words: snow, falls, lily, Ben\n"),
                ("Tell me a story!", "")):
            rendered = server.post("/v1/render",
                                   {"messages": [{"role": "user", "content": request}]})
            self.assertEqual(rendered["text"], "<|endoftext|>" + line)

    def test_streamed_and_plain_answers_are_the_same_text(self):
        server = self.serve()
        for sampling in ({"temperature": 0}, {"temperature": 0.9, "seed": 11}):
            plain = server.post("/v1/chat/completions", story(**sampling))
            chunks, done = server.stream(
                "/v1/chat/completions",
                story(stream_options={"include_usage": True}, **sampling))

            self.assertTrue(done)
            text = "".join(c["choices"][0]["delta"].get("content") or ""
                           for c in chunks if c["choices"])
            self.assertEqual(text, plain["choices"][0]["message"]["content"])
            self.assertGreater(len(text), 40)
            usage = chunks[-1]["usage"]
            self.assertEqual(usage["completion_tokens"], plain["usage"]["completion_tokens"])
            self.assertEqual(usage["prompt_tokens"], plain["usage"]["prompt_tokens"])
        self.assertEqual(server.stop(), 0)

    def test_half_of_many_clients_vanish_and_nobody_else_notices(self):
        server = self.serve()
        body = json.dumps(story(stream=True, max_tokens=200, ignore_eos=True, temperature=0))
        request = ("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
                   f"\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}").encode()
        want = server.post("/v1/chat/completions",
                           story(max_tokens=200, ignore_eos=True, temperature=0))
        want = want["choices"][0]["message"]["content"]
        texts = []

        def client(stays):
            with socket.create_connection(server.address, PATIENCE_S) as connection:
                connection.sendall(request)
                got = connection.recv(4096)
                if not stays:
                    return
                while piece := connection.recv(65536):
                    got += piece
            body_text = got.split(b"\r\n\r\n", 1)[1]
            # Chunk sizes are on lines of their own between the events.
            events = re.findall(rb"data: (\{.*\})", body_text)
            texts.append("".join(json.loads(e)["choices"][0]["delta"].get("content") or ""
                                 for e in events))

        threads = [threading.Thread(target=client, args=(i % 2 == 0,)) for i in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        self.assertEqual(len(texts), 100)
        self.assertEqual(set(texts), {want})
        self.wait_until("everything returned", lambda: self.drained(server))
        self.assertEqual(server.stop(), 0)

    def drained(self, server):
        model = server.request("GET", "/admin/models", admin=True)[2]["data"][0]
        return (model["running"], model["waiting"], model["kv_blocks_used"]) == (0, 0, 0)

    def test_a_second_start_maps_the_packed_weights_of_the_first(self):
        def packed_files():
            return {file: (file.stat().st_ino, file.stat().st_mtime_ns)
                    for file in self.path.glob("cache/tandem/packed/*/weights")}

        self.assertEqual(self.serve().stop(), 0)
        first = packed_files()
        self.assertEqual(len(first), 1)
        server = self.serve()
        self.assertEqual(packed_files(), first)
        self.assertEqual(server.request("GET", "/ready")[0], 200)
        self.assertEqual(server.stop(), 0)


TEXT = "\n<|endoftext|>\n".join(
    f"Once there was a {animal} who liked to {verb}. Every day the {animal} would {verb} a little."
    for animal in ("dog", "cat", "bird", "frog") for verb in ("run", "sing", "sleep"))


class Jobs(Case):
    """Training during serving, over HTTP."""

    def setUp(self):
        super().setUp()
        self.root = self.path / "root"
        self.root.mkdir()
        (self.root / "text.txt").write_text(TEXT)
        model = self.root / "base"
        model.mkdir()
        for file in (ROOT / "config" / "models" / "tandem-stories").iterdir():
            if file.suffix in (".json", ".safetensors"):
                (model / file.name).write_bytes(file.read_bytes())

    def start(self):
        return self.serve("--model-root", str(self.root))

    def submit(self, server, **train):
        status, headers, job = server.request("POST", "/admin/jobs", {"type": "train", "spec": {
            "run_name": "tuned", "model": {"load_parameters_path": "base"},
            "data": {"train": "text.txt", "max_target_length": 64, "add_bos": True},
            "train": dict({"steps": 4, "per_device_batch_size": 2, "learning_rate": 1e-3}, **train),
            "checkpoint": {"period": 2},
        }}, admin=True)
        self.assertEqual(status, 202, job)
        self.assertEqual(headers["Location"], f"/admin/jobs/{job['id']}")
        return job["id"]

    def job(self, server, job_id):
        return server.request("GET", f"/admin/jobs/{job_id}", admin=True)[2]

    def wait_for_end(self, server, job_id):
        ended = ("succeeded", "failed", "cancelled")
        self.wait_until("job ended", lambda: self.job(server, job_id)["status"] in ended)
        return self.job(server, job_id)

    def steps_done(self, server, job_id):
        log = server.request("GET", f"/admin/jobs/{job_id}/log", admin=True)[2]
        return log.count("completed step:")

    def test_a_finished_model_answers_in_the_same_server(self):
        server = self.start()
        job_id = self.submit(server)
        # The server answers while the job trains.
        server.post("/v1/chat/completions", story(temperature=0))

        job = self.wait_for_end(server, job_id)

        self.assertEqual(job["status"], "succeeded", job)
        self.assertEqual(job["progress"], 1)
        self.assertEqual(self.steps_done(server, job_id), 4)
        ids = [m["id"] for m in server.request("GET", "/v1/models")[2]["data"]]
        self.assertIn("tuned", ids)
        answer = server.post("/v1/chat/completions", story(model="tuned", temperature=0))
        self.assertEqual(answer["model"], "tuned")
        self.assertGreater(len(answer["choices"][0]["message"]["content"]), 0)
        base = server.post("/v1/chat/completions", story(temperature=0))
        self.assertNotEqual(answer["choices"][0]["message"]["content"],
                            base["choices"][0]["message"]["content"])
        self.assertEqual(server.stop(), 0)

    def test_the_log_can_be_followed_to_its_end(self):
        server = self.start()
        job_id = self.submit(server)

        _, headers, text = server.request("GET", f"/admin/jobs/{job_id}/log?follow=true", admin=True)

        self.assertIn("text/event-stream", headers["Content-Type"])
        self.assertEqual(text.count("completed step:"), 4)
        self.assertRegex(text.rstrip(), r'event: end\ndata: \{"status": ?"succeeded"\}$')

    def test_cancel_ends_the_job_and_nothing_is_served(self):
        server = self.start()
        job_id = self.submit(server, steps=100000)
        self.wait_until("a step", lambda: self.steps_done(server, job_id) > 0)

        self.assertEqual(server.request("POST", f"/admin/jobs/{job_id}/cancel", {}, True)[0], 200)

        self.assertEqual(self.wait_for_end(server, job_id)["status"], "cancelled")
        status, _, again = server.request("POST", f"/admin/jobs/{job_id}/cancel", {}, True)
        self.assertEqual((status, again["error"]["code"]), (400, "job_not_active"))
        ids = [m["id"] for m in server.request("GET", "/v1/models")[2]["data"]]
        self.assertEqual(ids, ["tandem-stories"])

    def test_a_killed_server_finds_its_job_again(self):
        server = self.start()
        job_id = self.submit(server, steps=40)
        self.wait_until("a step", lambda: self.steps_done(server, job_id) > 0)
        server.kill()

        server = self.start()
        job = self.wait_for_end(server, job_id)

        self.assertEqual(job["status"], "succeeded", job)
        answer = server.post("/v1/chat/completions", story(model="tuned", temperature=0))
        self.assertEqual(answer["model"], "tuned")
        self.assertEqual(server.stop(), 0)

    def test_the_examples_of_the_readme_and_of_the_manual_work(self):
        pages = [ROOT / "README.md", ROOT / "config" / "manual" / "train.md"]
        bodies = [json.loads(body) for page in pages
                  for body in re.findall(r"-d '(\{.*?\})'", page.read_text(), re.S)]
        chat = next(b for b in bodies if "messages" in b)
        job = next(b for b in bodies if b.get("type") == "train")
        model = self.root / job["spec"]["model"]["load_parameters_path"]
        model.parent.mkdir(parents=True)
        (self.root / "base").rename(model)
        (self.root / job["spec"]["data"]["train"]).write_text(TEXT)
        server = self.start()

        chunks, done = server.stream("/v1/chat/completions", chat)
        self.assertTrue(done)
        self.assertGreater(len(chunks), 20)

        job["spec"]["train"]["steps"] = 2
        status, _, submitted = server.request("POST", "/admin/jobs", job, admin=True)
        self.assertEqual(status, 202, submitted)
        self.assertEqual(self.wait_for_end(server, submitted["id"])["status"], "succeeded")
        name = job["spec"]["run_name"]
        self.assertEqual(server.post("/v1/chat/completions", story(model=name))["model"], name)

    def test_wrong_specs_are_refused_with_the_field(self):
        server = self.start()
        good = {"train": {"steps": 1}, "model": {"load_parameters_path": "base"}}
        for spec, needle in ((dict(good, data={"train": "../x"}), "data.train"),
                             (dict(good, data={"train": "absent.txt"}), "data.train"),
                             ({"learning_rat": 1}, "learning_rate")):
            status, _, answer = server.request("POST", "/admin/jobs",
                                               {"type": "train", "spec": spec}, admin=True)
            self.assertIn(status, (400, 404))
            self.assertIn(needle, json.dumps(answer["error"]))
        self.assertEqual(server.request("POST", "/admin/jobs", {"type": "train", "spec": {}})[0], 401)


if __name__ == "__main__":
    harness.main()
