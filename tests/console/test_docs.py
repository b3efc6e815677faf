"""The page at /docs: every operation of openapi.json, with a form that sends requests."""

import json
import re
import urllib.request

from support import ADMIN_KEY, API_KEY, KEYED_URL, OPEN_URL, SIZES, ConsoleCase

MAX_COMPRESSED_BYTES = 12_000
HTML = "<img src=x onerror=alert(1)>"


def compressed(path):
    request = urllib.request.Request(OPEN_URL + path, headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request) as answer:
        return len(answer.read())


def document():
    with urllib.request.urlopen(f"{OPEN_URL}/openapi.json") as answer:
        return json.load(answer)


class Docs(ConsoleCase):
    def open_docs(self, fragment="", url=OPEN_URL, **options):
        page = self.open(url=url, address=f"{url}/docs{fragment}", **options)
        page.wait_for_selector("details.operation")
        return page

    def section(self, page, name):
        return page.locator(f"details#{name}")

    def send(self, section):
        """Presses Send; the text of the answer once its status is known."""
        section.get_by_role("button", name="Send").click()
        section.locator("p[role=status]").filter(has_text=re.compile(r" in [\d.]+ s")).wait_for()
        return section.locator("form pre").inner_text()

    def test_the_files_of_the_page_stay_small(self):
        files = ("docs.css", "docs.js", "docs/document.js", "docs/operation.js", "docs/request.js")
        total = compressed("/docs") + sum(compressed(f"/console/{file}") for file in files)

        self.assertLessEqual(total, MAX_COMPRESSED_BYTES)

    def test_every_operation_is_shown_accessible_in_both_sizes_and_themes(self):
        names = sorted(operation["operationId"] for item in document()["paths"].values()
                       for operation in item.values() if isinstance(operation, dict))
        for size in SIZES:
            for scheme in ("light", "dark"):
                with self.subTest(size=size, scheme=scheme):
                    page = self.open_docs("#createChatCompletion", size=size, scheme=scheme)
                    shown = page.locator("details.operation").evaluate_all("all => all.map((e) => e.id)")
                    self.assertEqual(sorted(shown), names)
                    self.section(page, "createChatCompletion").locator("form").wait_for()
                    self.check_axe(page)
                    self.check_fits(page)
                    self.shot(page, f"docs-{size}-{scheme}")

    def test_all_schemas_open_and_a_schema_inside_itself_ends(self):
        page = self.open_docs()
        page.evaluate("""async () => {
            const open = async (selector) => {
                for (let left = 1; left; ) {
                    const closed = document.querySelectorAll(`${selector}:not([open])`);
                    for (const fold of closed) fold.open = true;
                    left = closed.length;
                    await new Promise((done) => setTimeout(done));
                }
            };
            await open('details.operation');
            await open('details.schema');
        }""")
        page.get_by_text("Needs the admin key.").first.wait_for()
        self.assertLess(page.evaluate("document.querySelectorAll('*').length"), 60_000)

    def test_a_link_opens_its_operation_and_the_form_asks_the_server(self):
        page = self.open_docs("#createCompletion")
        section = self.section(page, "createCompletion")
        body = section.get_by_label("Body (JSON)")

        answer = json.loads(self.send(section))

        self.assertEqual(answer["object"], "text_completion")
        self.assertIn("200 in", section.locator("p[role=status]").inner_text())
        asked = json.loads(body.input_value())
        body.fill(json.dumps(dict(asked, prompt="It's", temperature=9)))
        self.assertIn("It'\\''s", section.get_by_label("The request as curl").inner_text())
        self.expect_error("status of 400")
        refused = json.loads(self.send(section))
        self.assertEqual(refused["error"]["param"], "temperature")
        self.assertIn("400 in", section.locator("p[role=status]").inner_text())

    def test_parameters_become_path_and_query(self):
        page = self.open_docs("#listFiles")
        section = self.section(page, "listFiles")
        section.get_by_label("limit").fill("2")
        with page.expect_request("**/v1/files?limit=2"):
            self.send(section)
        page.goto(f"{OPEN_URL}/docs#getModel")
        section = self.section(page, "getModel")
        section.get_by_label("id").fill("a/b c")
        self.assertIn("/v1/models/a%2Fb%20c", section.get_by_label("The request as curl").inner_text())

    def test_a_stream_is_shown_as_events(self):
        page = self.open_docs("#createCompletion")
        section = self.section(page, "createCompletion")
        section.get_by_label("Body (JSON)").fill(json.dumps(
            {"model": "tandem-stories", "prompt": "Once", "max_tokens": 8, "stream": True}))

        text = self.send(section)

        self.assertGreater(text.count("data: {"), 2)
        self.assertIn("data: [DONE]", text)

    def test_a_request_can_be_stopped(self):
        page = self.open_docs("#createCompletion")
        held = []
        page.route("**/v1/completions", lambda route: held.append(route))
        section = self.section(page, "createCompletion")
        section.get_by_role("button", name="Send").click()
        section.get_by_role("button", name="Stop").click()
        section.get_by_text("Stopped", exact=True).wait_for()
        self.assertEqual(section.get_by_role("button", name="Stop").count(), 0)
        held[0].abort()

    def test_answers_are_text_whatever_they_hold(self):
        page = self.open_docs("#createCompletion")
        page.route("**/v1/completions", lambda route: route.fulfill(
            status=200, content_type="text/html", body=HTML + "\u202e\x1b[31m"))
        section = self.section(page, "createCompletion")

        text = self.send(section)

        self.assertIn(HTML, text)
        self.assertNotIn("\u202e", text)
        self.assertNotIn("\x1b", text)
        self.assertEqual(page.locator("img").count(), 0)

    def test_a_long_answer_is_cut(self):
        page = self.open_docs("#createCompletion")
        page.route("**/v1/completions", lambda route: route.fulfill(
            status=200, content_type="text/plain", body="x" * 5_000_000))

        text = self.send(self.section(page, "createCompletion"))

        self.assertLess(len(text), 1_100_000)
        self.assertIn("the rest is not shown", text)

    def test_the_keyboard_finds_an_operation(self):
        page = self.open_docs()
        page.keyboard.press("/")
        page.keyboard.type("lora adapter")
        links = page.locator("li.link:visible")
        links.first.wait_for()
        self.assertEqual(links.count(), 2)
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        self.section(page, "unloadLoraAdapter").locator("form").wait_for()
        self.assertTrue(page.url.endswith("#unloadLoraAdapter"))
        page.keyboard.press("/")
        page.keyboard.type("no such words")
        page.get_by_text("No operation has these words.").wait_for()
        page.keyboard.press("Escape")
        self.assertGreater(page.locator("li.link:visible").count(), 40)

    def test_the_key_is_the_one_of_the_session_and_never_in_a_command(self):
        self.expect_error("status of 401")
        page = self.open_docs("#listModels", url=KEYED_URL)
        section = self.section(page, "listModels")
        self.assertIn("invalid_api_key", self.send(section))
        page.locator("#key").fill(API_KEY)
        self.assertIn("tandem-stories", self.send(section))
        self.assertEqual(page.evaluate("sessionStorage.getItem('tandem.key')"), API_KEY)
        command = section.get_by_label("The request as curl").inner_text()
        self.assertIn("$TANDEM_KEY", command)
        self.assertFalse(API_KEY in page.content())

    def test_an_admin_key_of_the_console_opens_the_admin_operations(self):
        page = self.open_docs("#adminListModels", url=KEYED_URL, key=ADMIN_KEY)
        self.assertIn("memory", self.send(self.section(page, "adminListModels")))
