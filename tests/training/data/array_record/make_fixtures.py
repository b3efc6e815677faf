#!/usr/bin/env python3
"""Writes the files of `fixtures` with Google's own writer: the package array_record 0.8.6.

    make_fixtures.py        the files are written beside this one
"""

import gzip
import pathlib
import tempfile

from array_record.python import array_record_module

HERE = pathlib.Path(__file__).resolve().parent / "fixtures"
OPTIONS = {"zstd": "group_size:1,zstd:3", "plain": "group_size:3,uncompressed", "groups": "group_size:7,zstd:1",
           "brotli": "group_size:2,brotli:3", "transposed": "group_size:4,transpose"}


def record(i):
    return ('{"text": "record %d %s"}' % (i, "abc" * i)).encode()


def write(name, options, records):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / name
        writer = array_record_module.ArrayRecordWriter(str(path), options)
        for each in records:
            writer.write(each)
        writer.close()
        # The last block of a file is nearly empty.
        (HERE / f"{name}.array_record.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))


def main():
    HERE.mkdir(exist_ok=True)
    for name, options in OPTIONS.items():
        write(name, options, map(record, range(40)))
    # Chunks that cross blocks of 64 KiB, with sizes of every remainder.
    write("blocks", "group_size:5,uncompressed", (b'{"n": "%s"}' % (b"%05d" % i * (i * 37)) for i in range(100)))


if __name__ == "__main__":
    main()
