"""Shared by the Python suites: addresses, clients, and queries of the server's state."""

import http.client
import json
import os
import time
import urllib.parse
import uuid

import openai

URL = os.environ["TANDEM_URL"]
BUSY_URL = os.environ["TANDEM_BUSY_URL"]
TLS_URL = os.environ["TANDEM_TLS_URL"]
TUNING_URL = os.environ["TANDEM_TUNING_URL"]
CA_FILE = os.environ["TANDEM_TEST_CA"]
STUB_URL = os.environ["TANDEM_STUB_URL"]
API_KEY = os.environ["TANDEM_TEST_API_KEY"]
ADMIN_KEY = os.environ["TANDEM_TEST_ADMIN_KEY"]
MODEL = "tandem-stories"
MESSAGES = [{"role": "user", "content": "Tell me a story about a dog."}]
# About a minute of work: 128 sequences that end only at the limit.
LONG = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 900, "n": 128,
        "extra_body": {"ignore_eos": True}}
# Cancelled work disappears at once. The limit is for slow machines, and far below LONG's time.
IDLE_LIMIT_S = 20


def client(url=URL, kind=openai.OpenAI, strict=True, **options):
    """The SDK as users set it up; a strict one refuses replies that do not match its types.

    Not for streams of completions: in their type `finish_reason` is never null. The type's own
    author, like everyone, sends null in all chunks except the last.
    """
    options = {"max_retries": 0, "timeout": 120, "api_key": API_KEY, **options}
    return kind(base_url=url + "/v1", _strict_response_validation=strict, **options)


def ask(url, path, key=API_KEY):
    """(status, text) of a GET without any SDK."""
    address = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    connection.request("GET", path, headers={"Authorization": f"Bearer {key}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def work(url=URL):
    """The number of running or waiting sequences."""
    status, text = ask(url, "/admin/models", ADMIN_KEY)
    assert status == 200, text
    return sum(model["running"] + model["waiting"] for model in json.loads(text)["data"])


def becomes_idle(url=URL):
    end = time.monotonic() + IDLE_LIMIT_S
    while time.monotonic() < end:
        if work(url) == 0:
            return True
        time.sleep(0.02)
    return False


def stubbed(fail, retry_after=None, should_retry=None, **options):
    """A client whose requests first meet the stub's refusals, and the id for queries of the stub."""
    stub_id = uuid.uuid4().hex
    headers = {"x-stub-fail": fail, "x-stub-id": stub_id}
    if retry_after is not None:
        headers["x-stub-retry-after"] = str(retry_after)
    if should_retry is not None:
        headers["x-stub-should-retry"] = should_retry
    return client(STUB_URL, default_headers=headers, **options), stub_id


def arrivals(stub_id):
    return json.loads(ask(STUB_URL, f"/stub/{stub_id}")[1])
