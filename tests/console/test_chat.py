"""The chat screen: real answers of the embedded model, and hostile ones that no model would give."""

import json
import subprocess
import unittest

from support import HOSTILE_NAME, MODEL, OPEN_URL, ConsoleCase, chunk, sse

# Everything that has ever been taken for markup, and text that lies about its order.
HOSTILE = ("<img src=x onerror=alert(1)><script>alert(2)</script>"
           "[link](javascript:alert(3)) <a href='javascript:alert(4)'>a</a>\n\n"
           "```html\n<iframe srcdoc='<script>alert(5)</script>'></iframe>\n```\n"
           "| <b>a</b> | b |\n|---|---|\n| <svg onload=alert(6)> | `<i>` |\n\n"
           "\x1b[31mred\x1b[0m \x07 \u202etxt.exe\u202c \u2066x\u2069 \u200b hidden \udb40\udc41 \x00")


class RealAnswers(ConsoleCase):
    def test_an_answer_streams_and_shows_its_speed(self):
        page = self.open()

        self.ask(page)

        answer = page.locator(".message.answer")
        self.assertGreater(len(answer.locator(".md").inner_text()), 20)
        stats = answer.locator(".stats").inner_text()
        for part in ("tokens", "tokens/s", "first token after", "prompt"):
            self.assertIn(part, stats)
        self.check_axe(page)

    def test_messages_branch_by_regenerating_and_editing(self):
        page = self.open()
        self.ask(page)
        first = page.locator(".message.answer .md").inner_text()
        page.get_by_role("button", name="Regenerate").click()
        self.settled(page)
        page.get_by_text("2/2").wait_for()
        page.get_by_role("button", name="Previous branch").click()
        page.get_by_text("1/2").wait_for()
        self.assertEqual(page.locator(".message.answer .md").inner_text(), first)

        page.locator(".message.prompt").get_by_role("button", name="Edit").click()
        page.get_by_label("Text of the message").fill("Tell me a story about a cat.")
        page.get_by_role("button", name="Send as a branch").click()
        self.settled(page)
        self.assertEqual(page.locator(".message.prompt .bubble").inner_text(),
                         "Tell me a story about a cat.")
        page.locator(".message.answer").get_by_role("button", name="Edit").click()
        page.get_by_label("Text of the message").fill("My own words.")
        page.get_by_role("button", name="Save as a branch").click()
        self.assertEqual(page.locator(".message.answer .md").inner_text(), "My own words.")
        bodies = self.answer_with(page, chunk(content="fine"))
        self.ask(page, "And then?")
        self.assertEqual([m["content"] for m in bodies[0]["messages"]],
                         ["Tell me a story about a cat.", "My own words.", "And then?"])
        self.shot(page, "chat-branches")

    def test_two_models_answer_one_prompt_side_by_side(self):
        page = self.open(query=f"?model={MODEL}&beside={HOSTILE_NAME.replace(' ', '%20')}")
        page.get_by_text("Talk to a model").wait_for()
        with page.expect_request(lambda r: r.url.endswith("/chat/completions")
                                 and HOSTILE_NAME in r.post_data):
            self.ask(page)
        self.assertEqual(page.locator(".message.answer").count(), 2)
        self.assertEqual(page.locator(".message.answer .note.bad").count(), 0)
        self.check_axe(page)
        self.check_fits(page)
        self.shot(page, "chat-compare")
        page.get_by_role("button", name="Close this side").last.click()
        self.assertEqual(page.locator(".lane").count(), 1)

    def test_a_second_model_answers_an_earlier_prompt_and_the_first_goes_on(self):
        page = self.open()
        held = []
        page.route("**/v1/chat/completions", lambda route: held.append(route))
        page.get_by_label("Message", exact=True).fill("Tell me a story about a dog.")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Compare").click()
        with page.expect_request("**/v1/chat/completions") as second:
            page.get_by_role("button", name="Answer", exact=True).click()
        held[0].fulfill(content_type="text/event-stream", body=sse(chunk(content="first")))
        held[1].fulfill(content_type="text/event-stream", body=sse(chunk(content="second")))
        self.settled(page)

        self.assertEqual(page.locator(".message.answer .md").all_inner_texts(), ["first", "second"])
        self.assertEqual(second.value.post_data_json["messages"],
                         [{"role": "user", "content": "Tell me a story about a dog."}])

    def test_tokens_show_probabilities_and_the_prompt_what_the_template_made(self):
        page = self.open()
        self.ask(page)
        answer = page.locator(".message.answer")
        answer.get_by_role("button", name="Tokens").click()
        answer.locator(".tok").nth(2).hover()
        self.assertEqual(answer.locator(".tops tr").count(), 5)
        self.check_axe(page)
        self.shot(page, "chat-tokens")
        answer.get_by_role("button", name="Prompt").click()
        answer.locator(".tok.special[role=option]").first.wait_for()
        self.assertIn("as the model reads them", answer.inner_text())
        self.check_axe(page)

    def test_settings_reach_the_request_and_wrong_json_does_not(self):
        page = self.open()
        page.get_by_role("button", name="Settings").click()
        side = page.get_by_role("complementary")
        side.get_by_label("System prompt").fill("Be brief.")
        for name, value in (("Temperature", "0.3"), ("Top p", "0.9"), ("Top k", "20"),
                            ("Min p", "0.05"), ("Max tokens", "12"), ("Seed", "7")):
            side.get_by_label(name).fill(value)
        side.get_by_label("Stop sequences").fill("END\nSTOP")
        side.get_by_label("Response schema").fill('{"type": "object"')
        side.get_by_text("Not JSON yet").wait_for()
        side.get_by_label("Tools").fill("[]")
        self.check_axe(page)
        self.shot(page, "chat-settings")
        bodies = self.answer_with(page, chunk(content="ok"))
        self.ask(page)
        side.get_by_label("Response schema").fill('{"type": "object"}')
        self.ask(page)

        first, second = bodies
        self.assertEqual(first["messages"][0], {"role": "system", "content": "Be brief."})
        self.assertEqual((first["temperature"], first["top_p"], first["top_k"], first["min_p"],
                          first["max_tokens"], first["seed"], first["stop"]),
                         (0.3, 0.9, 20, 0.05, 12, 7, ["END", "STOP"]))
        self.assertNotIn("response_format", first)
        self.assertEqual(second["response_format"]["json_schema"]["schema"], {"type": "object"})

    def test_the_shown_curl_does_the_same_in_a_shell(self):
        page = self.open()
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Max tokens").fill("5")
        page.get_by_label("Message", exact=True).fill("It's a \"dog\" & $HOME `x` \u202e!")
        command = self.curl_text(page.locator(".talk > .row"))
        done = subprocess.run(["bash", "-c", command.replace("curl -N", "curl -sSN", 1)],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.stderr, "")
        self.assertIn('"finish_reason":"length"', done.stdout)
        self.assertTrue(done.stdout.rstrip().endswith("[DONE]"))

    def test_conversations_stay_after_a_reload_and_can_be_exported(self):
        page = self.open()
        self.ask(page, "Tell me a story about a frog.")
        text = page.locator(".message.answer .md").inner_text()
        page.reload()
        page.locator(".message.answer").wait_for()
        self.assertEqual(page.locator(".message.answer .md").inner_text(), text)
        page.get_by_role("button", name="Chats").click()
        self.check_axe(page)
        with page.expect_download() as download:
            page.get_by_role("button", name="Export this chat").click()
        saved = json.loads(download.value.path().read_text())
        self.assertEqual(saved["shown"][0]["messages"][0]["content"],
                         "Tell me a story about a frog.")
        page.get_by_role("button", name="Delete all").click()
        self.assertEqual(page.evaluate("localStorage.getItem('tandem.chats')"), None)


class ScriptedAnswers(ConsoleCase):
    def test_hostile_output_is_text(self):
        page = self.open()
        call = {"index": 0, "id": "c1", "type": "function",
                "function": {"name": "<img src=x onerror=alert(8)>", "arguments": '{"a":"<b>"}'}}
        self.answer_with(page, chunk(role="assistant", reasoning_content=HOSTILE),
                         chunk(content=HOSTILE), chunk(tool_calls=[call]),
                         chunk(finish="tool_calls"))
        self.ask(page, HOSTILE)

        self.assertEqual(page.locator(".message").locator(
            "img, script, iframe, svg, a, b, i").count(), 0)
        answer = page.locator(".message.answer")
        answer.locator(".reasoning summary").click()
        text = answer.inner_text()
        for part in ("<img src=x onerror=alert(1)>", "javascript:alert(3)", "<svg onload=alert(6)>",
                     "\u27e8U+001B\u27e9[31mred", "\u27e8U+202E\u27e9txt.exe", "\u27e8U+0007\u27e9"):
            self.assertIn(part, text)
        for hidden in ("\x1b", "\u202e", "\u2066", "\U000e0041"):
            self.assertNotIn(hidden, page.locator("main").inner_text())
        self.assertNotIn("\u202e", page.title())
        self.check_axe(page)
        self.shot(page, "chat-hostile")

    def test_the_cached_part_of_the_prompt_is_marked(self):
        page = self.open()
        usage = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8,
                 "prompt_tokens_details": {"cached_tokens": 3}}
        self.answer_with(page, chunk(content="x"), {"choices": [], "usage": usage})
        self.ask(page)
        answer = page.locator(".message.answer")
        self.assertIn("prompt 7 tokens, 3 from cache", answer.locator(".stats").inner_text())
        answer.get_by_role("button", name="Prompt").click()
        answer.locator("[role=option]").first.wait_for()
        self.assertEqual(answer.locator("[role=option].cached").count(), 3)

    def test_ten_megabytes_do_not_freeze_the_page(self):
        page = self.open()
        part = "word <b>and</b> **more** `x`\n" * 2000
        self.answer_with(page, *[chunk(content=part)] * (10_000_000 // len(part)), chunk("stop"))

        self.ask(page)

        self.assertLess(page.evaluate("document.body.textContent.length"), 400_000)
        page.get_by_label("Message", exact=True).fill("still alive")
        self.assertLess(page.evaluate("new Promise((done) => { const at = performance.now();"
                                      " requestAnimationFrame(() => setTimeout(() =>"
                                      " done(performance.now() - at))); })"), 5000)
        page.locator(".message.answer").get_by_role("button", name="Show more").click()
        page.get_by_text("too long to be kept").wait_for()

    def test_one_line_of_marks_without_end_is_shown_quickly(self):
        page = self.open()
        self.answer_with(page, chunk(content="**_`~~[" * 100_000), chunk("stop"))
        self.ask(page)
        self.assertIn("**_`~~[", page.locator(".message.answer").inner_text())

    def test_stop_ends_the_answer_and_keeps_it(self):
        page = self.open()
        held = []
        page.route("**/v1/chat/completions", lambda route: held.append(route))
        page.get_by_label("Message", exact=True).fill("Tell me a story about a dog.")
        page.keyboard.press("Enter")
        with page.expect_event("requestfailed"):
            page.get_by_role("button", name="Stop", exact=True).click()
        page.get_by_text("stopped by you").wait_for()
        self.settled(page)
        held[0].abort()

    def test_a_vanished_server_and_an_error_in_the_stream_say_what_to_do(self):
        self.expect_error("ERR_FAILED")
        page = self.open()
        page.route("**/v1/chat/completions", lambda route: route.abort())
        self.ask(page)
        page.get_by_text("the server does not answer. Check that the program still runs").wait_for()
        page.unroute("**/v1/chat/completions")
        self.answer_with(page, chunk(content="Once"),
                         {"error": {"message": "the model was <b>unloaded</b>", "code": "gone"}})
        page.get_by_role("button", name="Try again").click()
        page.get_by_text("the model was <b>unloaded</b>").wait_for()
        self.assertIn("Once", page.locator(".message.answer").inner_text())
        self.check_axe(page)

    def test_a_server_without_models_says_so(self):
        page = self.open("server")
        page.route("**/v1/models", lambda route: route.fulfill(json={"object": "list", "data": []}))
        page.goto(f"{OPEN_URL}/#/chat")
        page.get_by_text("No model is loaded yet").wait_for()
        self.check_axe(page)

    def test_damaged_storage_is_ignored(self):
        page = self.open()
        for damage in ("not json", '[{"id": 1}]', '[{"id": "x", "lanes": [{"nodes": 5}]}]', "{}"):
            page.evaluate("(text) => localStorage.setItem('tandem.chats', text)", damage)
            page.reload()
            page.get_by_text("Talk to a model").wait_for()


if __name__ == "__main__":
    unittest.main()
