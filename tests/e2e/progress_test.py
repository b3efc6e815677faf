#!/usr/bin/env python3
"""End-to-end tests of progress: bars on terminals, lines and JSON elsewhere, escape codes only on terminals.

`progress_test.py BINARY [unittest arguments]`.
"""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

import harness
from run_case import RunCase

CLEAR = b"\r\x1b[K"


INTERRUPTED = 75  # exit code


def on_terminal(arguments, environment, columns=100, stdout_is_terminal=True, until=None):
    """(exit code, bytes that the terminal got, bytes of a piped standard output)

    Interrupts the program as soon as `until(terminal's bytes, piped bytes)` is true.
    """
    control, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    process = subprocess.Popen([harness.BINARY, *map(str, arguments)], stdin=subprocess.DEVNULL, stderr=terminal,
                               stdout=terminal if stdout_is_terminal else subprocess.PIPE, env=environment)
    os.close(terminal)
    seen, piped = b"", b""
    deadline = time.monotonic() + harness.PATIENCE_S
    sources = [control] + ([] if stdout_is_terminal else [process.stdout.fileno()])
    while sources:
        ready, _, _ = select.select(sources, [], [], max(0, deadline - time.monotonic()))
        if not ready:
            process.kill()
            raise AssertionError(f"still running\n{seen!r}")
        for source in ready:
            try:
                data = os.read(source, 1 << 16)
            except OSError:  # the terminal's other end is closed
                data = b""
            if not data:
                sources.remove(source)
            elif source == control:
                seen += data
            else:
                piped += data
        if until and until(seen, piped):
            process.send_signal(signal.SIGINT)
            until = None
    os.close(control)
    code = process.wait(harness.PATIENCE_S)
    if process.stdout:
        process.stdout.close()
    return code, seen, piped


class Screen:
    """The lines that a terminal shows at the end, for the controls that a bar uses."""

    def __init__(self, data):
        self.lines, self.column = [""], 0
        text = data.decode()
        at = 0
        while at < len(text):
            if text.startswith("\x1b[K", at):
                self.lines[-1] = self.lines[-1][:self.column]
                at += 3
                continue
            if text.startswith("\x1b[", at):  # a colour
                at = text.index("m", at) + 1
                continue
            if text[at] == "\r":
                self.column = 0
            elif text[at] == "\n":
                self.lines.append("")
                self.column = 0
            else:
                line = self.lines[-1]
                self.lines[-1] = line[:self.column] + text[at] + line[self.column + 1:]
                self.column += 1
            at += 1


class Progress(RunCase):
    def environment(self, **more):
        environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
        environment.update({"XDG_CACHE_HOME": str(self.folder / "cache"), "TERM": "xterm"}, **more)
        return environment

    def run_of(self, name, steps):
        return ["train", self.spec, f"run_name={name}", f"steps={steps}", "log_period=300", "data.eval="]

    def endless_run(self, name):
        """For a test that interrupts it: no machine is fast enough to end it."""
        return self.run_of(name, 1_000_000_000)

    @staticmethod
    def has_bar(seen, _):
        return seen.count(CLEAR) >= 3 and seen.count(b"completed step") >= 5

    @staticmethod
    def has_steps(seen, piped):
        return (seen + piped).count(b"completed step") >= 20

    def run_piped(self, arguments, **environment):
        done = subprocess.run([harness.BINARY, *map(str, arguments)], capture_output=True, check=False,
                              env=self.environment(**environment))
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout, done.stderr

    def test_a_bar_stays_below_the_lines_of_a_run_and_is_gone_at_the_end(self):
        # A part of the bar is full, which has the colour.
        code, seen, _ = on_terminal(self.run_of("bar", 30_000), self.environment(),
                                    until=lambda seen, _: self.has_bar(seen, _) and b"\x1b[32m" in seen)
        self.assertEqual(code, INTERRUPTED, seen)
        self.assertIn(b"training bar", seen)
        self.assertIn(b" of 30000 steps", seen)
        self.assertIn(CLEAR, seen)
        self.assertIn(b"\x1b[32m", seen)
        lines = Screen(seen).lines
        steps = [line for line in lines if line.startswith("completed step")]
        self.assertGreaterEqual(len(steps), 5, lines)
        self.assertFalse([line for line in lines if "[#" in line or "training bar" in line], lines)
        for line in steps:
            self.assertRegex(line, r"^completed step: \d+, .*loss: [\d.]+$")

    def test_a_narrow_terminal_gets_a_bar_that_does_not_wrap(self):
        code, seen, _ = on_terminal(self.endless_run("narrow"), self.environment(), columns=40, until=self.has_bar)
        self.assertEqual(code, INTERRUPTED, seen)
        # The rest are lines of the run, which end in a line feed.
        bars = [part for part in seen.split(CLEAR)[1:] if part and b"\n" not in part]
        self.assertTrue(bars, seen)
        for bar in bars:
            plain = bar.replace(b"\x1b[32m", b"").replace(b"\x1b[0m", b"")
            self.assertLess(len(plain.decode()), 40, bar)

    def test_no_color_keeps_the_bar_without_colours(self):
        code, seen, _ = on_terminal(self.endless_run("plain"), self.environment(NO_COLOR="1"), until=self.has_bar)
        self.assertEqual(code, INTERRUPTED, seen)
        self.assertIn(CLEAR, seen)
        self.assertNotIn(b"\x1b[3", seen)
        self.assertNotIn(b"\x1b[0m", seen)

    def test_a_terminal_that_cannot_move_the_cursor_gets_no_escape_codes(self):
        for more in ({"TERM": "dumb"}, {"TERM": ""}):
            code, seen, _ = on_terminal(self.endless_run("dumb" + more["TERM"]), self.environment(**more),
                                        until=self.has_steps)
            self.assertEqual(code, INTERRUPTED, seen)
            self.assertNotIn(b"\x1b[K", seen)

    def test_quiet_shows_nothing_on_a_terminal(self):
        for number, flags in enumerate((["--quiet"], ["-q"], ["--progress", "none"])):
            code, seen, piped = on_terminal([*self.endless_run(f"quiet{number}"), *flags], self.environment(),
                                            stdout_is_terminal=False, until=self.has_steps)
            self.assertEqual(code, INTERRUPTED, seen)
            self.assertNotIn(b"\x1b[K", seen)
            self.assertNotIn(b"training quiet", seen)
            self.assertNotIn(b"\x1b", piped)

    def test_pipes_get_results_and_lines_without_escape_codes(self):
        out, faults = self.run_piped(self.run_of("piped", 1500), TERM="xterm-256color")
        self.assertIn(b"completed step: 0,", out)
        for text in (out, faults):
            self.assertNotIn(b"\x1b", text)
            self.assertNotIn(b"\r", text)

    def test_standard_output_of_a_run_is_the_same_with_and_without_a_terminal(self):
        _, _, piped = on_terminal(self.run_of("same-a", 1500), self.environment(), stdout_is_terminal=False)
        steps = [line for line in piped.decode().splitlines() if line.startswith("completed step")]
        self.assertEqual(len(steps), 6)
        self.assertNotIn(b"\x1b", piped)

    def test_json_progress_is_one_object_per_line_from_0_to_the_end(self):
        _, faults = self.run_piped([*self.run_of("json", 1500), "--progress", "json"])
        states = [json.loads(line) for line in faults.decode().splitlines() if line.startswith("{")]
        steps = [state for state in states if state["phase"] == "training json"]
        self.assertGreaterEqual(len(steps), 2)
        self.assertEqual((steps[0]["done"], steps[0]["is_finished"]), (0, False))
        self.assertEqual((steps[-1]["done"], steps[-1]["total"], steps[-1]["is_finished"]), (1500, 1500, True))
        self.assertEqual({state["event"] for state in states}, {"progress"})
        self.assertEqual({state["unit"] for state in steps}, {"steps"})
        self.assertEqual([state["done"] for state in steps], sorted(state["done"] for state in steps))

    def test_results_as_json_stay_alone_on_standard_output(self):
        out, faults = self.run_piped(["eval", self.folder / "run/hf", "--data", self.folder / "text.txt", "--json",
                                      "--progress", "json", "data.max_target_length=32"])
        self.assertIn("loss", json.loads(out))
        self.assertIn(b'"phase":"evaluating"', faults)

    def test_packing_and_conversion_report_their_bytes(self):
        target = self.folder / "out.gguf"
        out, faults = self.run_piped(["convert", self.folder / "run/hf", target, "--to", "gguf",
                                      "--progress", "json"], XDG_CACHE_HOME=str(self.folder / "fresh"))
        json.loads(out)
        states = [json.loads(line) for line in faults.decode().splitlines() if line.startswith("{")]
        ends = {state["phase"].split(" of ")[0]: state for state in states if state["is_finished"]}
        for phase in ("writing and verifying", "packing weights"):
            self.assertIn(phase, ends)
            self.assertEqual(ends[phase]["unit"], "bytes")
            self.assertEqual(ends[phase]["done"], ends[phase]["total"], ends[phase])

    def test_a_style_and_quiet_exclude_each_other(self):
        said = self.tandem("train", self.spec, "--quiet", "--progress", "json", code=2)
        self.assertIn("--quiet", said)
        self.assertIn("did you mean json?", self.tandem("train", self.spec, "--progress", "jsn", code=2))


if __name__ == "__main__":
    harness.main()
