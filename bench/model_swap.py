#!/usr/bin/env python3
"""Measures how loading, serving, unloading and reloading a large model affects a server's other clients.

    bench/model_swap.py BINARY MODEL_DIR [--dtype int8 …] [--memory 24G] [--chats 8] [--tokens 32]

For each dtype a fresh server with its embedded model loads MODEL_DIR, answers concurrent chats on it and
unloads it, twice. The first load packs the weights, the second finds the packed file. Meanwhile clients
keep asking the embedded model. Prints one line of JSON per load and per dtype; exits 1 if any request
failed. Standard library only; packed files go below --work and are removed.
"""

import argparse
import http.client
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

KEY = "model-swap"
GIB = 1 << 30


def memory_of(pid):
    """Returns RSS, its anonymous and file-backed parts, PSS, and peak RSS since the last reset, in GiB."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()

    def kib(text, field):
        return int(re.search(rf"^{field}:\s+(\d+) kB", text, re.M)[1])

    figures = {"rss": kib(status, "VmRSS"), "anonymous": kib(status, "RssAnon"),
               "mapped": kib(status, "RssFile"), "pss": kib(rollup, "Pss"),
               "peak": kib(status, "VmHWM")}
    return {name: round(value * 1024 / GIB, 3) for name, value in figures.items()}


def reset_peak(pid):
    pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")


class Server:
    def __init__(self, arguments, work, dtype):
        self.log = open(work / f"{dtype}.log", "wb")
        self.process = subprocess.Popen(
            [arguments.binary, "serve", "--port", "0", "--memory", arguments.memory,
             "--model-root", str(pathlib.Path(arguments.model).resolve().parent),
             "--data-dir", str(work / f"data-{dtype}")],
            stdout=subprocess.PIPE, stderr=self.log, text=True,
            env=dict(os.environ, TANDEM_ADMIN_KEY=KEY, XDG_CACHE_HOME=str(work / "cache")))
        line = self.process.stdout.readline()
        match = re.search(r"http://([\d.]+):(\d+)", line)
        if not match:
            sys.exit(f"the server did not start: {line}")
        self.address = (match[1], int(match[2]))

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection(*self.address, timeout=3600)
        connection.request(method, path, None if body is None else json.dumps(body),
                           {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        return response.status, answer

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()


def chat(model, n_tokens, content="Tell me a story about a dog."):
    return {"model": model, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True,
            "messages": [{"role": "user", "content": content}]}


def measure(arguments, work, dtype):
    server = Server(arguments, work, dtype)
    pid = server.process.pid
    name = pathlib.Path(arguments.model).resolve().name
    failures, n_answers, stop = [], [0], threading.Event()

    def neighbour():
        while not stop.is_set():
            status, answer = server.ask("POST", "/v1/chat/completions", chat("tandem-stories", 16))
            n_answers[0] += 1
            if status != 200:
                failures.append(answer)

    def one_chat(index, texts):
        status, answer = server.ask("POST", "/v1/chat/completions",
                                    chat(name, arguments.tokens, f"Story number {index}, please."))
        if status != 200:
            failures.append(answer)
        else:
            texts[index] = answer["choices"][0]["message"]["content"]

    print(json.dumps({"dtype": dtype, "what": "before", **memory_of(pid)}), flush=True)
    neighbours = [threading.Thread(target=neighbour) for _ in range(2)]
    for thread in neighbours:
        thread.start()
    first = None
    for what in ("load, packing", "load, packed before"):
        reset_peak(pid)
        begin = time.monotonic()
        status, job = server.ask("POST", "/admin/models/load", {
            "path": name, "dtype": dtype, "max_model_len": arguments.max_model_len, "wait": True})
        seconds = time.monotonic() - begin
        if status != 200 or job["status"] != "succeeded":
            failures.append(job)
            break
        claim = [m for m in server.ask("GET", "/admin/models")[1]["data"] if m["id"] == name][0]
        after_load = memory_of(pid)
        texts = {}
        begin = time.monotonic()
        chats = [threading.Thread(target=one_chat, args=(i, texts))
                 for i in range(arguments.chats)]
        for thread in chats:
            thread.start()
        for thread in chats:
            thread.join()
        serving = time.monotonic() - begin
        if first is None:
            first = texts
        elif texts != first:
            failures.append("the reloaded model answers otherwise")
        print(json.dumps({
            "dtype": dtype, "what": what, "load_seconds": round(seconds, 1),
            "after_load": after_load, "after_chats": memory_of(pid),
            "claimed": {kind: round(claim["memory"][kind] / GIB, 3)
                        for kind in ("weights", "kv", "scratch")},
            "chats": len(texts), "chat_seconds": round(serving, 1)}), flush=True)
        status, job = server.ask("POST", "/admin/models/unload", {"id": name, "wait": True})
        if status != 200 or job["status"] != "succeeded":
            failures.append(job)
        print(json.dumps({"dtype": dtype, "what": "unloaded", **memory_of(pid)}), flush=True)
    stop.set()
    for thread in neighbours:
        thread.join()
    server.stop()
    print(json.dumps({"dtype": dtype, "what": "end", "neighbour_answers": n_answers[0],
                      "failures": failures[:3]}), flush=True)
    return not failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--dtype", nargs="+", default=["bf16", "int8", "int4"])
    parser.add_argument("--memory", default="24G")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--chats", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--work", help="where packed files go (default: a temporary directory)")
    arguments = parser.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="model_swap_", dir=arguments.work))
    is_right = True
    try:
        for dtype in arguments.dtype:
            is_right = measure(arguments, work, dtype) and is_right
            shutil.rmtree(work / "cache", ignore_errors=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
