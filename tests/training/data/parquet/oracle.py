#!/usr/bin/env python3
"""Random schemas and tables, written by pyarrow in random ways, beside what our reader makes of them.

`oracle.py PROGRAM [--tables N] [--seed S]`, PROGRAM being build/…/tests/parquet_rows. Needs pyarrow.
"""

import argparse
import json
import math
import pathlib
import random
import string
import subprocess
import sys
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq

from expected_rows import json_lines

LEAVES = [pa.string(), pa.string(), pa.large_string(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(),
          pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float32(), pa.float64(), pa.binary()]
ALPHABET = string.printable + "äß雨🌊\u0000\u2028é"


def random_type(rng, depth):
    kind = rng.random()
    if depth == 0 or kind < 0.35:
        return rng.choice(LEAVES)
    if kind < 0.7:
        item = pa.field("element", random_type(rng, depth - 1), nullable=rng.random() < 0.7)
        return pa.large_list(item) if rng.random() < 0.2 else pa.list_(item)
    fields = [pa.field(f"f{i}", random_type(rng, depth - 1), nullable=rng.random() < 0.7) for i in range(rng.randrange(1, 4))]
    return pa.struct(fields)


def random_leaf(rng, of):
    if pa.types.is_boolean(of):
        return rng.random() < 0.5
    if pa.types.is_integer(of):
        bits = of.bit_width
        low, high = (-2**(bits - 1), 2**(bits - 1) - 1) if pa.types.is_signed_integer(of) else (0, 2**bits - 1)
        return rng.choice([low, high, rng.randint(low, high), rng.randint(0, 5)])
    if pa.types.is_floating(of):
        value = rng.choice([0.0, -0.0, 1.0, math.inf, math.nan, rng.uniform(-1e9, 1e9), rng.gauss(0, 1) * 1e-30])
        return pa.scalar(value, of).as_py()
    text = "".join(rng.choice(ALPHABET) for _ in range(rng.choice([0, 1, 3, 20, 200]) if rng.random() < 0.3 else 2))
    return text.encode() if pa.types.is_binary(of) else text


def random_value(rng, of, nullable, nulls):
    if nullable and rng.random() < nulls:
        return None
    if pa.types.is_list(of) or pa.types.is_large_list(of):
        n = rng.choice([0, 0, 1, 2, 3, rng.randrange(12)])
        return [random_value(rng, of.value_type, of.value_field.nullable, nulls) for _ in range(n)]
    if pa.types.is_struct(of):
        return {field.name: random_value(rng, field.type, field.nullable, nulls) for field in of}
    return random_leaf(rng, of)


def random_table(rng):
    fields = [pa.field(f"column {i}", random_type(rng, rng.randrange(5)), nullable=rng.random() < 0.8)
              for i in range(rng.randrange(1, 6))]
    nulls = rng.choice([0.0, 0.1, 0.4, 0.9])
    n_rows = rng.choice([0, 1, 2, 17, 100, rng.randrange(400)])
    few = rng.random() < 0.3  # repeated rows: long runs, small dictionaries
    rows = [{f.name: random_value(rng, f.type, f.nullable, nulls) for f in fields} for _ in range(3 if few else n_rows)]
    if few:
        rows = [rng.choice(rows) for _ in range(n_rows)]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


def random_options(rng):
    options = {
        "compression": rng.choice(["none", "snappy", "zstd", "gzip"]),
        "data_page_version": rng.choice(["1.0", "2.0"]),
        "use_dictionary": rng.random() < 0.6,
        "version": rng.choice(["1.0", "2.4", "2.6"]),
        "write_page_checksum": rng.random() < 0.3,
        "write_statistics": rng.random() < 0.7,
        "write_page_index": rng.random() < 0.3,
        "store_schema": rng.random() < 0.5,
        "use_compliant_nested_type": rng.random() < 0.7,
        "data_page_size": rng.choice([1, 64, 1000, 1 << 20]),
        "write_batch_size": rng.choice([1, 7, 1024]),
        "dictionary_pagesize_limit": rng.choice([16, 200, 1 << 20]),
    }
    if rng.random() < 0.6:
        options["row_group_size"] = rng.choice([1, 10, 64, 1000])
    return options


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    n_rows = n_different = 0
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "table.parquet"
        for seed in range(arguments.seed, arguments.seed + arguments.tables):
            rng = random.Random(seed)
            table, options = random_table(rng), random_options(rng)
            pq.write_table(table, path, **options)
            expected = [json.loads(line) for line in json_lines(table)]
            ours = subprocess.run([arguments.program, path], capture_output=True, check=False)
            rows = [json.loads(line) for line in ours.stdout.splitlines()]
            n_rows += len(rows)
            if ours.returncode != 0 or rows != expected:
                n_different += 1
                first = next((i for i, pair in enumerate(zip(rows, expected)) if pair[0] != pair[1]), min(len(rows), len(expected)))
                print(f"seed {seed}: row {first} of {len(expected)} differs; {ours.stderr.decode().strip()}\n  {table.schema}\n  {options}")
                if first < min(len(rows), len(expected)):
                    print(f"  ours   {rows[first]}\n  theirs {expected[first]}")
    print(f"{arguments.tables} tables, {n_rows} rows, {n_different} tables differ (pyarrow {pa.__version__})")
    return 1 if n_different else 0


if __name__ == "__main__":
    sys.exit(main())
