"""A browser, and what every page of the console must keep: no error, no foreign request, no axe finding."""

import atexit
import json
import os
import pathlib
import unittest
import urllib.parse

import axe_playwright_python
from playwright.sync_api import sync_playwright

OPEN_URL = os.environ["TANDEM_OPEN_URL"]
KEYED_URL = os.environ["TANDEM_KEYED_URL"]
API_KEY = os.environ["TANDEM_TEST_API_KEY"]
ADMIN_KEY = os.environ["TANDEM_TEST_ADMIN_KEY"]
HOSTILE_NAME = os.environ["TANDEM_HOSTILE_NAME"]
SCRATCH = pathlib.Path(os.environ["TANDEM_TEST_SCRATCH"])  # the model root of the open server
SCREENSHOTS = os.environ["TANDEM_SCREENSHOTS"]
MODEL = "tandem-stories"
SIZES = {"desktop": {"width": 1280, "height": 800}, "phone": {"width": 390, "height": 780}}
AXE = (pathlib.Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
# Generous for a busy machine; a passing step takes a fraction of it.
PATIENCE_MS = 30_000

# Runs in every page before its own scripts: markup that got executed would call it.
WATCH = "window.intruders = 0; window.alert = () => { ++window.intruders; };"

_state = {}


def browser():
    """One browser for all tests of the process."""
    if not _state:
        _state["playwright"] = sync_playwright().start()
        # Chromium refuses its sandbox to root, as which CI runs in containers.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        _state["browser"] = _state["playwright"].chromium.launch(
            executable_path=os.environ["TANDEM_BROWSER"],
            args=[*arguments, "--disable-background-networking", "--disable-component-update"])
        atexit.register(_close)
    return _state["browser"]


def _close():
    _state["browser"].close()
    _state["playwright"].stop()


def sse(*events):
    """The body of an event stream."""
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


def chunk(finish=None, **delta):
    return {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}


class ConsoleCase(unittest.TestCase):
    """Opens pages and fails if one of them has an error or asks another origin."""

    # Substrings of console errors that a test expects, such as the browser's line for a 401.
    expected_errors = ()

    def setUp(self):
        self.faults = []
        self.contexts = []
        # Passes expected failures of single requests: the browser logs each as an error.
        self.expected_errors = list(type(self).expected_errors)

    def tearDown(self):
        for context in self.contexts:
            for page in context.pages:
                # A page whose scripts run in markup is the worst that can happen.
                self.assertEqual(page.evaluate("window.intruders"), 0)
            context.close()
        self.assertEqual(self.faults, [])

    def expect_error(self, text):
        """The next console errors with this text are no fault."""
        self.expected_errors.append(text)

    def open(self, screen="chat", url=OPEN_URL, size="desktop", scheme="light", key=None, query="",
             address=None):
        """A page of a fresh profile at a screen, or at another address of the server."""
        context = browser().new_context(viewport=SIZES[size], color_scheme=scheme,
                                        reduced_motion="reduce", accept_downloads=True)
        self.contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        context.add_init_script(WATCH)
        if key is not None:
            context.add_init_script(f"sessionStorage.setItem('tandem.key', {json.dumps(key)})")
        page = context.new_page()
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("console", lambda message: self.note(message))
        page.on("request", lambda request: self.check_origin(url, request.url))
        page.goto(address or f"{url}/#/{screen}{query}")
        page.wait_for_selector("main :is(h1, h2)")
        return page

    def note(self, message):
        if message.type != "error" and message.type != "warning":
            return
        if not any(text in message.text for text in self.expected_errors):
            self.faults.append(f"console: {message.text}")

    def check_origin(self, url, target):
        parts = urllib.parse.urlsplit(target)
        if parts.scheme not in ("data", "blob") and f"{parts.scheme}://{parts.netloc}" != url:
            self.faults.append(f"request to {target}")

    def check_axe(self, page, rules=None):
        """Fails with each finding of axe-core: its rule and the first elements. None: all rules."""
        # The policy of the page forbids inline scripts, so axe comes through the debugger.
        if not page.evaluate("'axe' in window"):
            page.evaluate(AXE)
        options = {"resultTypes": ["violations"]}
        if rules:
            options["runOnly"] = rules
        result = page.evaluate("(options) => axe.run(document, options)", options)
        findings = [f"{one['id']}: {[node['html'][:160] for node in one['nodes'][:3]]}"
                    for one in result["violations"]]
        self.assertEqual(findings, [], page.url)

    def check_fits(self, page):
        """Nothing is wider than the window."""
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        self.assertLessEqual(wide, 0, f"{page.url} is {wide} pixels too wide")

    def shot(self, page, name):
        if SCREENSHOTS:
            pathlib.Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=str(pathlib.Path(SCREENSHOTS) / f"{name}.png"))

    def ask(self, page, text="Tell me a story about a dog.", n=1):
        """Sends a message and waits until all answers are complete."""
        page.get_by_label("Message", exact=True).fill(text)
        page.keyboard.press("Enter")
        self.settled(page)
        self.assertEqual(page.locator(".message.answer[aria-busy=true]").count(), 0)

    def curl_text(self, around):
        """The command in the fold "curl" of this part of the page."""
        around.locator(".curl summary").click()
        around.locator(".curl pre", has_text="curl").wait_for()
        return around.locator(".curl pre").inner_text()

    def settled(self, page):
        page.get_by_role("button", name="Send", exact=True).wait_for()

    def answer_with(self, page, *events, status=200):
        """Every chat request of the page gets this stream. Returns the list of their bodies."""
        bodies = []

        def fulfil(route):
            bodies.append(json.loads(route.request.post_data))
            route.fulfill(status=status, content_type="text/event-stream", body=sse(*events))

        page.route("**/v1/chat/completions", fulfil)
        return bodies
