#!/usr/bin/env python3
"""Writes the licences of all third-party code in the program into one file.

Usage: gather_licenses.py OUT [CARGO]

config/packaging/third_party.txt lists the libraries. The texts come from Debian's copyright files and from the sources
of the crates, both as they are on the machine that builds the program.
"""
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CRATES = ROOT / "engine" / "constrain" / "llguidance" / "Cargo.toml"


def listed():
    """(name, source, SPDX licence, copyright) of each library."""
    for line in (ROOT / "config" / "packaging" / "third_party.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, source, _, license_id, owners = line.split(" | ")
            yield name, source, license_id, owners


def crate_folders(cargo):
    """The folders of each crate by name: two versions of one crate can be in use."""
    answer = subprocess.check_output([cargo, "metadata", "--offline", "--locked", "--format-version", "1",
                                      "--manifest-path", CRATES])
    folders = {}
    for package in json.loads(answer)["packages"]:
        folders.setdefault(package["name"], []).append(pathlib.Path(package["manifest_path"]).parent)
    return folders


def crate_text(folders, printed):
    """The licence files of a crate. `printed` holds texts that crates share, and where each was printed."""
    files = [file for folder in folders for file in sorted(folder.iterdir())
             if file.name.upper().startswith(("LICENSE", "COPYING", "UNLICENSE"))]
    if not files:
        raise SystemExit(f"no licence file in {', '.join(map(str, folders))}")
    texts = []
    for file in files:
        text, place = file.read_text(), f"{file.parent.name}/{file.name}"
        first = printed.setdefault(text, place)
        texts.append(f"[{place}]\n\n" + (text if first == place else f"The same text as {first}.\n"))
    return "\n".join(texts)


def main():
    out = pathlib.Path(sys.argv[1])
    cargo = sys.argv[2] if len(sys.argv) > 2 else None
    crates = crate_folders(cargo) if cargo else {}
    parts, printed = [], {}
    for name, source, license_id, owners in listed():
        if source == "crate":
            if not cargo:
                continue
            text = crate_text(crates[name], printed)
        elif source == "rustc":
            text = "Either of the licences MIT and Apache-2.0, whose texts follow with the crates.\n"
        else:
            text = pathlib.Path("/usr/share/doc", source, "copyright").read_text()
        parts.append(f"{'=' * 100}\n{name}\nLicence: {license_id}\nCopyright: {owners}\n\n{text}")
    if any("/usr/share/common-licenses/" in part for part in parts):
        for name in ("Apache-2.0", "LGPL-2.1", "GPL-3"):
            text = pathlib.Path("/usr/share/common-licenses", name).read_text()
            parts.append(f"{'=' * 100}\n/usr/share/common-licenses/{name}\n\n{text}")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(parts))


main()
