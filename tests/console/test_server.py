"""The server screen: figures, jobs and keys."""

import json
import unittest
import urllib.error
import urllib.request

from support import ADMIN_KEY, API_KEY, HOSTILE_NAME, KEYED_URL, MODEL, OPEN_URL, ConsoleCase

JOB = {"id": "job_1", "object": "admin.job", "type": "train", "status": "running",
       "created_at": 1795450000, "started_at": 1795450001, "finished_at": None, "progress": 0.25,
       "error": None, "request": {"spec": {"run_name": HOSTILE_NAME}}, "result": None}


def chat(url):
    body = json.dumps({"model": MODEL, "max_tokens": 8,
                       "messages": [{"role": "user", "content": "A story."}]}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", body,
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return answer.read()


class Figures(ConsoleCase):
    def test_figures_follow_the_server(self):
        chat(OPEN_URL)
        page = self.open("server")
        row = page.locator(".screen.server tr", has_text=MODEL).first
        row.wait_for()
        before = int(row.locator("td").last.inner_text().replace(",", ""))
        chat(OPEN_URL)
        page.wait_for_function(
            "([before]) => Number([...document.querySelectorAll('tr')].find((r) => r.textContent"
            ".startsWith('tandem-stories')).lastChild.textContent.replace(',', '')) >= before + 8",
            arg=[before])
        page.get_by_text("ready", exact=True).wait_for()
        page.locator("svg[role=img]").first.wait_for()
        self.assertIn("ms", page.locator("tr", has_text="Time to first token").inner_text())
        self.check_axe(page)
        self.shot(page, "server-figures")

    def test_names_in_the_figures_are_text(self):
        page = self.open()
        text = urllib.request.urlopen(f"{OPEN_URL}/metrics").read().decode()
        page.route("**/metrics", lambda route: route.fulfill(
            content_type="text/plain", body=text.replace(MODEL, HOSTILE_NAME)))
        page.goto(f"{OPEN_URL}/#/server")
        page.locator("tr", has_text=HOSTILE_NAME).first.wait_for()
        self.assertEqual(page.locator("main img").count(), 0)

    def test_a_server_that_stops_answering_says_so_and_recovers(self):
        self.expect_error("ERR_FAILED")
        page = self.open("server")
        page.get_by_text("ready", exact=True).wait_for()
        page.route("**/metrics", lambda route: route.abort())
        page.get_by_text("the server does not answer").wait_for()
        self.check_axe(page)
        page.unroute("**/metrics")
        page.get_by_text("ready", exact=True).wait_for()

    def test_jobs_show_their_progress_and_are_cancelled_after_a_question(self):
        page = self.open("chat", key=ADMIN_KEY)
        calls = []

        def jobs(route):
            calls.append((route.request.method, route.request.url.split("/admin/")[1]))
            route.fulfill(json={"object": "list", "data": [JOB], "has_more": False}
                          if route.request.method == "GET" else JOB)

        page.route("**/admin/jobs**", jobs)
        page.route("**/admin/jobs/**", jobs)
        page.goto(f"{OPEN_URL}/#/server")
        row = page.locator("tr", has_text=HOSTILE_NAME).last
        row.get_by_text("25 %").wait_for()
        row.get_by_role("button", name="cancel").click()
        dialog = page.get_by_role("dialog", name="Cancel this job?")
        self.check_axe(page)
        # The dialog hides before the page sends its request.
        with page.expect_response(lambda answer: answer.request.method == "POST"):
            dialog.get_by_role("button", name="Cancel the job").click()
        dialog.wait_for(state="hidden")
        self.assertIn(("POST", "jobs/job_1/cancel"), calls)
        self.assertEqual(page.locator("main img").count(), 0)
        self.check_fits(page)


class ApiKeys(ConsoleCase):
    def test_a_key_is_created_shown_once_used_and_revoked(self):
        page = self.open("server", url=KEYED_URL, key=ADMIN_KEY)
        name = "alice"
        page.get_by_label("Name").fill(name)
        page.get_by_label("Days until it expires").fill("3")
        page.get_by_role("button", name="Create key").click()
        page.get_by_role("dialog", name="Create the first key?").get_by_role(
            "button", name="Create").click()
        secret = page.locator(".note code").inner_text()
        request = urllib.request.Request(f"{KEYED_URL}/v1/models",
                                         headers={"Authorization": f"Bearer {secret}"})
        self.assertEqual(urllib.request.urlopen(request).status, 200)
        self.check_axe(page)
        self.shot(page, "server-keys")
        row = page.get_by_role("region", name="API keys").locator("tr", has_text=name)
        self.assertIn("until", row.inner_text())
        row.get_by_role("button", name="Revoke").click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        row.get_by_text("revoked").wait_for()
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        self.assertEqual(refused.exception.code, 401)
        refused.exception.close()

    def test_a_key_without_the_scope_admin_sees_no_keys(self):
        self.expect_error("status of 401")
        self.expect_error("status of 403")
        page = self.open("server", url=KEYED_URL, key=API_KEY)
        page.get_by_text("Keys need the admin key.").wait_for()
        self.check_axe(page)


if __name__ == "__main__":
    unittest.main()
