#!/usr/bin/env python3
"""Compares the speed of `tandem convert` with copying and syncing the same bytes.

    bench/convert_speed.py BINARY [MODEL_DIR] [--shape llama-1b] [--to native --to hf …] [--pairs 5]

Without MODEL_DIR it makes a model of random weights (`tandem bench make-model`) and removes it afterwards.
A pair is one `cp` of the model's files with fsync and one conversion; the two take turns to be first.
Before the pairs the files are read once, so that both find them in the page cache. They are also converted
once, so that the source's hash is remembered like a served model's. The certificate is off by default,
because it runs both models. Prints one line of JSON per format: the median of the copy's time over the
conversion's, and the conversion's seconds, MB/s, processor seconds and peak RSS. Standard library only.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time


def run(command):
    """Returns seconds and the resource usage of the process."""
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - begin
    if process.returncode != 0:
        sys.exit(f"{command[0]} failed: {errors.decode(errors='replace')}")
    return seconds, usage


def warm(directory):
    for path in directory.iterdir():
        if path.is_file():
            with open(path, "rb") as file:
                while file.read(1 << 24):
                    pass


def settle(size):
    """Waits for earlier writes to reach the disk, and touches memory for the next run's pages. A virtual
    machine whose host took back free memory pays several times the cost of copying to regain it. The
    first program of a pair would pay that."""
    os.sync()
    touch = f"memory = b'1' * {size + (256 << 20)}"
    subprocess.run([sys.executable, "-c", touch], check=True)


def copy(model, target):
    files = [str(path) for path in sorted(model.iterdir()) if path.is_file()]
    begin = time.monotonic()
    target.mkdir()
    run(["cp", *files, str(target)])
    run(["sync", *(str(target / pathlib.Path(file).name) for file in files), str(target)])
    return time.monotonic() - begin


def convert(arguments, target, form):
    command = [arguments.binary, "convert", str(arguments.model), str(target), "--to", form]
    if arguments.dtype:
        command += ["--dtype", arguments.dtype]
    if not arguments.certificate:
        command += ["--no-certificate"]
    if arguments.no_verify:
        command += ["--no-verify"]
    if arguments.threads:
        command += ["--threads", str(arguments.threads)]
    return run(command)


def measure(arguments, form, work):
    ratios, seconds, processor, peaks = [], [], [], []
    size = sum(path.stat().st_size for path in arguments.model.iterdir() if path.is_file())
    for pair in range(arguments.pairs):
        took = {}
        for what in ("copy", "convert") if pair % 2 == 0 else ("convert", "copy"):
            target = work / what
            settle(size)
            if what == "copy":
                took[what] = copy(arguments.model, target)
            else:
                took[what], usage = convert(arguments, target, form)
                processor.append(usage.ru_utime + usage.ru_stime)
                peaks.append(usage.ru_maxrss * 1024 / (1 << 20))
            shutil.rmtree(target)
        ratios.append(took["copy"] / took["convert"])
        seconds.append(took["convert"])
    middle = statistics.median(seconds)
    print(json.dumps({
        "to": form, "dtype": arguments.dtype or "as it is", "verify": not arguments.no_verify,
        "model_mb": round(size / 1e6), "pairs": arguments.pairs,
        "speed_of_cp": round(statistics.median(ratios), 3),
        "speed_of_cp_each": [round(ratio, 2) for ratio in ratios],
        "seconds": round(middle, 3), "mb_per_s": round(size / 1e6 / middle),
        "processor_s": round(statistics.median(processor), 2),
        "peak_rss_mib": round(max(peaks)),
    }), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("model", nargs="?", type=pathlib.Path)
    parser.add_argument("--shape", default="llama-1b")
    parser.add_argument("--to", action="append", choices=["hf", "native", "native-params"])
    parser.add_argument("--dtype", choices=["f32", "bf16", "f16"])
    parser.add_argument("--no-verify", action="store_true")
    parser.add_argument("--certificate", action="store_true")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--work", help="where to write; default: the temporary directory")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="convert-speed-", dir=arguments.work) as name:
        work = pathlib.Path(name)
        if arguments.model is None:
            arguments.model = work / "model"
            run([arguments.binary, "bench", "make-model", arguments.shape, str(arguments.model)])
        os.environ["XDG_CACHE_HOME"] = str(work / "cache")
        time.sleep(3)  # hashes are remembered for files at least two seconds old
        warm(arguments.model)
        convert(arguments, work / "first", "native")
        shutil.rmtree(work / "first")
        for form in arguments.to or ["native", "hf"]:
            measure(arguments, form, work)


if __name__ == "__main__":
    main()
