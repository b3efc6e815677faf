"""What all screens share: the walk over every screen, headers, keys, theme, keyboard."""

import gzip
import re
import unittest
import urllib.error
import urllib.request

from support import ADMIN_KEY, API_KEY, KEYED_URL, OPEN_URL, SIZES, ConsoleCase, browser

MAX_COMPRESSED_BYTES = 100_000


def get(path, headers=None, url=OPEN_URL):
    """(status, headers, bytes)"""
    request = urllib.request.Request(url + path, headers=headers or {})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


class Files(unittest.TestCase):
    """The files as the server sends them."""

    def test_a_browser_gets_the_console_and_curl_a_text(self):
        _, html_headers, html = get("/", {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
        _, text_headers, text = get("/", {"Accept": "*/*"})

        self.assertEqual(html_headers["content-type"], "text/html; charset=utf-8")
        self.assertIn(b"/console/app.js", html)
        self.assertEqual(text_headers["content-type"], "text/plain; charset=utf-8")
        self.assertIn(b"curl", text)
        self.assertIn("Accept", html_headers["vary"])

    def test_files_are_typed_compressed_and_revalidated(self):
        _, headers, plain = get("/console/app.js")
        self.assertEqual(headers["content-type"], "text/javascript; charset=utf-8")
        self.assertEqual(headers["x-content-type-options"], "nosniff")
        _, zipped_headers, zipped = get("/console/app.js", {"Accept-Encoding": "gzip"})
        self.assertEqual(zipped_headers["content-encoding"], "gzip")
        self.assertEqual(gzip.decompress(zipped), plain)
        status, _, body = get("/console/app.js", {"If-None-Match": headers["etag"]})
        self.assertEqual((status, body), (304, b""))
        for missing in ("/console/nothing.js", "/console/assets.cc", "/console/README.md"):
            self.assertEqual(get(missing)[0], 404, missing)
        self.assertEqual(get("/console/%2e%2e/README.md")[0], 400)

    def test_the_policy_admits_no_other_origin_and_no_inline_script(self):
        policy = get("/", {"Accept": "text/html"})[1]["content-security-policy"]
        for part in ("default-src 'none'", "script-src 'self'", "connect-src 'self'",
                     "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"):
            self.assertIn(part, policy)
        self.assertNotIn("unsafe", policy)

    def test_all_files_together_stay_small(self):
        seen, waiting, total = set(), ["/console/app.js", "/console/style.css"], 0
        screens = re.findall(rb"\['(\w+)', '\w+'\]", get("/console/app.js")[2])
        self.assertGreaterEqual(len(screens), 2)
        waiting += [f"/console/screens/{name.decode()}.js" for name in screens]
        while waiting:
            path = waiting.pop()
            if path in seen:
                continue
            seen.add(path)
            status, _, body = get(path, {"Accept-Encoding": "gzip"})
            self.assertEqual(status, 200, path)
            total += len(body)
            for target in re.findall(rb"from '(\.[^']+)'", gzip.decompress(body)):
                base = path.rsplit("/", 1)[0]
                name = target.decode().removeprefix("./")
                while name.startswith("../"):
                    name, base = name[3:], base.rsplit("/", 1)[0]
                waiting.append(f"{base}/{name}")

        print(f"{len(seen)} files, {total} bytes compressed", flush=True)
        self.assertLessEqual(total, MAX_COMPRESSED_BYTES)


class Walk(ConsoleCase):
    def test_every_screen_in_both_sizes_and_themes_is_accessible_and_fits(self):
        names = self.open().locator("nav a").evaluate_all("all => all.map((a) => a.hash.slice(2))")
        self.assertGreaterEqual(len(names), 2)
        for size in SIZES:
            for scheme in ("light", "dark"):
                page = self.open(size=size, scheme=scheme)
                for name in names:
                    with self.subTest(screen=name, size=size, scheme=scheme):
                        page.get_by_role("navigation").locator(f"a[href='#/{name}']").click()
                        page.wait_for_selector(f".screen.{name} h1")
                        page.wait_for_load_state("networkidle") if name == "chat" else \
                            page.wait_for_timeout(300)
                        # Between the themes only colours differ.
                        is_same = (size == "desktop") != (scheme == "light")
                        self.check_axe(page, ["color-contrast"] if is_same else None)
                        self.check_fits(page)
                        self.shot(page, f"{name}-{size}-{scheme}")

    def test_the_theme_is_kept_and_changes_the_colours(self):
        page = self.open(scheme="light")
        colour = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(colour)
        button = page.get_by_role("button", name="Theme: auto")
        button.click()
        page.get_by_role("button", name="Theme: light").click()
        dark = page.evaluate(colour)
        self.assertNotEqual(light, dark)
        page.reload()
        page.get_by_role("button", name="Theme: dark").wait_for()
        self.assertEqual(page.evaluate(colour), dark)


class ForeignPages(unittest.TestCase):
    """A page of another site in the same browser; its forms need no script and no preflight."""

    def test_their_forms_change_nothing(self):
        page = browser().new_page()
        for path, kind in (("/v1/files", "multipart/form-data"), ("/v1/batches", "text/plain"),
                           ("/v1/chat/completions", "text/plain"),
                           ("/v1/fine_tuning/jobs/x/cancel", "application/x-www-form-urlencoded"),
                           ("/admin/keys", "text/plain")):
            page.goto("about:blank")
            page.set_content(f"<form method=post action='{OPEN_URL}{path}' enctype='{kind}'>"
                             "<input name='{\"a\":\"' value='\"}'></form>")
            with page.expect_navigation() as answer:
                page.evaluate("document.forms[0].submit()")
            self.assertIn(answer.value.status, (401, 403), path)
            self.assertEqual(answer.value.request.headers.get("origin"), "null")
        page.close()

    def test_they_cannot_frame_the_console(self):
        page = browser().new_page()
        page.set_content(f"<iframe src='{OPEN_URL}/'></iframe>")
        page.wait_for_load_state("networkidle")
        self.assertEqual([frame.url for frame in page.frames[1:]], ["chrome-error://chromewebdata/"])
        page.close()


class Keys(ConsoleCase):
    expected_errors = ("status of 401",)

    def test_a_refused_request_asks_for_the_key_once_and_goes_on(self):
        page = self.open(url=KEYED_URL)
        dialog = page.get_by_role("dialog", name="This server needs a key")
        dialog.wait_for()
        self.check_axe(page)
        dialog.get_by_label("Key").fill("wrong")
        page.keyboard.press("Enter")
        dialog.get_by_text("The server refused the key").wait_for()
        dialog.get_by_label("Key").fill(API_KEY)
        page.keyboard.press("Enter")

        self.ask(page)

        self.assertEqual(page.locator(".message.answer .note.bad").count(), 0)
        self.assertEqual(page.evaluate("sessionStorage.getItem('tandem.key')"), API_KEY)
        self.assertNotIn(API_KEY, page.evaluate("JSON.stringify(localStorage)"))
        self.assertIn("$TANDEM_KEY", self.curl_text(page.locator(".talk > .row")))
        self.assertNotIn(API_KEY, page.content())

    def test_escape_leaves_the_dialog_and_says_what_is_missing(self):
        page = self.open(url=KEYED_URL)
        page.get_by_role("dialog").wait_for()
        page.keyboard.press("Escape")
        page.get_by_text("The models could not be listed").wait_for()
        self.check_axe(page)
        self.assertEqual(page.get_by_role("dialog").count(), 0)

    def test_a_key_in_the_address_is_taken_and_removed(self):
        page = self.open(url=KEYED_URL, screen=f"chat&key={API_KEY}")
        page.get_by_text("Talk to a model").wait_for()
        self.assertNotIn(API_KEY, page.url)
        self.assertEqual(page.evaluate("history.length"), 2)  # about:blank and the page
        page.get_by_role("button", name="Forget key").click()
        self.assertIsNone(page.evaluate("sessionStorage.getItem('tandem.key')"))

    def test_the_admin_key_is_sent_only_as_a_header(self):
        page = self.open("server", key=ADMIN_KEY)
        with page.expect_request("**/admin/keys") as seen:
            page.reload()
        self.assertEqual(seen.value.headers["authorization"], f"Bearer {ADMIN_KEY}")


class Keyboard(ConsoleCase):
    def focus(self, page):
        return page.evaluate("""() => {
            const el = document.activeElement, style = getComputedStyle(el);
            const around = getComputedStyle(el.closest('.composer') ?? el);
            return {tag: el.tagName, text: (el.getAttribute('aria-label') ?? el.textContent).slice(0, 40),
                    visible: style.outlineStyle !== 'none' || around.boxShadow !== 'none'};
        }""")

    def test_a_chat_needs_no_mouse(self):
        page = self.open()
        page.get_by_text("Talk to a model").wait_for()
        page.locator(".skip").focus()
        stops = []
        while len(stops) < 60:
            page.keyboard.press("Tab")
            stop = self.focus(page)
            if stop["tag"] == "BODY":
                break
            stops.append(stop)
            self.assertTrue(stop["visible"], f"no focus ring: {stop}")
        texts = [stop["text"] for stop in stops]
        for wanted in ("Chat", "Server", "New chat", "Compare", "Settings", "Model", "Message",
                       "Send", "curl"):
            self.assertIn(wanted, texts)

        page.get_by_label("Message", exact=True).focus()
        page.keyboard.type("Tell me a story about a dog.")
        page.keyboard.press("Enter")
        self.settled(page)
        page.get_by_role("button", name="Tokens").focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        while self.focus(page)["tag"] != "SPAN":
            page.keyboard.press("Tab")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("End")
        last = page.locator(".tok").last
        self.assertEqual(last.get_attribute("aria-selected"), "true")
        self.assertIn("log-probability", page.locator(".token-detail").inner_text())

    def test_the_skip_link_leads_past_the_navigation(self):
        page = self.open("server")
        page.keyboard.press("Tab")
        self.assertEqual(self.focus(page)["text"], "Skip to content")
        page.keyboard.press("Enter")
        self.assertEqual(self.focus(page)["tag"], "MAIN")


if __name__ == "__main__":
    unittest.main()
