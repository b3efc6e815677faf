#!/usr/bin/env python3
"""End-to-end tests of what the program says about itself: help, man pages, completions, first screen, exit codes.

`usage_test.py BINARY [unittest arguments]`.
"""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import harness

ROOT = harness.ROOT


def tandem(*arguments, environment=None):
    """(exit code, standard output, standard error)"""
    done = subprocess.run([harness.BINARY, *map(str, arguments)], capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL, env=environment)
    return done.returncode, done.stdout, done.stderr


def verbs_in(text):
    return re.findall(r"(?m)^  ([a-z-]+) ", text.split("Subcommands:\n", 1)[1].split("\n\n")[0]) \
        if "Subcommands:\n" in text else []


def all_verbs():
    """Every verb and nested verb, as lists of words."""
    found, waiting = [], [[]]
    while waiting:
        path = waiting.pop()
        nested = verbs_in(tandem("help", *path)[1])
        if path:
            found.append(path)
        waiting.extend([*path, name] for name in nested)
    return sorted(found)


class Help(unittest.TestCase):
    def test_the_program_alone_shows_the_first_commands(self):
        code, text, fault = tandem()
        self.assertEqual((code, fault), (0, ""))
        for command in ("tandem serve", "tandem train", "tandem help"):
            self.assertIn(command, text)
        self.assertLessEqual(len(text.splitlines()), 12)

    def test_every_verb_without_verbs_has_an_example_that_begins_with_it(self):
        for path in all_verbs():
            text = tandem("help", *path)[1]
            if verbs_in(text) or path[0] == "bench" or len(path) > 2:
                continue
            with self.subTest(" ".join(path)):
                self.assertIn("\nExamples:\n  ", text)
                for command in re.findall(r"(?m)^  (tandem .*)$", text.split("Examples:\n")[1]):
                    self.assertTrue(command.startswith("tandem " + " ".join(path)), command)

    def test_defaults_and_choices_are_words(self):
        text = " ".join(tandem("help", "generate")[1].split())
        self.assertIn("(one of auto, f32, bf16, int8, int4; default: auto)", text)
        self.assertIn("default: 128", text)
        self.assertNotIn("TEXT:{", text)
        self.assertNotIn("INT in [", text)

    def test_lines_fit_a_narrow_page(self):
        for path in all_verbs():
            for line in tandem("help", *path)[1].splitlines():
                self.assertLessEqual(len(line), 120, f"{path}: {line}")


class Completion(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scripts = {}
        for shell in ("bash", "zsh", "fish"):
            code, cls.scripts[shell], fault = tandem("completion", shell)
            assert (code, fault) == (0, ""), fault
        cls.directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.directory.cleanup)
        cls.folder = pathlib.Path(cls.directory.name)
        for shell, text in cls.scripts.items():
            (cls.folder / f"script.{shell}").write_text(text)
        (cls.folder / "a file.txt").touch()
        (cls.folder / "folder").mkdir()

    def completed(self, *words):
        """What bash offers for the last word. The script must not need the program."""
        program = (f'source {self.folder}/script.bash; cd {self.folder}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
                   '_tandem; printf "%s\\n" "${COMPREPLY[@]}"')
        done = subprocess.run(["bash", "--norc", "-c", program, "bash", "tandem", *words], check=False, text=True,
                              capture_output=True, env={"PATH": "/usr/bin:/bin"})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return [word for word in done.stdout.splitlines() if word]

    def test_bash_completes_verbs_and_nested_verbs(self):
        self.assertEqual(self.completed("ser"), ["serve"])
        self.assertEqual(set(self.completed("")), {path[0] for path in all_verbs()})
        self.assertEqual(self.completed("checkpoint", "ve"), ["verify"])
        self.assertEqual(self.completed("help", "quant"), ["quantize"])
        self.assertEqual(self.completed("man", "tandem.y"), ["tandem.yaml"])

    def test_bash_completes_the_flags_of_every_verb(self):
        for path in all_verbs():
            with self.subTest(" ".join(path)):
                text = tandem("help", *path)[1].split("\nFlags:\n", 1)[1].split("\n\n")[0]
                flags = {flag for line in re.findall(r"(?m)^  (-.*?)(?:  .*)?$", text)
                         for flag in re.findall(r"--[a-z0-9-]+", line)}
                self.assertTrue(flags)
                self.assertEqual(set(self.completed(*path, "--")), flags)

    def test_bash_completes_values(self):
        dtypes = ["auto", "f32", "bf16", "int8", "int4"]
        self.assertEqual(self.completed("serve", "--dtype", ""), dtypes)
        self.assertEqual(self.completed("generate", "--dtype", "int"), ["int8", "int4"])
        # bash splits --dtype=int into three words.
        self.assertEqual(self.completed("generate", "--dtype", "=", "int"), ["int8", "int4"])
        self.assertEqual(self.completed("generate", "--dtype", "="), dtypes)
        self.assertEqual(self.completed("completion", ""), ["bash", "zsh", "fish"])
        self.assertEqual(self.completed("serve", "--port", ""), [])

    def test_bash_completes_files_and_directories(self):
        self.assertEqual(self.completed("serve", "--model", "a"), ["a file.txt"])
        self.assertEqual(self.completed("serve", "--data-dir", ""), ["folder"])
        self.assertEqual(self.completed("train", "fol"), ["folder"])

    def test_zsh_accepts_its_script(self):
        if shutil.which("zsh") is None:
            self.skipTest("zsh is not installed")
        done = subprocess.run(["zsh", "-n", self.folder / "script.zsh"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_fish_accepts_its_script(self):
        if shutil.which("fish") is None:
            self.skipTest("fish is not installed")
        done = subprocess.run(["fish", "--no-execute", self.folder / "script.fish"], capture_output=True, text=True,
                              check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_the_scripts_of_all_shells_name_all_verbs(self):
        for shell, text in self.scripts.items():
            for path in all_verbs():
                self.assertRegex(text, rf"\b{re.escape(path[-1])}\b", shell)


class ManPages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.directory.cleanup)
        cls.folder = pathlib.Path(cls.directory.name)
        code, cls.listed, fault = tandem("man", "--dir", cls.folder)
        assert (code, fault) == (0, ""), fault

    def test_pages_are_those_of_the_verbs_the_program_and_the_configuration(self):
        names = {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}
        expected = {f"man1/tandem-{name}.1" for name in verbs_in(tandem("help")[1])}
        self.assertEqual(names, expected | {"man1/tandem.1", "man5/tandem.yaml.5"})
        self.assertEqual(set(self.listed.split()), {str(self.folder / name) for name in names})

    def test_a_page_is_printed_by_name(self):
        for words, file in (([], "man1/tandem.1"), (["tandem"], "man1/tandem.1"), (["serve"], "man1/tandem-serve.1"),
                            (["tandem-serve"], "man1/tandem-serve.1"), (["tandem.yaml"], "man5/tandem.yaml.5")):
            self.assertEqual(tandem("man", *words)[1], (self.folder / file).read_text())
        code, _, fault = tandem("man", "srve")
        self.assertEqual(code, 2)
        self.assertIn("did you mean serve?", fault)

    def test_groff_formats_every_page_without_a_warning(self):
        if shutil.which("groff") is None:
            self.skipTest("groff is not installed")
        for page in self.folder.rglob("*.[15]"):
            done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-rLL=100n", page], capture_output=True,
                                  text=True, check=False)
            # A long word, such as the choices of a flag, cannot be adjusted to the line.
            warnings = [line for line in done.stderr.splitlines()
                        if "can't break line" not in line and "cannot adjust line" not in line
                        and "cannot break line" not in line]
            self.assertEqual((done.returncode, warnings), (0, []), page.name)
            # The terminal device prints bold as overstrikes.
            self.assertIn("NAME", re.sub(".\x08", "", done.stdout))

    def test_mandoc_finds_no_error(self):
        if shutil.which("mandoc") is None:
            self.skipTest("mandoc is not installed")
        for page in self.folder.rglob("*.[15]"):
            done = subprocess.run(["mandoc", "-T", "lint", "-W", "error", page], capture_output=True, text=True,
                                  check=False)
            self.assertEqual(done.returncode, 0, done.stdout)

    def test_the_page_of_serve_has_every_flag(self):
        page = (self.folder / "man1/tandem-serve.1").read_text().replace("\\", "")
        for flag in re.findall(r"(?m)^\| `([a-z-]+)` \|", (ROOT / "config" / "README.md").read_text()):
            self.assertIn(f"--{flag}fR", page)


class Typos(unittest.TestCase):
    def refused(self, *arguments, code=2, environment=None):
        got, out, fault = tandem(*arguments, environment=environment)
        self.assertEqual((got, out), (code, ""), fault)
        self.assertTrue(fault.startswith("tandem: "), fault)
        return fault

    def test_a_misspelt_value_names_the_nearest(self):
        for words, nearest in ((["generate", "--dtype", "int9", "-p", "x"], "int8"),
                               (["serve", "--dtype", "bf15"], "bf16"),
                               (["serve", "--log-level", "wran"], "warn"),
                               (["completion", "bahs"], "bash"),
                               (["quantize", "--dtype", "itn4"], "int4")):
            fault = self.refused(*words)
            self.assertIn("must be one of", fault)
            self.assertIn(f"did you mean {nearest}?", fault)

    def test_a_misspelt_key_of_a_file_or_spec_names_the_nearest(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "tandem.yaml"
            file.write_text("prot: 9000\n")
            fault = self.refused("serve", "--config", file)
            self.assertIn("tandem.yaml:1: unknown key 'prot'", fault)
            self.assertIn("did you mean 'port'?", fault)
        self.assertIn("did you mean", self.refused("train", "leraning_rate=1"))
        self.assertIn("did you mean adamw?", self.refused("plan", "train.optimizer.type=adamww", "steps=1"))

    def test_a_missing_argument_is_named_with_its_meaning(self):
        fault = self.refused("checkpoint", "ls")
        self.assertIn("'tandem checkpoint ls' needs path: ", fault)
        self.assertIn("Run 'tandem help checkpoint ls'", fault)
        fault = self.refused("checkpoint")
        self.assertIn("needs a verb: ", fault)
        self.assertIn("verify", fault)
        self.assertIn("did you mean --version?", self.refused("--verison"))

    def test_an_unknown_model_names_a_near_one(self):
        self.assertIn("did you mean tandem-stories?",
                      self.refused("generate", "-m", "tandem-storys", "-p", "x", code=1))
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(ROOT / "config" / "models" / "tandem-stories", pathlib.Path(folder) / "stories")
            self.assertIn(f"did you mean {folder}/stories?",
                          self.refused("generate", "-m", f"{folder}/storys", "-p", "x", code=1))

    def test_a_directory_without_a_model_says_what_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            fault = self.refused("generate", "-m", folder, "-p", "x", code=1)
            self.assertIn("config.json", fault)
            (pathlib.Path(folder) / "config.json").write_text("{}")
            self.assertIn("model.safetensors", self.refused("generate", "-m", folder, "-p", "x", code=1))


class ExitCodes(unittest.TestCase):
    """The table of server/README.md holds for every verb."""

    def test_the_help_of_every_verb_succeeds_and_lists_the_codes(self):
        codes = set(re.findall(r"(?m)^\| (\d+) \|", (ROOT / "server" / "README.md").read_text()))
        for path in all_verbs():
            with self.subTest(" ".join(path)):
                code, text, fault = tandem(*path, "--help")
                self.assertEqual((code, fault), (0, ""))
                listed = " ".join(text.split("Exit codes:")[1].split())
                self.assertEqual(set(re.findall(r"(?:^|; )(\d+) ", listed)), codes)

    def test_wrong_usage_of_every_verb_is_2_and_leaves_standard_output_empty(self):
        for path in all_verbs():
            with self.subTest(" ".join(path)):
                code, out, fault = tandem(*path, "--no-such-flag")
                self.assertEqual((code, out), (2, ""), fault)
                self.assertIn("has no flag --no-such-flag", fault)

    def test_a_missing_input_is_1_or_a_file_error(self):
        with tempfile.TemporaryDirectory() as folder:
            nothing = pathlib.Path(folder) / "nothing"
            spec = ROOT / "config" / "presets" / "continue-stories.yaml"
            for words, codes in (
                    (["generate", "-m", nothing, "-p", "x"], {1}),
                    (["quantize", "-m", nothing, "--dtype", "int8"], {1}),
                    (["eval", nothing, "--data", spec], {1}), (["convert", nothing, nothing / "out"], {1}),
                    (["checkpoint", "ls", nothing], {1}), (["checkpoint", "verify", nothing], {1}),
                    (["checkpoint", "hash", nothing], {1}), (["checkpoint", "diff", nothing, nothing], {1}),
                    (["tokenizer", "encode", "-t", nothing, "x"], {1, 74}),
                    (["tokenizer", "train", nothing], {2}), (["train", nothing], {1, 2, 74}),
                    (["plan", nothing], {1, 2, 74}), (["profile", nothing], {1, 2, 74}),
                    (["data", "check", nothing], {1, 2, 74}), (["config", "show", nothing], {1, 2, 74}),
                    (["pipeline", "run", nothing], {1, 2, 74}), (["serve", "--model", nothing, "--port", "0"], {1}),
                    (["pull", "no slash"], {2})):
                with self.subTest(" ".join(map(str, words))):
                    environment = {**os.environ, "XDG_DATA_HOME": folder, "XDG_CACHE_HOME": folder}
                    code, _, fault = tandem(*words, environment=environment)
                    self.assertIn(code, codes, fault)
                    self.assertTrue(fault, words)


if __name__ == "__main__":
    harness.main()
