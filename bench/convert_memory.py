#!/usr/bin/env python3
"""Measures the peak resident memory of conversions and compares it with their bound.

    bench/convert_memory.py BINARY MODEL_DIR [--only maxtext] [--work DIR] [--certificate]

Converts MODEL_DIR into each format, and the MaxText, native and GGUF results back into Hugging Face directories.
Prints a line of JSON for each: seconds, peak resident memory (pages of mapped files included), and the bound. The
bound is the largest tensor read or written, plus 512 MiB. Exits 1 if a conversion fails or exceeds its bound.
A certificate runs both models and holds their weights in memory. It is off by default; with it no bound applies.
Standard library only.
"""

import argparse
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
# name, source ("" is the model), flags
CONVERSIONS = [
    ("hf-bf16", "", ["--to", "hf", "--dtype", "bf16"]),
    ("hf-f32", "", ["--to", "hf", "--dtype", "f32"]),
    ("native", "", ["--to", "native"]),
    ("native-hf", "native", ["--to", "hf"]),
    ("maxtext-scanned", "", ["--to", "maxtext", "--scan"]),
    ("maxtext-scanned-hf", "maxtext-scanned", ["--to", "hf", "--dtype", "bf16"]),
    ("maxtext-f32", "", ["--to", "maxtext", "--dtype", "f32"]),
    ("maxtext-unrolled", "", ["--to", "maxtext", "--unroll"]),
    ("gguf-q8_0", "", ["--to", "gguf", "--dtype", "q8_0"]),
    ("gguf-q4_0", "", ["--to", "gguf", "--dtype", "q4_0"]),
    ("gguf-q8_0-hf", "gguf-q8_0", ["--to", "hf", "--dtype", "bf16"]),
]


def largest_leaf(binary, path):
    listing = subprocess.run([binary, "checkpoint", "ls", path, "--json"], capture_output=True, check=True)
    leaves = json.loads(listing.stdout)["leaves"]
    # As f32: transforms compute in f32, and quantised blocks decode to f32.
    return max([math.prod(leaf["shape"]) * 4 if leaf["shape"] else 4 for leaf in leaves])


def run(command):
    """Returns exit code, seconds and peak resident bytes of the process."""
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, time.monotonic() - begin, usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--only", default="", help="conversions whose name contains this")
    parser.add_argument("--work", help="where targets are made, and removed (default: the temporary directory)")
    parser.add_argument("--certificate", action="store_true")
    arguments = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(dir=arguments.work) as scratch:
        made = {"": arguments.model}
        wanted = [each for each in CONVERSIONS if arguments.only in each[0]]
        for name, source, flags in wanted:
            if source not in made:
                continue
            target = pathlib.Path(scratch) / (name + (".gguf" if "gguf" in flags else ""))
            command = [arguments.binary, "convert", str(made[source]), str(target), *flags]
            if not arguments.certificate:
                command.append("--no-certificate")
            code, seconds, peak = run(command)
            line = {"conversion": name, "exit": code, "seconds": round(seconds, 1), "peak_mib": peak // MIB}
            if code == 0:
                made[name] = target
                bound = max(largest_leaf(arguments.binary, path) for path in (made[source], target)) + 512 * MIB
                line["bound_mib"] = bound // MIB
                line["within"] = peak <= bound
            failed += code != 0 or not (arguments.certificate or line["within"])
            print(json.dumps(line), flush=True)
            # Frees the room of a result that no later conversion reads.
            if not any(each[1] == name for each in wanted) and target.exists():
                shutil.rmtree(target) if target.is_dir() else target.unlink()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
