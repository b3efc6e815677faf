#!/usr/bin/env python3
"""Compares `tandem bench step` with llama.cpp's benchmarks on the same GGUF files.

    bench/peers.py TANDEM --peer NAME=DIR [--peer …] [--shape llama-1b …] [--type q8_0 …] [--pairs 5]

TANDEM is the program. DIR holds `llama-bench` and `llama-batched-bench` of llama.cpp or ik_llama.cpp, and
`llama-quantize` for types such as mxfp4_moe. Each shape gets random weights (`tandem bench make-model`),
and becomes a GGUF file (`tandem convert`; types that it does not write are quantised by the first peer that can). All
programs read the same file with the same number of threads. A round runs every program once; the order turns from round
to round. `--peer` may name one directory twice, with different flags.

A mixture of experts reads the experts that its tokens choose. The streams of a batch must therefore have different
tokens. `llama-batched-bench` of ik_llama.cpp (8337e4c) writes token 0 everywhere: let it draw `std::rand() % n_vocab`
instead, as llama.cpp's does, or its 16 streams read the experts of one.

Prints one row for each figure: the medians, the ratio of ours over each peer's, the scatter of that ratio over the
rounds, and our share of the machine's roof. `--isa avx2` forces our table (TANDEM_FORCE_ISA); build the peer for the
same instruction set. `--peer-flags NAME="-rtr 1 -fa 1"` adds flags to a peer's programs; `--batch-flags NAME="-rtr"`
gives its `llama-batched-bench` other ones. Standard library only.
"""

import argparse
import json
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile

FIGURES = ("prefill", "one stream", "batch")
OURS = {
    "prefill": re.compile(r"^prefill \d+: ([\d.]+) tokens/s.*= ([\d.]+) % of the peak", re.M),
    "one stream": re.compile(r"^one stream: ([\d.]+) tokens/s.*= ([\d.]+) % of the read loop", re.M),
    "batch": re.compile(r"^\d+ sequences: ([\d.]+) tokens/s", re.M),
}


def run(command, messages_too=False, **more):
    """Returns what the program prints, with its messages on request."""
    errors = subprocess.STDOUT if messages_too else subprocess.PIPE
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=errors, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(map(str, command))} failed:\n{(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


def measure_ours(options, model):
    environment = dict(os.environ)
    if options.isa:
        environment["TANDEM_FORCE_ISA"] = options.isa
    out = run([options.tandem, "bench", "step", "--model", model, "--rounds", 1, "--threads", options.threads,
               "--prompt-tokens", options.prompt_tokens, "--batch", options.batch], env=environment)
    result = {}
    for figure, pattern in OURS.items():
        found = pattern.search(out)
        if not found:
            sys.exit(f"tandem bench step printed no line of '{figure}':\n{out}")
        result[figure] = [float(value) for value in found.groups()]
    return result


def batch_speed(out):
    """The tokens/s of the last row: of JSON lines, or of the table that ik_llama.cpp prints among its messages."""
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if lines:
        return json.loads(lines[-1])["speed_tg"]
    rows = [line.strip("|").split("|") for line in out.splitlines() if re.match(r"^\|\s*\d", line)]
    if not rows:
        sys.exit(f"llama-batched-bench printed no row:\n{out}")
    return float(rows[-1][7])  # S_TG t/s


def measure_peer(options, name, model):
    directory = options.peers[name]
    flags = shlex.split(options.peer_flags.get(name, ""))
    batch_flags = shlex.split(options.batch_flags[name]) if name in options.batch_flags else flags
    rows = json.loads(run([directory / "llama-bench", "-m", model, "-t", options.threads, "-r", 1, "-o", "json",
                           "-p", options.prompt_tokens, "-n", options.tokens, *flags]))
    result = {"prefill" if row["n_prompt"] else "one stream": [row["avg_ts"]] for row in rows}
    out = run([directory / "llama-batched-bench", "-m", model, "-t", options.threads, "-c", options.batch * 64,
               "-npp", 16, "-ntg", options.tokens, "-npl", options.batch, "--output-format", "jsonl", *batch_flags],
              messages_too=True)
    result["batch"] = [batch_speed(out)]
    return result


def make_files(options, shape, directory):
    """Yields the type and the GGUF file of each type of a shape."""
    source = directory / shape
    if not source.exists():
        layers = ["--layers", options.layers] if options.layers else []
        run([options.tandem, "bench", "make-model", shape, source, *layers])
    def convert(target, *more):
        run([options.tandem, "convert", source, target, "--to", "gguf", "--no-verify", "--no-certificate",
             "--quiet", *more])

    for kind in options.type:
        target = directory / f"{shape}-{kind}.gguf"
        if target.exists():
            pass
        elif kind in ("bf16", "f32", "q8_0", "q4_0"):
            convert(target, "--dtype", kind)
        else:
            plain = directory / f"{shape}-bf16.gguf"
            if not plain.exists():
                convert(plain, "--dtype", "bf16")
            quantizer = next(path for path in options.peers.values() if (path / "llama-quantize").exists())
            run([quantizer / "llama-quantize", plain, target, kind.upper(), options.threads])
        yield kind, target


def report(options, shape, kind, rounds):
    for figure in FIGURES:
        ours = [one["tandem"][figure][0] for one in rounds]
        line = f"| {shape} {kind} | {figure} | {statistics.median(ours):.1f} |"
        for name in options.peers:
            theirs = [one[name][figure][0] for one in rounds]
            ratios = [a / b for a, b in zip(ours, theirs)]
            line += (f" {statistics.median(theirs):.1f} | {statistics.median(ratios):.2f}"
                     f" ({min(ratios):.2f} to {max(ratios):.2f}) |")
        share = [one["tandem"][figure][1] for one in rounds if len(one["tandem"][figure]) > 1]
        print(line + (f" {statistics.median(share):.0f} % |" if share else " |"), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tandem", type=pathlib.Path)
    parser.add_argument("--peer", action="append", required=True, metavar="NAME=DIR")
    parser.add_argument("--shape", action="append", help="of `tandem bench make-model`; default: llama-1b")
    parser.add_argument("--type", action="append", help="bf16, q8_0, q4_0, mxfp4_moe …; default: q8_0 and q4_0")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32, help="that the peers decode in a run")
    parser.add_argument("--isa", help="our instruction set (TANDEM_FORCE_ISA)")
    parser.add_argument("--peer-flags", action="append", default=[], metavar="NAME=FLAGS")
    parser.add_argument("--batch-flags", action="append", default=[], metavar="NAME=FLAGS")
    parser.add_argument("--layers", type=int, help="makes models with fewer layers")
    parser.add_argument("--dir", type=pathlib.Path, help="keeps the models there")
    options = parser.parse_args()
    options.shape = options.shape or ["llama-1b"]
    options.type = options.type or ["q8_0", "q4_0"]
    options.peers = {}
    options.peer_flags = dict(flags.split("=", 1) for flags in options.peer_flags)
    options.batch_flags = dict(flags.split("=", 1) for flags in options.batch_flags)
    for peer in options.peer:
        name, _, directory = peer.partition("=")
        options.peers[name] = pathlib.Path(directory)
        for program in ("llama-bench", "llama-batched-bench"):
            if not (options.peers[name] / program).exists():
                parser.error(f"{options.peers[name] / program} does not exist; build it there")

    print(f"{options.threads} threads, {options.pairs} rounds, isa {options.isa or 'the best'}; tokens/s\n")
    peers = "".join(f" {name} | ratio (range) |" for name in options.peers)
    print(f"| model | figure | tandem |{peers} share of the roof |\n|{'---|' * (4 + 2 * len(options.peers))}")
    with tempfile.TemporaryDirectory(dir=options.dir) as scratch:
        directory = options.dir or pathlib.Path(scratch)
        for shape in options.shape:
            for kind, model in make_files(options, shape, directory):
                sides = {"tandem": lambda m=model: measure_ours(options, m)}
                for name in options.peers:
                    sides[name] = lambda n=name, m=model: measure_peer(options, n, m)
                rounds = []
                for number in range(options.pairs):
                    order = list(sides)
                    order = order[number % len(order):] + order[:number % len(order)]
                    rounds.append({name: sides[name]() for name in order})
                report(options, shape, kind, rounds)


if __name__ == "__main__":
    main()
