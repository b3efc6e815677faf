#!/usr/bin/env python3
"""The shell examples of the documentation, run in order in one shell with a fresh server.

A comment `<!-- test: … -->` on the line before a block changes its expectation: `400 CODE` is a
refusal with that code, `exit N` is a command that ends with N, `not run, REASON` omits the block.

`docs_test.py BINARY [unittest arguments]`.
"""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import unittest

import harness
from harness import ADMIN_KEY, PATIENCE_S, ROOT, Case

BLOCK = re.compile(r"(?m)^(?:<!-- test: (?P<mark>[^\n]+) -->\n)?```sh\n(?P<text>.*?)^```$", re.S)
MANUAL = ROOT / "config" / "manual"
END = "@@@ end of block"
# A refusal stops the script, and no command may hang.
PRELUDE = f"""
set -euo pipefail
curl() {{ command curl -sS --max-time {PATIENCE_S} --fail-with-body "$@"; }}
# Reads to the end: a writer that meets a closed pipe would stop the script.
head() {{ command head "$@"; cat > /dev/null; }}
"""
# Replaces ./serve, which builds first and then serves until it is stopped. Starts the program with
# the same arguments on a free port, waits until it listens, and stops it.
SERVE = """#!/usr/bin/env bash
set -euo pipefail
here=$(dirname "$0")
coproc server { exec "$here/build/release/tandem" serve --port 0 --data-dir "$here/second" "$@"; }
pid=$server_PID
read -r line <&"${server[0]}" || { wait "$pid"; exit 1; }
case "$line" in "listening on "*) kill -TERM "$pid"; wait "$pid" ;; *) kill "$pid"; exit 1 ;; esac
"""


class Block:
    def __init__(self, match):
        self.text = match["text"]
        self.mark = match["mark"] or ""
        self.refusal = self.mark[len("400 "):] if self.mark.startswith("400 ") else None
        self.is_run = not self.mark.startswith("not run, ")
        self.code = 22 if self.refusal else 0  # of the last command; 22 is curl's for a refusal
        if self.mark.startswith("exit "):
            self.code = int(self.mark[len("exit "):])

    def script(self):
        if self.code == 0:
            return f"{self.text}\necho; echo '{END}'\n"
        return f"code=0; {{ {self.text} }} || code=$?\n[ $code = {self.code} ]\necho; echo '{END}'\n"


def blocks_of(file):
    return [Block(match) for match in BLOCK.finditer((ROOT / file).read_text())]


def run_script(case, blocks, address, folder, environment):
    """Runs the blocks in one shell; returns the output of each."""
    script = PRELUDE + "".join(block.script() for block in blocks)
    script = script.replace("127.0.0.1:8080", address)
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, check=False)
    outputs = done.stdout.split(END + "\n")
    failed = blocks[min(len(outputs), len(blocks)) - 1]
    case.assertEqual(done.returncode, 0,
                     f"{failed.text}{outputs[-1][-2000:]}{done.stderr[-2000:]}")
    case.assertEqual(len(outputs), len(blocks) + 1)
    for block, output in zip(blocks, outputs):
        if block.refusal:
            case.assertEqual(json.loads(output)["error"]["code"], block.refusal, block.text)
    return dict(zip((block.text for block in blocks), outputs))


class Documentation(Case):
    def setUp(self):
        super().setUp()
        self.root = self.path / "root"
        (self.root / "build" / "release").mkdir(parents=True)
        (self.root / "build" / "release" / "tandem").symlink_to(pathlib.Path(harness.BINARY).resolve())
        shutil.copytree(ROOT / "config", self.root / "config")
        (self.root / "serve").write_text(SERVE)
        (self.root / "serve").chmod(0o755)
        keys = self.path / "home" / ".local" / "share" / "tandem"
        keys.mkdir(parents=True)
        (keys / "admin.key").write_text(ADMIN_KEY)
        self.server = self.serve("--model-root", str(self.root), "--log-format", "json",
                                 "--log-level", "debug")

    def run_blocks(self, file):
        """The output of each executed block."""
        blocks = [block for block in blocks_of(file) if block.is_run]
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.path / "home"),
                       "XDG_CACHE_HOME": str(self.path / "cache"), "LANG": "C.UTF-8"}
        return run_script(self, blocks, "{}:{}".format(*self.server.address), self.root,
                          environment)

    def routes_asked(self):
        asked = set()
        for line in self.server.log_path.read_text().splitlines():
            row = json.loads(line)
            if row.get("event") == "request" or "route" in row:
                asked.add(f"{row['method']} {row['route'].replace('+', '')}")
        return asked

    def test_the_api_by_example(self):
        outputs = self.run_blocks("server/API.md")

        events = next(output for text, output in outputs.items() if "events?stream=true" in text)
        self.assertIn("successfully completed", events)
        logs = [output for text, output in outputs.items() if "follow=true" in text]
        self.assertEqual(len(logs), 3)
        for log in logs:
            self.assertIn('"status":"succeeded"', log)
        document = self.server.request("GET", "/openapi.json")[2]
        described = {f"{method.upper()} {path}" for path, item in document["paths"].items()
                     for method in item if method in ("get", "post", "put", "delete", "patch")}
        self.assertEqual(described - self.routes_asked(), set(), "endpoints without an example")

        # The last blocks deleted a model, which stays deleted; the fine-tuned one returns.
        self.assertEqual(self.server.request("GET", "/v1/models/my-stories", admin=True)[0], 404)
        self.assertEqual(self.server.stop(), 0)
        server = self.serve("--model-root", str(self.root))
        ids = [model["id"] for model in server.request("GET", "/v1/models", admin=True)[2]["data"]]
        # The aliases of the Messages example stay too.
        self.assertEqual([name.split(":")[0] for name in ids],
                         ["tandem-stories", "ft", "claude-haiku-4-5", "claude-sonnet-4-5"])

    def test_the_readme(self):
        self.run_blocks("README.md")

    def test_the_server_accepts_the_example_of_each_body(self):
        document = self.server.request("GET", "/openapi.json")[2]
        n_answered = 0
        for path, item in document["paths"].items():
            for method in ("post", "put"):
                media = item.get(method, {}).get("requestBody", {}).get("content", {})
                if "application/json" not in media:
                    continue
                status, headers, answer = self.server.request(
                    method.upper(), path.replace("{name}", "prod"),
                    media["application/json"]["example"], admin=True)
                n_answered += status < 300
                # Some examples name a file or model that only their reader has, and the embedded
                # model cannot fill in text.
                allowed = "^unsupported_parameter$" if path == "/infill" else "_not_found$"
                if status >= 300:
                    self.assertRegex(answer["error"]["code"], allowed, (path, answer))
                self.assertIsNone(headers.get("x-ignored-params"), path)
        self.assertGreater(n_answered, 12)

    def test_hardly_a_block_is_left_out_and_each_says_why(self):
        limits = [("server/API.md", 0), ("README.md", 1)]
        limits += [(page.relative_to(ROOT), 2) for page in pages()]
        for file, most in limits:
            blocks = blocks_of(file)
            self.assertEqual(len(blocks), (ROOT / file).read_text().count("```sh\n"), file)
            self.assertLessEqual(sum(not block.is_run for block in blocks), most, file)
            for block in blocks:
                self.assertRegex(block.mark, r"^(|400 [a-z_]+|exit [0-9]+|not run, \w.{10,})$")


def pages():
    """The pages of the manual in the order of its table of contents."""
    index = MANUAL / "README.md"
    names = re.findall(r"\]\(([\w-]+\.md)\)", index.read_text())
    return [index] + [MANUAL / name for name in dict.fromkeys(names)]


class Manual(Case):
    """Every page runs by itself in a new directory and home; the pages share a cache."""

    def setUp(self):
        super().setUp()
        self.programs = self.path / "bin"
        self.programs.mkdir()
        (self.programs / "tandem").symlink_to(ROOT / "tests" / "e2e" / "manual_tandem.py")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        self.environment = {
            "PATH": f"{self.programs}:{os.environ['PATH']}", "LANG": "C.UTF-8",
            "XDG_CACHE_HOME": str(self.path / "cache"),
            "TEST_BINARY": str(pathlib.Path(harness.BINARY).resolve()), "TEST_PORT": str(port),
            "TEST_DIR": str(self.path), "TANDEM_URL": f"http://{self.address}"}

    def tearDown(self):
        self.stop_server()
        super().tearDown()

    def stop_server(self):
        subprocess.run([str(self.programs / "tandem"), "--stop-server"], env=self.environment,
                       check=True)

    def run_page(self, page):
        folder = self.path / page.stem
        folder.mkdir()
        shutil.copytree(ROOT / "config", folder / "config")
        blocks = [block for block in blocks_of(page.relative_to(ROOT)) if block.is_run]
        if not blocks:
            return {}
        outputs = run_script(self, blocks, self.address, folder,
                             dict(self.environment, HOME=str(folder)))
        self.stop_server()
        return outputs

    def test_every_page_runs(self):
        outputs = {}
        for page in pages():
            with self.subTest(page=page.name):
                outputs[page.stem] = self.run_page(page)

        diff = next(output for text, output in outputs["maxtext"].items() if "checkpoint diff" in text)
        self.assertIn(" 0 differences", diff)
        self.assertIn('"state": "not_measured"', diff)
        exact = next(output for text, output in outputs["maxtext"].items() if "--scan" in text)
        self.assertIn('"mean_kl": 0.0,', exact)
        events = next(output for text, output in outputs["fine-tune"].items() if "stream=true" in text)
        self.assertIn("successfully completed", events)

    def test_the_index_lists_every_page(self):
        self.assertEqual(sorted(pages()), sorted(MANUAL.glob("*.md")))


def help_of(*verb):
    return subprocess.run([harness.BINARY, *verb, "--help"], text=True, capture_output=True,
                          check=True).stdout


def flags_of_verbs():
    """{"serve": {"--model", …}, "keys create": …}: what --help shows for each verb."""
    flags = {}
    ahead = [()]
    while ahead:
        verb = ahead.pop()
        text = help_of(*verb)
        flags[" ".join(verb)] = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text))
        _, _, inner = text.partition("\nSubcommands:\n")
        names = re.findall(r"(?m)^  ([a-z][a-z0-9-]*)(?: |$)", inner.split("\n\n")[0])
        ahead += [(*verb, name) for name in names]
    return flags


def commands_of(text):
    """The words after `tandem` of each command in a shell block."""
    for line in text.replace("\\\n", " ").splitlines():
        for command in re.findall(r"(?:^|\$\(|\| )\s*(?:\S*/)?tandem ([^|;)]*)", line):
            yield re.sub(r"\s#.*", "", command).split()


def quoted_flags(page):
    """Flags in `…` outside blocks. The first column of a page about another program is not ours."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text())
    for line in text.splitlines():
        if page.name.startswith("from-") and line.startswith("|"):
            line = line.split("|", 2)[2]
        for span in re.findall(r"`([^`]+)`", line):
            if span.split()[0] != "tandem" and not span.startswith("--"):
                continue  # a command of another program
            yield from re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", span)


def anchors_of(page, level="#+"):
    """What links to the headings of a page say, in order."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text())
    return [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
            for title in re.findall(rf"(?m)^{level} (.+)$", text)]


class Words(unittest.TestCase):
    """Names in README.md and the manual, compared with those of the program."""

    PAGES = [ROOT / "README.md", *pages()]

    def test_every_flag_is_one_of_the_program(self):
        flags = flags_of_verbs()
        self.assertGreater(len(flags), 20)
        everything = set().union(*flags.values())
        n_checked = 0
        for page in self.PAGES:
            for flag in quoted_flags(page):
                n_checked += 1
                self.assertTrue(flag in everything, f"{page.name}: no verb has {flag}")
            for block in blocks_of(page.relative_to(ROOT)):
                for words in commands_of(block.text):
                    verb = " ".join(words[:2]) if " ".join(words[:2]) in flags else words[0]
                    self.assertIn(verb, flags, f"{page.name}: {' '.join(words)}")
                    for word in words:
                        if re.match(r"--[a-z]", word):
                            n_checked += 1
                            self.assertTrue(word.split("=")[0] in flags[verb],
                                            f"{page.name}: {verb} has no {word}")
        self.assertGreater(n_checked, 100)

    def test_every_flag_of_serve_is_in_the_table_of_options(self):
        table = (ROOT / "config" / "README.md").read_text()
        keys = {f"--{key}" for key in re.findall(r"(?m)^\| `([a-z-]+)` \|", table)}
        for page in self.PAGES:
            for block in blocks_of(page.relative_to(ROOT)):
                for words in commands_of(block.text):
                    if words[0] == "serve":
                        given = {word.split("=")[0] for word in words if word.startswith("--")}
                        self.assertEqual(given - keys - {"--config", "--check-config"}, set(), page.name)

    def test_every_link_leads_somewhere(self):
        n_checked = 0
        for page in [*self.PAGES, ROOT / "server" / "API.md"]:
            text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text())
            for link in re.findall(r"\]\((?!https?://)([^)]+)\)", text):
                path, _, anchor = link.partition("#")
                target = (page.parent / path).resolve() if path else page
                self.assertTrue(target.exists(), f"{page.name}: {link}")
                if anchor:
                    self.assertTrue(anchor in anchors_of(target), f"{page.name}: {link}")
                n_checked += 1
        self.assertGreater(n_checked, 80)

    def test_the_contents_of_the_api_list_every_section(self):
        page = ROOT / "server" / "API.md"
        text = page.read_text()
        sections = anchors_of(page, "##")
        contents = text.partition("**Contents.**")[2].partition("\n\n")[0]

        self.assertEqual(re.findall(r"\]\(#([\w-]+)\)", contents), sections)
        self.assertEqual(sections[-1], "administration")  # whose last part makes the server need keys

    def test_every_key_of_a_spec_is_in_the_list_of_keys(self):
        listed = (ROOT / "training" / "README.md").read_text()
        keys = set(re.findall(r"`([a-z_.]+)`", listed))
        n_checked = 0
        for page in self.PAGES:
            for key in re.findall(r"`((?:train|data|model|lora|metrics|checkpoint)\.[a-z_.]+)[=:`]",
                                  page.read_text()):
                if not key.endswith((".safetensors", ".jsonl", ".sft", ".dpo", ".pretrain")):
                    n_checked += 1
                    self.assertTrue(key in keys, f"{page.name}: {key}")
        self.assertGreater(n_checked, 5)


if __name__ == "__main__":
    harness.main()
