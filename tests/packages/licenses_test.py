#!/usr/bin/env python3
"""`tandem version --licenses` names every library in the program.

`licenses_test.py BUILD_DIR [unittest arguments]`.
"""

import json
import re

import support
from support import ROOT, Case, run

LISTED = ROOT / "config" / "packaging" / "third_party.txt"
CRATES = ROOT / "engine" / "constrain" / "llguidance" / "Cargo.toml"
OURS = "tandem-llguidance"


def listed():
    """{name: (source, libraries, licence, copyright)}"""
    rows = [line.split(" | ") for line in LISTED.read_text().splitlines() if line and not line.startswith("#")]
    return {name: (source, libraries.split(), license_id, owners)
            for name, source, libraries, license_id, owners in rows}


def cached(name):
    """A value of the build's CMake cache; empty without one."""
    match = re.search(rf"^{name}:\w+=(.*)$", (support.BUILD / "CMakeCache.txt").read_text(), re.M)
    return match[1] if match else ""


def crates():
    """The entries of `cargo metadata` for the crates that the program may contain, ours left out."""
    answer = run(cached("TANDEM_CARGO"), "metadata", "--offline", "--locked", "--format-version", "1",
                 "--manifest-path", CRATES)
    return [package for package in json.loads(answer)["packages"] if package["name"] != OURS]


class Licenses(Case):
    def test_every_loaded_library_is_listed(self):
        known = {library for _, libraries, _, _ in listed().values() for library in libraries}
        # The libraries that the program itself names. Those of libpq in turn (Kerberos, LDAP and theirs) are Debian's:
        # the portable program has none of them.
        loaded = {name.split(".so")[0]
                  for name in re.findall(r"\(NEEDED\).*\[(.+?)\]", run("readelf", "--dynamic", support.BUILD / "tandem"))}

        self.assertGreater(len(loaded), 10)
        self.assertIn("libpq", loaded)
        self.assertEqual(loaded - known, set())

    def test_every_package_with_headers_is_listed(self):
        text = (ROOT / ".ci" / "packages.sh").read_text()
        needed = set(re.findall(r"\b[a-z0-9+-]+-dev\b", re.search(r"BUILD_PACKAGES=\((.*?)\)", text, re.S)[1]))

        self.assertGreater(len(needed), 10)
        self.assertEqual(needed - {source for source, _, _, _ in listed().values()}, set())

    def test_every_crate_is_listed_with_the_licence_that_it_declares(self):
        if not cached("TANDEM_LLGUIDANCE"):
            self.skipTest("built without llguidance")
        rows = listed()
        for package in crates():
            with self.subTest(package["name"]):
                self.assertEqual(rows[package["name"]][0], "crate")
                self.assertEqual(rows[package["name"]][2], package["license"])
        names = {package["name"] for package in crates()}
        self.assertEqual({name for name, row in rows.items() if row[0] == "crate"}, names)

    def test_the_program_prints_each_with_version_licence_and_copyright(self):
        printed = run(support.BUILD / "tandem", "version", "--licenses")
        self.assertIn("Licence: Apache-2.0", printed)
        has_crates = cached("TANDEM_LLGUIDANCE") != ""
        for name, (source, _, license_id, owners) in listed().items():
            if source in ("crate", "rustc") and not has_crates:
                continue
            entry = rf"(?m)^{re.escape(name)} [\d.]+(, [\d.]+)*\n  Licence: {re.escape(license_id)}\n  Copyright: \S"
            self.assertRegex(printed, entry)
        if has_crates:
            for package in crates():
                self.assertRegex(printed, rf"(?m)^{re.escape(package['name'])} .*\b{re.escape(package['version'])}\b")

    def test_the_texts_of_all_licences_go_with_the_release(self):
        text = support.dist("LICENSES.txt").read_text()
        for name, (source, *_) in listed().items():
            if source != "crate" or cached("TANDEM_LLGUIDANCE"):
                self.assertIn(f"\n{name}\nLicence: ", text)
        for phrase in ("Permission is hereby granted, free of charge", "Redistribution and use in source and binary",
                       "TERMS AND CONDITIONS FOR USE, REPRODUCTION", "GNU LESSER GENERAL PUBLIC LICENSE"):
            self.assertIn(phrase, text)


if __name__ == "__main__":
    support.main()
