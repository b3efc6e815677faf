"""Makes the picture of the READMEs, server/console/pictures/chat.png: a model beside its fine-tune.

Trains on config/data/pirate-stories.jsonl first: seconds on an idle machine.
"""

import json
import pathlib
import time
import urllib.request
import uuid

import support

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "config" / "data" / "pirate-stories.jsonl"
TARGET = ROOT / "server" / "console" / "pictures" / "chat.png"
MAX_BYTES = 150_000
PATIENCE_S = 560


def call(path, body=None, kind="application/json"):
    request = urllib.request.Request(support.OPEN_URL + path, body, {"Content-Type": kind})
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())


def upload():
    mark = uuid.uuid4().hex
    body = (f'--{mark}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
            f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="{DATA.name}"'
            f"\r\n\r\n{DATA.read_text()}\r\n--{mark}--\r\n")
    return call("/v1/files", body.encode(), f"multipart/form-data; boundary={mark}")["id"]


def fine_tuned_model():
    job = call("/v1/fine_tuning/jobs", json.dumps({
        "model": support.MODEL, "training_file": upload(), "suffix": "pirate", "seed": 1,
        "method": {"type": "supervised", "supervised": {"hyperparameters": {
            "n_epochs": 20, "batch_size": 4, "learning_rate_multiplier": 10}}}}).encode())
    end = time.monotonic() + PATIENCE_S
    while job["status"] != "succeeded":
        assert job["status"] not in ("failed", "cancelled"), job
        assert time.monotonic() < end, f"still {job['status']} after {PATIENCE_S} s"
        time.sleep(1)
        job = call(f"/v1/fine_tuning/jobs/{job['id']}")
    return job["fine_tuned_model"]


def main():
    case = support.ConsoleCase()
    case.setUp()
    tuned = fine_tuned_model()
    page = case.open(query=f"?model={support.MODEL}&beside={tuned}")
    page.set_viewport_size({"width": 1200, "height": 700})
    page.get_by_text("Talk to a model").wait_for()
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_role("button", name="Settings").click()
    case.ask(page, "Tell me a story about a little car.")
    answer = page.locator(".lane").last.locator(".message.answer").inner_text()
    assert "Ahoy!" in answer, answer
    page.locator(".lane").last.get_by_role("button", name="Tokens").click()
    page.locator(".lane").last.locator(".tok").nth(0).hover()
    TARGET.parent.mkdir(exist_ok=True)
    page.screenshot(path=str(TARGET))
    size = TARGET.stat().st_size
    print(f"{TARGET}: {size} bytes")
    assert size <= MAX_BYTES, f"{TARGET} is larger than {MAX_BYTES} bytes"
    case.tearDown()


if __name__ == "__main__":
    main()
