"""The Data, Train and Models screens: a file with bad rows, a real fine-tune, loads and aliases."""

import json
import pathlib
import shutil
import unittest
import urllib.parse
import urllib.request

from support import ADMIN_KEY, API_KEY, HOSTILE_NAME, KEYED_URL, MODEL, OPEN_URL, SCRATCH, ConsoleCase

DATA = pathlib.Path(__file__).resolve().parents[2] / "config" / "data" / "pirate-stories.jsonl"
MODEL_FILES = pathlib.Path(__file__).resolve().parents[2] / "config" / "models" / MODEL
# The embedded model's template keeps the content words of a question.
GOOD = json.dumps({"messages": [{"role": "user", "content": "A story about a dog."},
                                {"role": "assistant", "content": "Ahoy!"}]})


def call(method, path, body=None, key=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} if data else {}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(OPEN_URL + path, data, headers, method=method)
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())


class StudioCase(ConsoleCase):
    def choose(self, page, name, content):
        """Uploads a file on the Data screen and waits for its examination."""
        if isinstance(content, str):
            content = content.encode()
        page.get_by_label("Training file").set_input_files(
            {"name": name, "mimeType": "application/octet-stream", "buffer": content})

    def drop(self, page, name, content):
        """Drops a file onto the page, as from a file manager."""
        page.evaluate("""([name, content]) => {
            const data = new DataTransfer();
            data.items.add(new File([content], name));
            for (const kind of ['dragover', 'drop']) {
              document.querySelector('.drop').dispatchEvent(
                new DragEvent(kind, {dataTransfer: data, bubbles: true, cancelable: true}));
            }
          }""", [name, content])

    def figure(self, page, label):
        return page.locator("dl.figures div", has=page.get_by_text(label, exact=True)) \
            .locator("dd").first.inner_text()


class Data(StudioCase):
    def test_bad_rows_are_named_by_line_and_the_mask_is_shown(self):
        page = self.open("data")
        rows = [GOOD] * 3 + ["no JSON", '{"messages": []}'] + [GOOD] * 9

        self.drop(page, "rows.jsonl", "\n".join(rows))

        page.get_by_text("2 rows are bad.").wait_for()
        lines = page.locator(".errors tbody tr td:first-child").all_inner_texts()
        self.assertEqual(lines, ["4", "5"])
        self.assertEqual(self.figure(page, "Rows"), "14")
        self.assertEqual(self.figure(page, "Samples"), "12")
        first = page.get_by_role("listbox", name="Sample 1, learned tokens marked")
        learned = "".join(first.locator(".tok.loss:not(.special)").all_text_contents())
        self.assertIn("Ahoy!", learned)
        self.assertNotIn("dog", learned)
        self.assertIn("dog", "".join(first.locator(".tok.masked").all_text_contents()))
        self.assertIn("/examine", self.curl_text(page.locator("form.card")))
        self.check_axe(page)
        self.check_fits(page)
        self.shot(page, "data-examined")

    def test_csv_and_pairs_and_files_that_are_no_rows(self):
        page = self.open("data")
        self.choose(page, "rows.csv", 'prompt,completion\nq,"a, b"\n"q\nr",c\nq,a,b\n')
        page.get_by_text("1 row is bad.").wait_for()
        self.assertEqual(page.locator(".errors tbody tr td").all_inner_texts(),
                         ["5", "has 3 fields, the header has 2"])
        self.choose(page, "nothing.jsonl", bytes(range(256)))
        page.get_by_text("binary").wait_for()
        self.choose(page, "pairs.csv", "prompt,chosen,rejected\n" + "q,good,bad\n" * 10)
        page.get_by_text("need kind train.dpo").or_(page.get_by_text("preference rows")).first \
            .wait_for()
        page.get_by_label("Method").select_option("dpo")
        page.get_by_role("button", name="Examine", exact=True).click()
        page.get_by_role("listbox", name="Sample 1, other answer").wait_for()
        self.check_axe(page)

    def test_a_part_of_a_large_file_is_called_a_part(self):
        page = self.open("data")
        page.route("**/examine", lambda route: route.continue_(
            post_data=json.dumps({**json.loads(route.request.post_data), "rows": 5})))

        self.choose(page, "many.jsonl", "\n".join([GOOD] * 30))

        page.get_by_text("Only the first 5 of 30 rows were read").wait_for()
        self.assertEqual(page.get_by_text("Every row is good.").count(), 0)

    def test_hostile_names_and_rows_are_text(self):
        page = self.open("data")
        evil = "<img src=x onerror=alert(1)>\u202e.jsonl"
        self.choose(page, evil, "\n".join([json.dumps(
            {"messages": [{"role": "user", "content": "<script>alert(1)</script>"},
                          {"role": "assistant", "content": "<svg onload=alert(2)>\u202e"}]})] * 10
            + ['{"messages": [{"role": "<b>x</b>", "content": "y"}]}']))

        page.get_by_text("1 row is bad.").wait_for()
        self.assertEqual(page.locator("main img, main svg, main b, main script").count(), 0)
        self.check_fits(page)

    def test_a_wrong_ending_an_unreadable_server_and_a_deletion(self):
        page = self.open("data")
        self.choose(page, "rows.exe", GOOD)
        page.get_by_text("rows.exe is not one of").wait_for()
        self.choose(page, "gone.jsonl", "\n".join([GOOD] * 10))
        page.get_by_text("Every row is good.").wait_for()
        page.reload()
        page.get_by_text("Every row is good.").wait_for()
        page.get_by_role("button", name="Delete gone.jsonl").first.click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        page.get_by_text("Every row is good.").wait_for(state="detached")

    def test_it_can_be_used_on_a_phone_and_by_keyboard(self):
        page = self.open("data", size="phone", scheme="dark")
        self.choose(page, "phone.jsonl", "\n".join([GOOD] * 10 + ["x"]))
        page.get_by_text("1 row is bad.").wait_for()
        self.check_fits(page)
        self.check_axe(page)
        tokens = page.get_by_role("listbox").first
        tokens.locator(".tok").first.focus()
        page.keyboard.press("ArrowRight")
        self.assertEqual(tokens.locator("[aria-selected=true]").get_attribute("data-i"), "1")
        self.shot(page, "data-phone")


class Train(StudioCase):
    def test_a_model_is_trained_live_and_answers_beside_its_base(self):
        page = self.open("data")
        self.choose(page, "pirate.jsonl", DATA.read_bytes())
        page.get_by_text("Every row is good.").wait_for()
        page.get_by_role("link", name="Train on it").click()
        page.get_by_role("heading", name="New job").wait_for()
        self.assertIn("pirate.jsonl", page.get_by_label("Training file")
                      .evaluate("(el) => el.selectedOptions[0].textContent"))
        page.get_by_label("Epochs").fill("1")
        page.get_by_label("Batch size").fill("4")
        page.get_by_label("Name ending").fill("console")
        page.get_by_label("Prompts").fill("Tell me a story about a dog.")
        page.get_by_label("Every", exact=True).fill("2")
        page.get_by_role("button", name="Plan").click()
        start = page.get_by_role("button", name="Start training")
        start.wait_for()
        self.assertEqual(self.figure(page, "Steps"), "5")
        self.assertIn("MiB", self.figure(page, "Memory"))
        self.check_axe(page)
        self.check_fits(page)
        self.shot(page, "train-plan")
        start.click()

        page.get_by_text("After step 2").wait_for(timeout=120_000)
        self.shot(page, "train-live")
        chat = page.get_by_role("link", name="Chat with it beside its base")
        chat.wait_for(timeout=120_000)
        self.assertEqual(self.figure(page, "Step"), "5 of 5")
        page.locator(".chart svg").first.wait_for()
        page.get_by_text("The job has successfully completed").wait_for()
        self.check_axe(page)
        self.check_fits(page)
        self.shot(page, "train-finished")
        page.reload()
        chat.wait_for()
        page.locator(".chart svg").first.wait_for()

        chat.click()
        page.get_by_text("Talk to a model").wait_for()
        self.ask(page)
        self.assertEqual(page.locator(".message.answer").count(), 2)
        self.assertEqual(page.locator(".message.answer .note.bad").count(), 0)
        self.shot(page, "train-chat")
        page.goto(f"{OPEN_URL}/#/train")
        page.get_by_role("link", name="Chat with it").first.wait_for()
        self.check_axe(page)
        self.shot(page, "train-list")

    def test_a_running_job_pauses_resumes_answers_and_is_cancelled(self):
        page = self.open("data")
        self.choose(page, "long.jsonl", DATA.read_bytes())
        page.get_by_text("Every row is good.").wait_for()
        file = urllib.parse.parse_qs(page.url.split("?")[1])["file"][0]
        job = call("POST", "/v1/fine_tuning/jobs", {
            "model": MODEL, "training_file": file, "suffix": "long",
            "hyperparameters": {"n_epochs": 50, "batch_size": 1, "checkpoint_every": 1}})
        page.goto(f"{OPEN_URL}/#/train?job={job['id']}")
        page.get_by_role("link", name="Chat with the checkpoint of step 1",
                         exact=True).wait_for(timeout=120_000)
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("button", name="Resume").wait_for(timeout=60_000)
        self.shot(page, "train-paused")
        page.get_by_role("link", name="Chat with the checkpoint of step 1", exact=True).click()
        page.get_by_text("Talk to a model").wait_for()
        self.ask(page)
        self.assertEqual(page.locator(".message.answer .note.bad").count(), 0)
        page.go_back()
        page.get_by_role("button", name="Resume").click()
        page.get_by_role("button", name="Pause").wait_for(timeout=60_000)
        page.get_by_role("button", name="Cancel", exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
        page.get_by_role("link", name="Train again").wait_for(timeout=60_000)
        self.check_axe(page)

    def test_a_plan_says_why_a_job_would_be_refused(self):
        page = self.open("data")
        self.choose(page, "bad.jsonl", "\n".join([GOOD] * 10 + ["nothing"]))
        page.get_by_text("1 row is bad.").wait_for()
        page.get_by_role("link", name="Train on it").click()
        page.get_by_role("button", name="Plan").click()
        page.get_by_text("This job would be refused.").wait_for()
        page.get_by_text("line 11:").wait_for()
        self.assertEqual(page.get_by_role("button", name="Start training").count(), 0)
        self.assertIn("fine_tuning/plan", self.curl_text(page.locator("main form")))
        self.check_axe(page)
        page.goto(f"{OPEN_URL}/#/train?job=ftjob-nothing")
        self.expect_error("status of 404")
        page.get_by_text("This job could not be read").wait_for()

    def test_hostile_events_and_a_long_run_are_text_and_bounded(self):
        page = self.open("train")
        job = {"id": HOSTILE_NAME, "status": "running", "model": HOSTILE_NAME, "created_at": 1,
               "hyperparameters": {"n_epochs": HOSTILE_NAME}, "fine_tuned_model": None,
               "training_file": HOSTILE_NAME, "method": {"type": HOSTILE_NAME}, "error": None}
        events = [{"type": "message", "level": "warn", "created_at": 1, "data": {},
                   "message": f"{HOSTILE_NAME}\x1b[31m\u202e {i}"} for i in range(2000)]
        events += [{"type": "metrics", "level": "info", "created_at": 1, "message": "", "data": {
            "step": i, "total_steps": 4000, "train_loss": 4000 / (i + 1), "learning_rate": 1e-4,
            "train_mean_token_accuracy": None, "tokens_per_second": 1000}} for i in range(1, 3000)]
        events += [{"type": "message", "level": "info", "created_at": 1, "message": "Sample",
                    "data": {"step": 1, "sample": HOSTILE_NAME * 1000}}]
        body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        page.route("**/v1/fine_tuning/jobs/**", lambda route: route.fulfill(
            **({"content_type": "text/event-stream", "body": body} if "events" in route.request.url
               else {"json": {"data": [], "has_more": False}}
               if "checkpoints" in route.request.url else {"json": job})))
        page.goto(f"{OPEN_URL}/#/train?job={urllib.parse.quote(HOSTILE_NAME)}")
        page.get_by_text("After step 1").wait_for()
        self.assertLessEqual(page.locator(".log li").count(), 500)
        self.assertEqual(page.locator("main img").count(), 0)
        self.check_fits(page)


class Models(StudioCase):
    @classmethod
    def setUpClass(cls):
        shutil.copytree(MODEL_FILES, SCRATCH / "stories-copy", dirs_exist_ok=True)

    def test_a_model_is_planned_loaded_aliased_rolled_back_and_unloaded(self):
        page = self.open("models", key=ADMIN_KEY)
        page.get_by_role("heading", name="Load a model").wait_for()
        page.get_by_label("Model", exact=True).select_option("stories-copy")
        page.get_by_label("Name", exact=True).fill("second")
        page.get_by_label("Context").fill("128")
        page.get_by_role("button", name="What would it need?").click()
        page.get_by_text("It fits:").wait_for()
        self.check_axe(page)
        self.shot(page, "models-plan")
        page.get_by_role("button", name="Load", exact=True).click()
        row = page.get_by_role("region", name="Loaded models").locator("tr", has_text="second")
        row.get_by_text("answers", exact=True).wait_for(timeout=120_000)

        for target in (MODEL, "second"):
            page.get_by_label("Alias", exact=True).fill("prod")
            page.get_by_label("Answers as").select_option(target)
            page.get_by_role("button", name="Set alias").click()
            page.get_by_role("region", name="Aliases").locator("tr", has_text="prod") \
                .locator("td", has_text=target).first.wait_for()
        page.get_by_role("button", name=f"Roll prod back to {MODEL}").click()
        page.get_by_role("region", name="Aliases").locator("td", has_text=MODEL).wait_for()
        self.assertEqual(call("GET", "/admin/aliases/prod", key=ADMIN_KEY)["target"], MODEL)
        self.shot(page, "models-aliases")
        self.check_axe(page)
        self.check_fits(page)

        page.get_by_role("button", name="Delete alias prod").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        page.get_by_role("button", name="Delete alias prod").wait_for(state="detached")
        page.get_by_role("button", name="Unload second").click()
        page.get_by_role("dialog").get_by_role("button", name="Unload").click()
        row.wait_for(state="detached", timeout=60_000)

    def test_what_cannot_be_loaded_says_why(self):
        self.expect_error("status of 409")
        page = self.open("models", key=ADMIN_KEY, size="phone", scheme="dark")
        page.get_by_label("Model", exact=True).select_option("stories-copy")
        page.get_by_label("Name", exact=True).fill(MODEL)
        page.get_by_role("button", name="Load", exact=True).click()
        page.get_by_text("choose another id").wait_for()
        self.check_fits(page)
        self.check_axe(page)
        self.shot(page, "models-phone")

    def test_without_the_admin_key_models_are_only_listed(self):
        self.expect_error("status of 403")
        page = self.open("models", url=KEYED_URL, key=API_KEY)
        page.get_by_text("To load, unload and rename models, enter the admin key.").wait_for()
        page.get_by_role("cell", name=MODEL).first.wait_for()
        self.assertEqual(page.get_by_role("heading", name="Load a model").count(), 0)
        page.get_by_role("button", name="Enter admin key").click()
        page.get_by_label("Key", exact=True).fill(ADMIN_KEY)
        page.get_by_role("button", name="Use key").click()
        page.get_by_role("heading", name="Load a model").wait_for()

    def test_hostile_names_are_text(self):
        page = self.open("models", key=ADMIN_KEY)
        page.route("**/admin/models/available", lambda route: route.fulfill(json={
            "data": [{"path": HOSTILE_NAME, "kind": "directory", "family": HOSTILE_NAME,
                      "dtype": None, "base": None, "bytes": 1, "loaded_as": []}],
            "complete": False}))
        page.reload()
        page.get_by_text("There are more folders").wait_for()
        self.assertEqual(page.locator("main img").count(), 0)
        self.check_fits(page)


if __name__ == "__main__":
    unittest.main()
