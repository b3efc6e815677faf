#!/usr/bin/env python3
"""Writes fixtures/: pyarrow's Parquet files with their rows as JSON lines, and refused/ without
rows.

`make_fixtures.py [FOLDER]`, with pyarrow installed. README.md has the version of the committed
files.
"""

import base64
import datetime
import decimal
import math
import pathlib
import random
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

from expected_rows import json_lines

HERE = pathlib.Path(__file__).resolve().parent
WORDS = ["sun", "river", "straße", "雨", "🌊 sea", "\"quoted\"", "tab\there", "line\nbreak", "", "naïve", "\\", "\x00nul"]


def chat_rows(n, seed):
    rng = random.Random(seed)

    def text(most):
        return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, most)))

    rows = []
    for i in range(n):
        turns = [{"content": text(12), "role": ("user", "assistant")[t % 2]} for t in range(2 * rng.randrange(1, 4))]
        rows.append({"prompt": turns[0]["content"], "prompt_id": f"{rng.getrandbits(64):016x}", "messages": turns})
    return rows


CHAT = pa.schema([
    ("prompt", pa.string()),
    ("prompt_id", pa.string()),
    ("messages", pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))),
])


def chat(n=12, seed=1):
    return pa.Table.from_pylist(chat_rows(n, seed), schema=CHAT)


def flat(n=20):
    rng = random.Random(2)

    def maybe(value):
        return None if rng.random() < 0.3 else value

    return pa.table({
        "instruction": pa.array([maybe(rng.choice(WORDS)) for _ in range(n)], pa.string()),
        "n": pa.array([maybe(rng.randrange(-9, 9)) for _ in range(n)], pa.int64()),
        "score": pa.array([maybe(rng.uniform(-1, 1)) for _ in range(n)], pa.float64()),
        "good": pa.array([maybe(rng.random() < 0.5) for _ in range(n)], pa.bool_()),
        "tags": pa.array([maybe([maybe(w) for w in rng.sample(WORDS, rng.randrange(4))]) for _ in range(n)],
                         pa.list_(pa.string())),
    })


def types():
    text = pa.string()
    return pa.table({
        "i8": pa.array([-128, 127, None], pa.int8()),
        "i16": pa.array([-32768, 32767, None], pa.int16()),
        "i32": pa.array([-2**31, 2**31 - 1, None], pa.int32()),
        "i64": pa.array([-2**63, 2**63 - 1, None], pa.int64()),
        "u8": pa.array([0, 255, None], pa.uint8()),
        "u16": pa.array([0, 65535, None], pa.uint16()),
        "u32": pa.array([0, 2**32 - 1, None], pa.uint32()),
        "u64": pa.array([0, 2**64 - 1, None], pa.uint64()),
        "f32": pa.array([0.1, -3.4e38, math.nan], pa.float32()),
        "f64": pa.array([0.1, 5e-324, math.inf], pa.float64()),
        "bool": pa.array([True, False, None], pa.bool_()),
        "large": pa.array(["a", "雨", None], pa.large_string()),
        "binary": pa.array([b"text", "straße".encode(), None], pa.binary()),
        "category": pa.array(["x", "y", "x"], text).dictionary_encode(),
        "nothing": pa.nulls(3),
        "fixed": pa.array([[1, 2], None, [3, None]], pa.list_(pa.int32(), 2)),
    })


def nested():
    inner = pa.struct([("names", pa.list_(pa.string())), ("n", pa.int32())])
    column = pa.list_(pa.struct([("parts", pa.list_(inner)), ("label", pa.string())]))
    values = [
        None,
        [],
        [None],
        [{"parts": None, "label": None}],
        [{"parts": [], "label": "empty"}],
        [{"parts": [None], "label": "null"}],
        [{"parts": [{"names": None, "n": None}], "label": None}],
        [{"parts": [{"names": [], "n": 1}, {"names": [None], "n": 2}], "label": "x"}],
        [{"parts": [{"names": ["a", None, "b"], "n": 3}, None, {"names": ["c"], "n": None}], "label": "y"},
         None,
         {"parts": [{"names": ["d"], "n": 4}], "label": "z"}],
        [{"parts": [{"names": ["e", "f"], "n": 5}], "label": "last"}],
    ]
    point = pa.struct([("at", pa.struct([("x", pa.float64()), ("y", pa.float64())])), ("name", pa.string())])
    points = [None, {"at": None, "name": "n"}, {"at": {"x": None, "y": 1.5}, "name": None},
              {"at": {"x": 0.5, "y": 2.5}, "name": "p"}, None] * 2
    grid = [None, [], [None], [[]], [[None]], [[1]], [[1, 2], [], None, [3]], [[4], [5, None]], [[], []], [None, [6]]]
    return pa.table({
        "deep": pa.array(values, column),
        "point": pa.array(points, point),
        "grid": pa.array(grid, pa.list_(pa.list_(pa.int64()))),
    })


def required():
    schema = pa.schema([
        pa.field("text", pa.string(), nullable=False),
        pa.field("n", pa.int32(), nullable=False),
        pa.field("many", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
        pa.field("turn", pa.struct([pa.field("role", pa.string(), nullable=False),
                                    pa.field("content", pa.string())]), nullable=False),
    ])
    rows = [{"text": f"row {i}", "n": i, "many": [str(j) for j in range(i % 3)],
             "turn": {"role": "user", "content": None if i % 2 else "hi"}} for i in range(7)]
    return pa.Table.from_pylist(rows, schema=schema)


def wide():
    columns = {f"column {c}": pa.array([c, None if c % 3 else -c], pa.int32()) for c in range(40)}
    columns["long"] = pa.array(["雨" * 3000, None], pa.string())
    return pa.table(columns)


def repetitive(n=200):
    return pa.table({"role": pa.array((["user"] * 9 + ["assistant"]) * (n // 10), pa.string()),
                     "n": pa.array([i // 40 for i in range(n)], pa.int32()),
                     "word": pa.array([None if i % 7 == 0 else f"{WORDS[i % 5]} {i % 61}" for i in range(n)], pa.string()),
                     "all_null": pa.array([None] * n, pa.string())})


def good_files():
    """"rows--variant" -> (table, options of write_table); all variants share the rows of
    rows.jsonl.
    """
    files = {f"chat--{codec}": (chat(), {"compression": codec}) for codec in ("none", "snappy", "zstd", "gzip")}
    files["chat--with-arrow-schema"] = (chat(), {"compression": "snappy", "store_schema": True})
    for version in ("1.0", "2.0"):
        for dictionary in (True, False):
            name = f"flat--v{version[0]}-{'dictionary' if dictionary else 'plain'}"
            files[name] = (flat(), {"data_page_version": version, "use_dictionary": dictionary, "compression": "zstd"})
    small_pages = {"data_page_size": 128, "write_batch_size": 8}
    for version in ("1.0", "2.0"):
        files[f"chats--groups-and-pages-v{version[0]}"] = (
            chat(30, 3), {"row_group_size": 12, "data_page_version": version, "compression": "snappy", **small_pages})
    files["nested--v1"] = (nested(), {**small_pages})
    files["nested--v2-groups-gzip"] = (nested(), {"compression": "gzip", "data_page_version": "2.0", "row_group_size": 4})
    files["nested--old-item-names"] = (nested(), {"use_compliant_nested_type": False, "version": "1.0"})
    files["types--dictionary"] = (types(), {})
    files["types--plain"] = (types(), {"compression": "snappy", "use_dictionary": False})
    files["required--none"] = (required(), {})
    files["empty--no-rows"] = (chat(0), {})
    files["wide--zstd"] = (wide(), {"compression": "zstd"})
    files["repetitive--runs"] = (repetitive(), {**small_pages})
    files["repetitive--dictionary-then-plain"] = (repetitive(), {"dictionary_pagesize_limit": 64, **small_pages})
    files["flat--checksums-v1"] = (flat(), {"write_page_checksum": True})
    files["flat--checksums-v2"] = (flat(), {"write_page_checksum": True, "data_page_version": "2.0"})
    files["booleans--rle"] = (pa.table({"good": pa.array([i % 50 < 30 for i in range(120)])}),
                              {"use_dictionary": False, "column_encoding": {"good": "RLE"}, "data_page_version": "2.0"})
    return files


def refused_files():
    one = pa.table({"text": ["a", "b"], "n": pa.array([1, 2], pa.int32()), "x": [0.5, 1.5]})

    def encoded(column, encoding):
        return one, {"use_dictionary": False, "column_encoding": {column: encoding}}

    def of(array):
        return pa.table({"fine": pa.array(["yes"] * len(array)), "column": array}), {}

    day = datetime.date(2026, 1, 2)
    time = datetime.datetime(2026, 1, 2, 3, 4, 5)
    return {
        "brotli": (one, {"compression": "brotli"}),
        "lz4": (one, {"compression": "lz4"}),
        "delta-binary-packed": encoded("n", "DELTA_BINARY_PACKED"),
        "delta-length-byte-array": encoded("text", "DELTA_LENGTH_BYTE_ARRAY"),
        "delta-byte-array": encoded("text", "DELTA_BYTE_ARRAY"),
        "byte-stream-split": encoded("x", "BYTE_STREAM_SPLIT"),
        "map": of(pa.array([[("k", "v")]], pa.map_(pa.string(), pa.string()))),
        "decimal": of(pa.array([decimal.Decimal("1.25")], pa.decimal128(5, 2))),
        "date": of(pa.array([day], pa.date32())),
        "timestamp": of(pa.array([time], pa.timestamp("us"))),
        "int96": (of(pa.array([time], pa.timestamp("ns")))[0], {"use_deprecated_int96_timestamps": True}),
        "time": of(pa.array([time.time()], pa.time64("us"))),
        "half": of(pa.array([1.5], pa.float16())),
        "fixed-bytes": of(pa.array([b"abc"], pa.binary(3))),
        "bytes": of(pa.array([b"\xff\xfe"], pa.binary())),
    }


class KeepKeys(pe.KmsClient):
    """Keeps keys beside the file, in base64: enough to write encrypted pages."""

    def __init__(self, configuration):
        super().__init__()

    def wrap_key(self, key_bytes, master_key_identifier):
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key, master_key_identifier):
        return base64.b64decode(wrapped_key)


def write_encrypted(path, plaintext_footer):
    configuration = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": ["text"]}, plaintext_footer=plaintext_footer)
    properties = pe.CryptoFactory(KeepKeys).file_encryption_properties(pe.KmsConnectionConfig(), configuration)
    table = pa.table({"text": ["a"], "open": ["b"]})
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)


def write(path, table, options):
    options = {"compression": "none", "store_schema": False, **options}
    pq.write_table(table, path, **options)


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "fixtures"
    (folder / "refused").mkdir(parents=True, exist_ok=True)
    for name, (table, options) in good_files().items():
        write(folder / f"{name}.parquet", table, options)
        rows = "".join(line + "\n" for line in json_lines(table))
        (folder / f"{name.split('--')[0]}.jsonl").write_text(rows, encoding="utf-8")
    for name, (table, options) in refused_files().items():
        write(folder / "refused" / f"{name}.parquet", table, options)
    write_encrypted(folder / "refused" / "encrypted-footer.parquet", False)
    write_encrypted(folder / "refused" / "encrypted-columns.parquet", True)
    total = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{folder}: {total} bytes, pyarrow {pa.__version__}")


if __name__ == "__main__":
    main()
