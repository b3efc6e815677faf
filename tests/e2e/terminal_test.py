#!/usr/bin/env python3
"""`tandem run`: a chat in a pseudo-terminal, and one answer in a pipe.

`terminal_test.py BINARY [unittest arguments]`.
"""

import json
import os
import stat
import subprocess
import threading

import harness
from harness import ROOT, Case
from pseudo_terminal import (CTRL_A, CTRL_C, CTRL_D, CTRL_U, DOWN, ENTER, LEFT, UP, ScriptedServer,
                             Terminal)

MODEL = "tandem-stories"
STORY = "Once upon a time"


class ChatCase(Case):
    def setUp(self):
        super().setUp()
        self.terminals = []

    def tearDown(self):
        for terminal in self.terminals:
            terminal.close()
        super().tearDown()

    def open(self, *arguments, **options):
        terminal = Terminal(self.path, "run", *arguments, **options)
        self.terminals.append(terminal)
        return terminal

    def chat(self, *arguments, **options):
        terminal = self.open(MODEL, "--temperature", "0", "--max-tokens", "12", *arguments,
                             **options)
        terminal.prompt()
        return terminal

    def scripted(self):
        server = ScriptedServer()
        self.addCleanup(server.close)
        return server

    def scripted_chat(self, *arguments, **options):
        server = self.scripted()
        terminal = self.open("--url", server.url, *arguments, **options)
        terminal.prompt()
        return server, terminal


class LocalChat(ChatCase):
    def test_a_chat_answers_with_statistics_and_ends_with_control_d(self):
        chat = self.chat()
        self.assertIn("/help lists the commands", chat.seen)
        chat.ask("Tell me a story about a dog.", rf"{STORY}.*\[12 tokens, [\d.]+ tokens/s.*; cut")
        chat.send(CTRL_D)
        self.assertEqual(chat.end(), 0)
        self.assertTrue(chat.mode_is_restored())
        self.assertTrue(chat.seen.rstrip().endswith("\x1b[?2004l"), chat.seen[-40:])

    def test_the_next_turn_reuses_the_prefix_of_the_last(self):
        template = self.path / "all.jinja"
        template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
        chat = self.chat("--chat-template", template)
        chat.ask("Once there was a dog. " * 30, r"tokens/s.*; prompt \d+; cut")
        again = chat.ask("And a cat?", r"prompt (\d+) \((\d+) cached\)")
        self.assertGreater(int(again[2]), int(again[1]) // 2)

    def test_commands_show_and_change_the_chat(self):
        chat = self.chat()
        chat.ask("/help", "/regen.*Ctrl-C")
        chat.ask("/tokens", "no messages yet")
        chat.ask("/set temperature 0.5", "temperature = 0.5")
        chat.ask("/set temperature 7", "error:.*from 0 to 2, got '7'")
        chat.ask("/set temprature 1", "did you mean temperature")
        chat.ask("/set think on", "no such switch")
        chat.ask("/sytem x", "did you mean /system")
        chat.ask("/system Tell it briefly.", "set the system prompt")
        chat.ask("A dog.", r"tokens/s")
        chat.ask("/show", "system: Tell it briefly.*temperature: 0.5.*messages: 2")
        chat.ask("/tokens", r"\d+ tokens of 1024")
        chat.ask("/tokens a dog", r"\[.*dog\].*tokens of")
        chat.ask("/render", r"dog.*\[\d+ tokens\]")
        chat.ask("/undo", "removed the last question")
        chat.ask("/show", "messages: 0")
        chat.line("/bye")
        self.assertEqual(chat.end(), 0)

    def test_a_saved_chat_goes_on_in_another_process(self):
        chat = self.chat()
        chat.ask("Tell me a story about a dog.", "tokens/s")
        chat.ask(f"/save {self.path / 'chat.json'}", "saved")
        chat.ask(f"/save {self.path / 'chats.jsonl'}", "saved")
        chat.line("/exit")
        self.assertEqual(chat.end(), 0)
        saved = json.loads((self.path / "chat.json").read_text())
        self.assertEqual([m["role"] for m in saved["messages"]], ["user", "assistant"])
        self.assertEqual(saved["settings"], {"max_tokens": 12, "temperature": 0})
        example = json.loads((self.path / "chats.jsonl").read_text())
        self.assertEqual(example, {"messages": saved["messages"]})

        other = self.chat()
        other.ask(f"/load {self.path / 'missing'}", "error:")
        other.ask(f"/load {self.path / 'chat.json'}", "loaded 2 messages")
        other.ask("/show", "max_tokens: 12.*user: Tell me a story about a dog")

    def test_regen_gives_another_answer_under_a_fixed_seed(self):
        chat = self.open(MODEL, "--temperature", "1.5", "--max-tokens", "20", "--seed", "1")
        chat.prompt()
        pattern = r"\r\n(Once [^\[]*?|[^\r\n]*?)\r\n\x1b\[2m\[20 tokens"
        first = chat.ask("Tell me a story about a dog.", pattern)[1]
        second = chat.ask("/regen", pattern)[1]
        self.assertNotEqual(first, second)
        chat.ask("/show", "messages: 2")

    def test_a_model_directory_and_a_misspelt_model(self):
        chat = self.open(ROOT / "config" / "models" / MODEL, "A dog.", "--max-tokens", "5")
        self.assertEqual(chat.end(), 0)
        self.assertIn("5 tokens", chat.seen)
        wrong = self.open("tandem-storys")
        self.assertEqual(wrong.end(), 1)
        self.assertIn("tandem-stories", wrong.seen)


class Editing(ChatCase):
    def test_arrows_edit_the_line_and_go_through_the_history(self):
        server, chat = self.scripted_chat()
        server.answers = [["a"], ["b"], ["c"]]
        chat.ask("first", "a\r\n")
        chat.line("econd" + CTRL_A + "s")
        chat.expect("b\r\n")
        chat.prompt()
        self.assertEqual(server.messages()[-1], ("user", "second"))
        chat.send("draft" + UP + UP + DOWN + LEFT + "XY" + CTRL_U + "łódź 你" + ENTER)
        chat.expect("c\r\n")
        self.assertEqual(server.messages()[-1], ("user", "łódź 你d"))

    def test_the_history_survives_in_a_private_file(self):
        server, chat = self.scripted_chat()
        server.answers = [["a"], ["b"]]
        chat.ask("remember me", "a\r\n")
        chat.send(CTRL_D)
        chat.end()
        file = self.path / "state" / "tandem" / "history"
        self.assertEqual(stat.S_IMODE(file.stat().st_mode), 0o600)
        again = self.open("--url", server.url)
        again.prompt()
        again.send(UP + ENTER)
        again.expect("b\r\n")
        self.assertEqual(server.messages(), [("user", "remember me")])

    def test_several_lines_by_paste_by_quotes_and_by_backslash(self):
        server, chat = self.scripted_chat()
        server.answers = [["a"], ["b"], ["c"], ["d"]]
        chat.send("\x1b[200~one\rtwo\x1b[201~")
        chat.ask("", "a\r\n")
        self.assertEqual(server.messages()[-1], ("user", "one\ntwo"))
        chat.line('"""three')
        chat.line("/four")
        chat.ask('five"""', "b\r\n")
        self.assertEqual(server.messages()[-1], ("user", "three\n/four\nfive"))
        chat.line("six\\")
        chat.ask("seven", "c\r\n")
        self.assertEqual(server.messages()[-1], ("user", "six\nseven"))
        chat.send("eight\x1b\rnine")
        chat.ask("", "d\r\n")
        self.assertEqual(server.messages()[-1], ("user", "eight\nnine"))

    def test_control_c_at_the_prompt_clears_the_line_or_says_how_to_leave(self):
        server, chat = self.scripted_chat()
        chat.send("half a quest")
        chat.send(CTRL_C)
        chat.prompt()
        chat.send(CTRL_C)
        chat.expect("Ctrl-D or /exit leaves")
        chat.prompt()
        self.assertEqual(server.requests, [])
        chat.send(CTRL_D)
        self.assertEqual(chat.end(), 0)

    def test_tab_completes_a_command(self):
        _, chat = self.scripted_chat()
        chat.send("/cle\t" + ENTER)
        chat.expect("removed all messages")

    def test_a_terminal_without_escapes_gets_none(self):
        server, chat = self.scripted_chat_plain()
        server.answers = [["plain"]]
        chat.line("hello")
        chat.expect("plain\r\n")
        chat.send(CTRL_D)
        self.assertEqual(chat.end(), 0)
        self.assertNotIn("\x1b", chat.seen)

    def scripted_chat_plain(self):
        server = self.scripted()
        chat = self.open("--url", server.url, env={"TERM": "dumb"})
        chat.expect("leaves")
        return server, chat


class Interrupting(ChatCase):
    def test_control_c_stops_the_answer_and_keeps_what_came(self):
        server, chat = self.scripted_chat()
        server.answers = [["The beginning", threading.Event()], ["Goes on."]]
        chat.line("Tell me.")
        chat.expect("The beginning")
        chat.interrupt()
        chat.expect("stopped")
        chat.prompt()
        self.assertTrue(server.left.wait(harness.PATIENCE_S))
        chat.ask("Go on.", "Goes on.")
        self.assertEqual(server.messages(), [("user", "Tell me."), ("assistant", "The beginning"),
                                             ("user", "Go on.")])

    def test_a_question_without_any_answer_leaves_the_chat(self):
        server, chat = self.scripted_chat()
        server.answers = [[threading.Event()], ["b"]]
        chat.line("First.")
        self.wait_until("the request arrives", lambda: server.requests)
        chat.interrupt()
        chat.expect("stopped")
        chat.prompt()
        chat.ask("Second.", "b\r\n")
        self.assertEqual(server.messages(), [("user", "Second.")])

    def test_what_is_typed_during_an_answer_is_the_next_line(self):
        server, chat = self.scripted_chat()
        go = threading.Event()
        server.answers = [["one", go, "two"], ["three"]]
        chat.line("First.")
        chat.expect("one")
        chat.line("typed ahead")
        go.set()
        chat.expect("two")
        chat.expect("three\r\n")
        self.assertEqual(server.messages()[-1], ("user", "typed ahead"))

    def test_control_c_ends_a_single_answer_with_130(self):
        server = self.scripted()
        server.answers = [["Some", threading.Event()]]
        answer = self.open("--url", server.url, "scripted", "Tell me.")
        answer.expect("Some")
        answer.interrupt()
        self.assertEqual(answer.end(), 130)
        self.assertTrue(answer.mode_is_restored())

    def test_a_terminal_that_hangs_up_ends_the_program_and_restores_the_mode(self):
        _, chat = self.scripted_chat()
        chat.process.terminate()
        self.assertEqual(chat.end(), 128 + 15)
        self.assertTrue(chat.mode_is_restored())


class HostileOutput(ChatCase):
    EVIL = "\x1b[2J\x1b]0;title\x07\x9b31m\u202erm\r\x08\x7f"

    def test_no_control_of_the_model_reaches_the_terminal(self):
        server, chat = self.scripted_chat(env={"NO_COLOR": "1"})
        server.answers = [[{"reasoning_content": self.EVIL}, *self.EVIL, "end"]]
        chat.ask("Attack.", "end\r\n")
        shown = chat.seen[chat.seen.index("[thinking]"):chat.read_to].split("end\r\n")[0]
        for bad in "\x1b\x07\x9b\u202e\x08\x7f":
            self.assertNotIn(bad, shown)
        self.assertIn("\u241b[2J\u241b]0;title\u2407<U+009B>31m<U+202E>rm\u240d\u2408\u2421", shown)

    def test_the_error_of_a_server_is_filtered(self):
        server, chat = self.scripted_chat()
        server.status = (400, {"error": {"message": "no\x1b[2J\u202e", "code": "x"}})
        match = chat.ask("Fail.", r"error: (.*?)\r\n")
        self.assertIn("no\u241b[2J<U+202E>", match[1])
        chat.ask("/show", "messages: 0")

    def test_a_file_name_is_filtered(self):
        _, chat = self.scripted_chat()
        match = chat.ask("/load /tmp/\u202ex", r"error: (.*?)\r\n")
        self.assertIn("<U+202E>", match[1])

    def test_a_pipe_gets_the_bytes_of_the_model(self):
        server = self.scripted()
        server.answers = [[{"reasoning_content": "hidden"}, self.EVIL]]
        done = subprocess.run([harness.BINARY, "run", "--url", server.url, "scripted", "x"],
                              capture_output=True, stdin=subprocess.DEVNULL, check=True)
        self.assertEqual(done.stdout.decode(), self.EVIL + "\n")
        self.assertEqual(done.stderr, b"")


class Servers(ChatCase):
    def test_a_server_that_vanishes_leaves_the_part_and_a_chat_that_goes_on(self):
        server, chat = self.scripted_chat()
        server.answers = [["The part", ScriptedServer.VANISH], ["Back."]]
        chat.line("Tell me.")
        chat.expect("The part\r\n")
        chat.expect("has gone in the middle of its answer")
        chat.prompt()
        chat.ask("Again.", "Back.")
        self.assertEqual(server.messages()[1], ("assistant", "The part"))
        server.close()
        chat.ask("Still there?", "no server at http://127.0.0.1.*tandem serve")
        chat.ask("/show", "messages: 4")

    def test_a_real_server_answers_with_its_key(self):
        server = self.serve("--api-key", "secret")
        url = "http://%s:%d" % server.address
        refused = self.open("--url", url, "--model", MODEL, "Hi")
        self.assertEqual(refused.end(), 1)
        self.assertIn("TANDEM_API_KEY", refused.seen)
        (self.path / "key").write_text("secret\n")
        for more in ({"env": {"TANDEM_API_KEY": "secret"}}, {}):
            flags = [] if more else ["--key-file", self.path / "key"]
            chat = self.open("--url", url, *flags, "--temperature", "0", **more)
            chat.prompt()
            chat.ask("Tell me a story about a dog.", STORY)
            chat.send(CTRL_D)
            self.assertEqual(chat.end(), 0)
        wrong = self.open("--url", url, "--model", "tandem-storeis", "Hi",
                          env={"TANDEM_API_KEY": "secret"})
        self.assertEqual(wrong.end(), 1)
        self.assertIn("did you mean tandem-stories?", wrong.seen)

    def test_tls_is_checked(self):
        certificate, key = harness.make_certificate(self.path, "server")
        server = self.serve("--tls-cert", str(certificate), "--tls-key", str(key))
        url = "https://%s:%d" % server.address
        refused = self.open("--url", url, "Hi")
        self.assertNotEqual(refused.end(), 0)
        self.assertIn("certificate", refused.seen)
        chat = self.open("--url", url, "--max-tokens", "5", "--model", MODEL, "A dog.",
                         env={"SSL_CERT_FILE": str(certificate)})
        self.assertEqual(chat.end(), 0)
        self.assertIn("5 tokens", chat.seen)

    def test_a_thing_that_is_no_such_server_is_named(self):
        server = self.scripted()
        server.status = (200, [1, 2])
        broken = self.open("--url", server.url, "scripted", "Hi")
        self.assertNotEqual(broken.end(), 0)
        self.assertIn("not as a tandem server does", broken.seen)


class Pipes(ChatCase):
    def run_tandem(self, *arguments, stdin="", **env):
        environment = dict(os.environ, HOME=str(self.path), XDG_CACHE_HOME=str(self.path / "cache"),
                           **env)
        done = subprocess.run([harness.BINARY, "run", *map(str, arguments)], input=stdin,
                              capture_output=True, text=True, check=False, env=environment,
                              timeout=harness.PATIENCE_S)
        return done.returncode, done.stdout, done.stderr

    def test_only_the_answer_is_written(self):
        code, out, err = self.run_tandem(MODEL, "--temperature", "0", "--max-tokens", "8",
                                         stdin="Tell me a story about a dog.\n")
        self.assertEqual((code, err), (0, ""))
        self.assertTrue(out.startswith(STORY) and out.endswith("\n"), out)
        self.assertEqual(out.count("\n"), 1)

    def test_standard_input_follows_the_prompt(self):
        server = self.scripted()
        server.answers = [["ok"]]
        code, out, _ = self.run_tandem("--url", server.url, "scripted", "Summarise", "this:",
                                       "--system", "Be brief.", stdin="line 1\nline 2\n")
        self.assertEqual((code, out), (0, "ok\n"))
        self.assertEqual(server.messages(), [("system", "Be brief."),
                                             ("user", "Summarise this:\n\nline 1\nline 2")])

    def test_json_holds_text_reasoning_calls_usage_and_timings(self):
        server = self.scripted()
        call = {"tool_calls": [{"index": 0, "id": "c1", "type": "function",
                                "function": {"name": "add", "arguments": "{\"a\""}}]}
        rest = {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}
        server.answers = [[{"reasoning_content": "why"}, "so", call, rest]]
        (self.path / "tools.json").write_text('[{"type": "function", "function": {"name": "add"}}]')
        code, out, err = self.run_tandem("--url", server.url, "scripted", "x", "--json",
                                         "--tools", self.path / "tools.json", "--seed", "5",
                                         "--no-think", "--quiet")
        self.assertEqual((code, err), (0, ""))
        answer = json.loads(out)
        self.assertEqual((answer["model"], answer["text"], answer["reasoning"],
                          answer["finish_reason"]), ("scripted", "so", "why", "stop"))
        self.assertEqual(answer["tool_calls"], [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}])
        self.assertEqual(answer["usage"], {"prompt_tokens": 7, "cached_tokens": 3,
                                           "completion_tokens": 5, "reasoning_tokens": 0})
        self.assertGreater(answer["timings"]["total_s"], 0)
        body = server.requests[-1][1]
        self.assertEqual((body["seed"], body["chat_template_kwargs"], len(body["tools"])),
                         (5, {"enable_thinking": False}, 1))

    def test_faults_have_the_exit_codes_of_the_table(self):
        server = self.scripted()
        server.answers = [["part", ScriptedServer.VANISH]]
        code, out, err = self.run_tandem("--url", server.url, "scripted", "x")
        self.assertEqual((code, out), (74, "part\n"))
        self.assertIn("has gone in the middle", err)
        self.assertEqual(self.run_tandem("--url", "http://127.0.0.1:1", "m", "x")[0], 74)
        self.assertEqual(self.run_tandem("--url", "nonsense", "m", "x")[0], 2)
        self.assertEqual(self.run_tandem(MODEL)[0], 2)
        self.assertEqual(self.run_tandem(MODEL, "x", "--temperature", "9")[0], 2)
        self.assertEqual(self.run_tandem(MODEL, "x", "--think", "--no-think")[0], 2)
        self.assertEqual(self.run_tandem(self.path / "missing.gguf", "x")[0], 1)

    def test_a_model_without_a_template_continues_the_text(self):
        bare = self.path / "bare"
        bare.mkdir()
        for file in (ROOT / "config" / "models" / MODEL).iterdir():
            if file.suffix == ".safetensors" or file.name in ("config.json", "tokenizer.json"):
                (bare / file.name).symlink_to(file)
        code, out, _ = self.run_tandem(bare, "Once upon a", "--max-tokens", "4", "--temperature",
                                       "0", "--log-level", "error")
        self.assertEqual(code, 0)
        self.assertTrue(out.startswith(" time"), out)

    def test_an_output_that_is_full_is_an_error(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([harness.BINARY, "run", MODEL, "A dog."], stdout=full,
                                  stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
                                  check=False)
        self.assertEqual(done.returncode, 74)
        self.assertIn("standard output", done.stderr)


if __name__ == "__main__":
    harness.main()
