#!/usr/bin/env python3
"""Builds the examples against an installed copy, as another project would.

`install_test.py BUILD_DIR [unittest arguments]`. BUILD_DIR holds the built libraries and `tandem`.

The sources of the examples are copied away from the repository, so they can only use what was
installed.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
MODEL = SOURCE / "config" / "models" / "tandem-stories"
PROMPT = "Once upon a time"
LINES_AT_MOST = {"engine/examples/generate.cc": 40, "training/examples/step.cc": 40}
BUILD_DIR = None

# Every installed header in one source: each finds all that it includes.
ALL_HEADERS_PROJECT = """\
cmake_minimum_required(VERSION 3.25)
project(all_headers LANGUAGES CXX)
find_package(Tandem 0.1 CONFIG REQUIRED)
add_library(all_headers OBJECT all_headers.cc)
target_link_libraries(all_headers PRIVATE Tandem::training Tandem::engine)
"""


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          timeout=300)
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.prefix = cls.work / "prefix"
        run("cmake", "--install", BUILD_DIR, "--prefix", cls.prefix)

    def build(self, name):
        """Configures and builds the project in work/NAME with the installed copy alone."""
        source = self.work / name
        build = source / "build"
        run("cmake", "-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
            "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run("cmake", "--build", build)
        for entry in json.loads((build / "compile_commands.json").read_text()):
            self.assertNotIn(str(SOURCE), entry["command"])
        return build

    def example(self, room):
        """The folder with the built example of a room."""
        if not (self.work / room).exists():
            shutil.copytree(SOURCE / room / "examples", self.work / room)
            self.build(room)
        return self.work / room / "build"

    def test_an_example_generates_as_many_tokens_as_asked_and_tandems_text(self):
        generate = self.example("engine") / "generate"

        text, count = run(generate, MODEL, PROMPT, 24).rsplit("\n", 2)[:2]

        self.assertEqual(count, "24 tokens")
        installed = run(self.prefix / "bin" / "tandem", "generate", "--model", MODEL, "-p", PROMPT,
                        "--max-tokens", 24)
        self.assertEqual(text, installed.removesuffix("\n"))

    def test_an_example_names_the_model_that_is_missing(self):
        generate = self.example("engine") / "generate"

        done = subprocess.run([generate, "/nowhere/model", PROMPT], capture_output=True, text=True,
                              timeout=60)

        self.assertEqual(done.returncode, 1)
        self.assertIn("/nowhere/model", done.stderr)

    def test_an_example_lowers_the_loss_in_one_training_step(self):
        printed = run(self.example("training") / "step")

        losses = re.fullmatch(r"loss ([\d.]+) before the step, ([\d.]+) after it\n", printed)
        self.assertTrue(losses, printed)
        before, after = float(losses[1]), float(losses[2])
        self.assertAlmostEqual(before, 5.545, delta=0.2)  # the logarithm of 256 bytes
        self.assertLess(after, before - 0.05)

    def test_every_installed_header_finds_the_headers_that_it_includes(self):
        include = self.prefix / "include" / "tandem"
        headers = sorted(str(path.relative_to(include)) for path in include.rglob("*.h"))
        self.assertIn("engine/generate.h", headers)
        project = self.work / "all_headers"
        project.mkdir()
        (project / "CMakeLists.txt").write_text(ALL_HEADERS_PROJECT)
        (project / "all_headers.cc").write_text("".join(f'#include "{name}"\n' for name in headers))

        self.build("all_headers")

    def test_the_package_names_no_folder_of_the_source_tree(self):
        for path in self.prefix.rglob("*.cmake"):
            self.assertNotIn(str(SOURCE), path.read_text(), path)

    def test_only_headers_libraries_the_program_and_its_documents_are_installed(self):
        self.assertEqual(self.folders(self.prefix), {
            "bin", "lib/tandem", "lib/cmake/Tandem", "include/tandem/engine/base/third_party/nlohmann",
            "share/doc/tandem", "share/man/man1", "share/man/man5", "share/bash-completion/completions",
            "share/zsh/vendor-completions", "share/fish/vendor_completions.d"})
        self.assertFalse((self.prefix / "include" / "tandem" / "server").exists())

    def folders(self, prefix):
        """The folders with files, of headers only if they hold others too."""
        return {str(path.parent.relative_to(prefix)) for path in prefix.rglob("*")
                if path.is_file() and path.suffix != ".h"}

    def test_a_component_is_installed_without_the_others(self):
        for component, folders in {
            "program": {"bin", "share/doc/tandem"},
            "man": {"share/man/man1", "share/man/man5"},
            "completions": {"share/bash-completion/completions", "share/zsh/vendor-completions",
                            "share/fish/vendor_completions.d"},
        }.items():
            prefix = self.work / component
            run("cmake", "--install", BUILD_DIR, "--prefix", prefix, "--component", component)
            self.assertEqual(self.folders(prefix), folders)
            self.assertEqual([path for path in prefix.rglob("*") if path.is_file() and path.stat().st_size == 0], [])

    def test_the_examples_fit_on_a_screen(self):
        for name, most in LINES_AT_MOST.items():
            self.assertLessEqual(len((SOURCE / name).read_text().splitlines()), most, name)


if __name__ == "__main__":
    BUILD_DIR = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
