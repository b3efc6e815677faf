#!/usr/bin/env python3
"""Writes an assembler file with the few items of ICU's data that the program reads.

Usage: trim_icu_data.py LIBICUDATA.A OUT.S [ITEM...]

Debian's libicudata.a holds one object of 31 MB, with one symbol (icudt72_dat). The output defines the same symbol.
Format of the data: a header, then a table of contents (count, then offsets of name and item for each entry, all
relative to the table), then the names, then the items. Names are sorted by their bytes.
"""
import pathlib
import struct
import subprocess
import sys
import tempfile

# engine/tokenizer/text: NFKC and NFKD, and the grapheme iterator of the root locale.
# NFC, NFD, character classes, scripts and case mappings are tables inside libicuuc.
ITEMS = ("brkitr/char.brk", "brkitr/root.res", "nfkc.nrm")
ALIGNMENT = 16


def read_data(library):
    """Returns the symbol and the bytes of the library's only object."""
    members = subprocess.check_output(["ar", "t", library], text=True).split()
    if len(members) != 1:
        sys.exit(f"{library}: expected one object with all data, found {len(members)}")
    with tempfile.TemporaryDirectory() as folder:
        part = pathlib.Path(folder, members[0])
        part.write_bytes(subprocess.check_output(["ar", "p", library, members[0]]))
        symbols = [line.split()[-1] for line in
                   subprocess.check_output(["nm", "--defined-only", part], text=True).splitlines()]
        if len(symbols) != 1:
            sys.exit(f"{library}: expected one symbol, found {' '.join(symbols)}")
        data = pathlib.Path(folder, "data")
        subprocess.check_call(["objcopy", "-O", "binary", "--only-section=.rodata", part, data])
        return symbols[0], data.read_bytes()


def split_items(data):
    """Returns the header, and the items by name."""
    header_size, magic_1, magic_2 = struct.unpack_from("<HBB", data)
    if (magic_1, magic_2) != (0xDA, 0x27) or data[12:16] != b"CmnD":
        sys.exit("the data does not begin with the header of a common ICU data file")
    table = data[header_size:]
    (count,) = struct.unpack_from("<I", table)
    entries = [struct.unpack_from("<II", table, 4 + 8 * i) for i in range(count)]
    ends = [begin for _, begin in entries[1:]] + [len(table)]
    items = {}
    for (name, begin), end in zip(entries, ends):
        items[table[name:table.index(b"\0", name)].decode()] = table[begin:end]
    return data[:header_size], items


def join_items(header, items):
    names, places = b"", []
    first_name = 4 + 8 * len(items)
    for name in sorted(items):
        places.append(first_name + len(names))
        names += name.encode() + b"\0"
    offset = first_name + len(names)
    contents, table = b"", struct.pack("<I", len(items))
    for name, place in zip(sorted(items), places):
        contents += b"\0" * (-(offset + len(contents)) % ALIGNMENT)
        table += struct.pack("<II", place, offset + len(contents))
        contents += items[name]
    # The header is a multiple of the alignment, so offsets within the table stay aligned.
    return header + table + names + contents


def main():
    library, out, *wanted = sys.argv[1:]
    symbol, data = read_data(library)
    header, items = split_items(data)
    prefix = next(iter(items)).split("/")[0] + "/"
    kept = {}
    for item in wanted or ITEMS:
        if prefix + item not in items:
            sys.exit(f"{library} has no item {prefix + item}")
        kept[prefix + item] = items[prefix + item]
    out = pathlib.Path(out)
    trimmed = out.with_suffix(".dat")
    trimmed.write_bytes(join_items(header, kept))
    out.write_text(f"""  .section .rodata
  .globl {symbol}
  .type {symbol}, @object
  .balign {ALIGNMENT}
{symbol}:
  .incbin "{trimmed}"
  .size {symbol}, . - {symbol}
  .section .note.GNU-stack,"",@progbits
""")


main()
