#!/usr/bin/env python3
"""Measures how a fine-tuning job and the server beside which it runs affect each other.

    bench/train_while_serving.py BINARY [--model DIR] [--pairs 5] [--seconds 30] [--rate 0.5] [--full]

One server gets an open-loop load in windows (`tandem bench http`). A job on its model runs or is paused in
alternating windows; both windows of a pair have the same arrivals and lengths. Prints for each pair and as
medians the ratio of the running to the paused job, for the time between tokens and to the first token.
Also prints the job's CPU time over the time that serving, the load generator and all else left idle. At
the end it prints the time from `succeeded` to the first token of the new model, in a stream requested at
once. Needs a machine that does nothing else. Exits 1 if a request failed. Standard library only.
"""

import argparse
import http.client
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

KEY = "train-while-serving"
TICKS = os.sysconf("SC_CLK_TCK")
CORES = os.cpu_count()


def cpu_of(pid):
    """Returns user and system seconds of a process, without its reaped children."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def busy_cpu():
    """Returns the seconds during which cores were busy, summed over all cores."""
    fields = [int(x) for x in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS


def memory_of(pid):
    """Returns resident memory and its private and shared parts, in MiB."""
    rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    kib = {m[1]: int(m[2]) for m in re.finditer(r"^(\w+):\s+(\d+) kB", rollup, re.M)}
    return {"resident": kib["Rss"] >> 10,
            "private": (kib["Private_Clean"] + kib["Private_Dirty"]) >> 10,
            "shared": (kib["Shared_Clean"] + kib["Shared_Dirty"]) >> 10}


class Server:
    def __init__(self, options, work):
        self.log = open(work / "server.log", "wb")
        arguments = [options.binary, "serve", "--port", "0", "--data-dir", str(work / "data")]
        if options.model:
            arguments += ["--model", "base=" + options.model]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=self.log, text=True,
                                        env=dict(os.environ, TANDEM_ADMIN_KEY=KEY,
                                                 XDG_CACHE_HOME=str(work / "cache")))
        line = self.process.stdout.readline()
        match = re.search(r"http://([\d.]+):(\d+)", line)
        if not match:
            sys.exit(f"the server did not start: {line}")
        self.address = (match[1], int(match[2]))
        self.url = f"http://{match[1]}:{match[2]}"
        self.model = self.ask("GET", "/v1/models")["data"][0]["id"]

    def send(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection(*self.address, timeout=3600)
        if isinstance(body, dict):
            body, headers = json.dumps(body), {"Content-Type": "application/json"}
        connection.request(method, path, body, dict(headers or {}, Authorization=f"Bearer {KEY}"))
        return connection.getresponse()

    def ask(self, *request):
        response = self.send(*request)
        answer = json.loads(response.read())
        if response.status != 200:
            sys.exit(f"{request[:2]}: {response.status} {answer}")
        return answer

    def upload(self, rows):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        body = ('--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n--b\r\n'
                'Content-Disposition: form-data; name="file"; filename="rows.jsonl"\r\n\r\n'
                + text + "\r\n--b--\r\n").encode()
        return self.ask("POST", "/v1/files", body, {"Content-Type": "multipart/form-data; boundary=b"})["id"]

    def job(self, job_id):
        return self.ask("GET", f"/v1/fine_tuning/jobs/{job_id}")

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()


def trainer_of(server):
    """Returns the pid of the training child, or None."""
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            words = (path.parent / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if int(fields[1]) == server.process.pid and b"train" in words:
            return int(path.parent.name)
    return None


def steps_of(server, job_id):
    events = server.ask("GET", f"/v1/fine_tuning/jobs/{job_id}/events?limit=20")["data"]
    return max((e["data"]["step"] for e in events if e["type"] == "metrics"), default=0)


def wait(what, condition, patience_s=600):
    end = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"{what}: not within {patience_s} s")
        time.sleep(0.05)


def load(options, server, work, seed, token_ids):
    """Runs one window of load and returns its report. The seed gives arrivals, `token_ids` the prompts."""
    file = work / "load.json"
    done = subprocess.run(
        [options.binary, "bench", "http", "--url", server.url, "--model", server.model, "--endpoint",
         "completions", "--rate", str(options.rate), "--duration", str(options.seconds), "--prompt-tokens",
         str(options.prompt_tokens), "--output-tokens", str(options.output_tokens), "--seed", str(seed), "--token-ids", token_ids,
         "--server-pid", str(server.process.pid), "--json", str(file)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if not file.exists():
        sys.exit(done.stdout)
    run = json.loads(file.read_text())["runs"][0]
    file.unlink()
    return run


def window(options, server, work, seed, job_id=None):
    trainer = trainer_of(server) if job_id else None
    before = (time.monotonic(), busy_cpu(), cpu_of(trainer) if trainer else 0,
              steps_of(server, job_id) if job_id else 0)
    # The windows of a pair have different prompts, or the second would find the first's cached.
    run = load(options, server, work, seed, "300-1000" if job_id else "1001-1700")
    wall, busy = time.monotonic() - before[0], busy_cpu() - before[1]
    out = {"itl_p50": run["gap_ms"]["p50"], "itl_p95": run["gap_ms"]["p95"],
           "itl_p99": run["gap_ms"]["p99"], "first_p50": run["first_token_ms"]["p50"],
           "tokens": run["output_tokens"], "failed": run["failed"], "server_cores": run["server_cpu_s"] / wall}
    if trainer:
        used = cpu_of(trainer) - before[2]
        # Core time left by everything but the job.
        left = CORES * wall - (busy - used)
        out |= {"job_cores": used / wall, "job_share": used / left,
                "steps": steps_of(server, job_id) - before[3]}
    return out


def create(server, rows, suffix, **parameters):
    return server.ask("POST", "/v1/fine_tuning/jobs", {
        "model": server.model, "training_file": server.upload(rows), "suffix": suffix, "seed": 1,
        "method": {"type": "supervised", "supervised": {"hyperparameters": parameters}}})["id"]


def ends(server, job_id):
    return server.job(job_id)["status"] in ("succeeded", "failed", "cancelled")


def first_token_after(server, rows):
    """Returns the seconds from `succeeded` of a short job to the first token of its model."""
    job_id = create(server, rows, "short", max_steps=2, batch_size=1, seq_len=64)
    wait("the short job", lambda: ends(server, job_id))
    seen = time.monotonic()
    job = server.job(job_id)
    if job["status"] != "succeeded":
        sys.exit(f"the short job: {job['error']}")
    response = server.send("POST", "/v1/chat/completions", {
        "model": job["fine_tuned_model"], "max_tokens": 4, "stream": True,
        "messages": [{"role": "user", "content": "Hello"}]})
    for line in response:
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
            return time.monotonic() - seen
    sys.exit("the new model answered nothing")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="the program `tandem`")
    parser.add_argument("--model", help="directory of the model (default: the embedded one)")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=30, help="of each window")
    parser.add_argument("--rate", type=float, default=0.5, help="requests per second")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--seq-len", type=int, default=128, help="tokens of a row of the job")
    parser.add_argument("--full", action="store_true", help="train all weights instead of an adapter")
    options = parser.parse_args()
    rows = [{"messages": [{"role": "user", "content": f"Tell me a long story about number {i}."},
                          {"role": "assistant", "content": f"Once there were {i} friends in a wood. " * 20}]}
            for i in range(200)]
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        work = pathlib.Path(scratch)
        server = Server(options, work)
        try:
            job_id = create(server, rows, "long", n_epochs=50, batch_size=4, seq_len=options.seq_len,
                            lora=False if options.full else {"rank": 16})
            load(options, server, work, 1, "1701-1800")
            pairs = []
            for pair in range(options.pairs):
                wait("a step", lambda: trainer_of(server) and steps_of(server, job_id) >= 1)
                first = steps_of(server, job_id)
                wait("the next step", lambda: steps_of(server, job_id) > first)
                beside = window(options, server, work, 100 + pair, job_id)
                if pair == 0:
                    print("memory, MiB:", json.dumps({"server": memory_of(server.process.pid),
                                                      "trainer": memory_of(trainer_of(server))}))
                server.ask("POST", f"/v1/fine_tuning/jobs/{job_id}/pause")
                wait("paused", lambda: server.job(job_id)["status"] == "paused")
                alone = window(options, server, work, 100 + pair)
                server.ask("POST", f"/v1/fine_tuning/jobs/{job_id}/resume")
                failed += beside["failed"] + alone["failed"]
                pairs.append((beside, alone))
                print(json.dumps({"pair": pair + 1,
                                  "beside": {k: round(v, 3) for k, v in beside.items()},
                                  "alone": {k: round(v, 3) for k, v in alone.items()}}), flush=True)
            for figure in ("itl_p50", "itl_p95", "itl_p99", "first_p50"):
                # A small model sends several tokens at once: the gap between them is 0.
                ratios = [beside[figure] / alone[figure] for beside, alone in pairs if alone[figure]]
                if ratios:
                    print(f"{figure:10} beside / alone: median {statistics.median(ratios):.3f}, pairs",
                          *(f"{ratio:.3f}" for ratio in ratios))
            print("job's share of the cycles left: median "
                  f"{statistics.median(beside['job_share'] for beside, _ in pairs):.3f}")
            server.ask("POST", f"/v1/fine_tuning/jobs/{job_id}/cancel")
            wait("cancelled", lambda: ends(server, job_id))
            print(f"first token {first_token_after(server, rows[:20]):.3f} s after `succeeded` was seen")
        finally:
            server.stop()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
