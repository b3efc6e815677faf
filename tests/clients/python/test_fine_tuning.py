"""Files and fine-tuning as in OpenAI's guide, with only `base_url` changed."""

import asyncio
import contextlib
import io
import json
import pathlib
import tempfile
import time
import unittest
import uuid

import openai
from openai.types.fine_tuning import FineTuningJobEvent

import support
from support import MODEL, TUNING_URL

ANIMALS = ("dog", "cat", "bird", "frog", "fox", "hen", "cow", "pig", "ant", "bee", "owl", "bat")
ENDED = {"succeeded", "failed", "cancelled"}
# Jobs run in the idle class, so they are slow on a busy machine.
PATIENCE_S = 200


def client(kind=openai.OpenAI, **options):
    return support.client(TUNING_URL, kind, **options)


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def question(animal):
    return {"role": "user", "content": f"Tell me a story about a {animal}."}


CHATS = lines({"messages": [question(animal), {"role": "assistant",
                                               "content": f"Once there was a {animal}."}]}
              for animal in ANIMALS)
PAIRS = lines({"input": {"messages": [question(animal)]},
               "preferred_output": [{"role": "assistant", "content": f"The {animal} was happy."}],
               "non_preferred_output": [{"role": "assistant", "content": f"The {animal} was sad."}]}
              for animal in ANIMALS)


def supervised(**hyperparameters):
    return {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}


class Files(unittest.TestCase):
    """Every way to upload and to download a file."""

    def setUp(self):
        self.sdk = client()

    def created(self, file, **more):
        stored = self.sdk.files.create(file=file, purpose="fine-tune", **more)
        self.addCleanup(self.sdk.files.delete, stored.id)
        return stored

    def test_a_path_bytes_a_stream_and_a_name_with_each(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "chats.jsonl")
            path.write_bytes(CHATS)
            with path.open("rb") as stream:
                stored = [(self.created(path), "chats.jsonl"),
                          (self.created(stream), "chats.jsonl"),
                          (self.created(CHATS), "upload"),
                          (self.created(io.BytesIO(CHATS)), "upload"),
                          (self.created(("a.jsonl", CHATS)), "a.jsonl"),
                          (self.created(("b.jsonl", io.BytesIO(CHATS), "application/jsonl")),
                           "b.jsonl")]

        for file, name in stored:
            self.assertEqual((file.filename, file.bytes, file.status),
                             (name, len(CHATS), "processed"))
            self.assertEqual(self.sdk.files.content(file.id).read(), CHATS)

    def test_content_is_read_at_once_in_pieces_and_into_a_file(self):
        file = self.created(("c.jsonl", CHATS))
        whole = self.sdk.files.content(file.id)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "back.jsonl")
            with self.sdk.files.with_streaming_response.content(file.id) as pieces:
                pieces.stream_to_file(path)
            self.assertEqual(path.read_bytes(), CHATS)

        self.assertEqual((whole.text.encode(), whole.content), (CHATS, CHATS))
        with self.assertWarns(DeprecationWarning):
            self.assertEqual(self.sdk.files.retrieve_content(file.id).encode(), CHATS)

    def test_it_is_processed_when_one_waits_for_it(self):
        file = self.created(("d.jsonl", CHATS), expires_after={"anchor": "created_at",
                                                               "seconds": 3600})

        self.assertEqual(self.sdk.files.wait_for_processing(file.id, max_wait_seconds=5), file)
        self.assertEqual(self.sdk.files.retrieve(file.id), file)

    def test_pages_one_by_one_and_iterated(self):
        ids = [self.created((f"{i}.jsonl", CHATS)).id for i in range(3)]
        page = self.sdk.files.list(purpose="fine-tune", limit=2, order="desc")
        self.assertEqual([file.id for file in page.data], ids[:0:-1])
        self.assertTrue(page.has_next_page())
        self.assertEqual(page.get_next_page().data[0].id, ids[0])
        for order, want in (("desc", ids[::-1]), ("asc", ids)):
            listed = [file.id for file in self.sdk.files.list(limit=1, order=order)]
            self.assertEqual([one for one in listed if one in ids], want)
        after = self.sdk.files.list(after=ids[0], order="asc")
        self.assertEqual([file.id for file in after][:2], ids[1:])

    def test_deleted_is_gone(self):
        file = self.sdk.files.create(file=CHATS, purpose="fine-tune")

        gone = self.sdk.files.delete(file.id)

        self.assertEqual((gone.id, gone.object, gone.deleted), (file.id, "file", True))
        for call in (self.sdk.files.retrieve, self.sdk.files.content, self.sdk.files.delete):
            with self.assertRaises(openai.NotFoundError):
                call(file.id)


class JobsCase(unittest.TestCase):
    def setUp(self):
        self.sdk = client()
        # The SDK's types lack the status `paused`.
        self.loose = client(strict=False)
        self.mark = {"test": uuid.uuid4().hex}
        self.addCleanup(self.clean_up)
        self.file = self.sdk.files.create(file=("chats.jsonl", CHATS), purpose="fine-tune").id

    def clean_up(self):
        for job in self.loose.fine_tuning.jobs.list(metadata=self.mark):
            if job.status not in ENDED:
                # A job that the test has cancelled may end between the two calls.
                with contextlib.suppress(openai.BadRequestError):
                    self.loose.fine_tuning.jobs.cancel(job.id)
                self.wait(job.id, ENDED)
        self.sdk.files.delete(self.file)

    def create(self, **more):
        return self.sdk.fine_tuning.jobs.create(
            **{"model": MODEL, "training_file": self.file, "metadata": self.mark, **more})

    def wait(self, job_id, states):
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            job = self.loose.fine_tuning.jobs.retrieve(job_id)
            if job.status in states:
                return job
            time.sleep(0.1)
        self.fail(f"{job_id} is {job.status}, not one of {states}")

    def succeeded(self, job_id):
        job = self.wait(job_id, ENDED)
        self.assertEqual((job.status, job.error), ("succeeded", None))
        return job


class Jobs(JobsCase):
    def test_a_file_becomes_a_model_that_answers_while_the_next_one_is_trained(self):
        jobs = self.sdk.fine_tuning.jobs
        valid = self.sdk.files.create(file=CHATS, purpose="fine-tune")
        self.addCleanup(self.sdk.files.delete, valid.id)
        job = self.create(suffix="guide", seed=3, validation_file=valid.id,
                          method=supervised(n_epochs=2, batch_size=4))
        self.assertIn(job.status, ("validating_files", "queued", "running"))
        self.assertEqual((job.seed, job.metadata, job.method.supervised.hyperparameters.n_epochs),
                         (3, self.mark, 2))
        with self.assertRaises(openai.ConflictError) as caught:
            self.sdk.with_options(max_retries=3).files.delete(self.file)
        self.assertEqual(caught.exception.code, "in_use")

        # The types have no call for a stream of events; the guide uses curl.
        stream = self.sdk.get(f"/fine_tuning/jobs/{job.id}/events",
                              options={"params": {"stream": True}}, cast_to=FineTuningJobEvent,
                              stream=True, stream_cls=openai.Stream[FineTuningJobEvent])
        streamed = list(stream)
        losses = [event.data for event in streamed
                  if event.type == "metrics" and "train_loss" in event.data]
        self.assertEqual([data["step"] for data in losses], [1, 2, 3, 4, 5, 6])
        self.assertLess(losses[-1]["train_loss"], losses[0]["train_loss"])

        done = self.succeeded(job.id)
        self.assertRegex(done.fine_tuned_model, f"^ft:{MODEL}:local:guide:")
        table = self.sdk.files.content(done.result_files[0]).text
        self.assertTrue(table.startswith("step,train_loss,train_accuracy,valid_loss,"))
        events = list(jobs.list_events(job.id, limit=3))
        self.assertEqual({event.id for event in events}, {event.id for event in streamed})
        self.assertEqual(len(events), len(streamed))
        self.assertGreaterEqual(events[0].created_at, events[-1].created_at)
        page = jobs.list_events(job.id, limit=3)
        self.assertEqual((len(page.data), page.has_next_page()), (3, True))
        self.assertEqual(jobs.list_events(job.id, after=events[4].id, limit=1).data, [events[5]])
        checkpoints = list(jobs.checkpoints.list(job.id, limit=1))
        self.assertGreaterEqual(len(checkpoints), 1)
        (last,) = [one for one in checkpoints if one.step_number == 6]
        self.assertEqual((last.fine_tuned_model_checkpoint, last.fine_tuning_job_id),
                         (done.fine_tuned_model, job.id))
        self.assertIsNotNone(last.metrics.valid_loss)

        other = self.create(method=supervised(n_epochs=50, batch_size=1))
        self.wait(other.id, {"running"})
        asked = {"model": done.fine_tuned_model, "messages": [question("dog")], "max_tokens": 40,
                 "temperature": 0}
        plain = self.sdk.chat.completions.create(**asked)
        chunks = list(self.sdk.chat.completions.create(**asked, stream=True))
        self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in chunks),
                         plain.choices[0].message.content)
        self.assertEqual({chunk.model for chunk in chunks}, {done.fine_tuned_model})
        self.assertEqual(jobs.retrieve(other.id).status, "running")
        jobs.cancel(other.id)

        self.assertEqual(self.sdk.models.retrieve(done.fine_tuned_model).id, done.fine_tuned_model)
        self.assertTrue(self.sdk.models.delete(done.fine_tuned_model).deleted)
        with self.assertRaises(openai.NotFoundError):
            self.sdk.chat.completions.create(**asked)
        self.assertEqual(self.wait(other.id, ENDED).status, "cancelled")

    def test_preferences(self):
        pairs = self.sdk.files.create(file=PAIRS, purpose="fine-tune")
        self.addCleanup(self.sdk.files.delete, pairs.id)

        job = self.create(training_file=pairs.id, method={"type": "dpo", "dpo": {
            "hyperparameters": {"beta": 0.2, "n_epochs": 1, "batch_size": 4}}})

        self.assertEqual(job.method.type, "dpo")
        self.assertEqual((job.method.dpo.hyperparameters.beta,
                          job.method.dpo.hyperparameters.n_epochs), (0.2, 1))
        done = self.succeeded(job.id)
        self.assertTrue(self.sdk.models.delete(done.fine_tuned_model).deleted)

    def test_auto_is_chosen_and_the_old_place_of_hyperparameters_counts(self):
        job = self.create(hyperparameters={"n_epochs": 1, "batch_size": "auto"},
                          suffix="old", integrations=[])

        self.assertEqual(job.hyperparameters.n_epochs, 1)
        self.assertIsInstance(job.hyperparameters.batch_size, int)
        self.assertEqual(job.method.supervised.hyperparameters.model_dump(),
                         job.hyperparameters.model_dump())
        self.sdk.fine_tuning.jobs.cancel(job.id)

    def test_paused_resumed_cancelled(self):
        jobs = self.loose.fine_tuning.jobs
        job = self.create(method=supervised(n_epochs=50, batch_size=1))
        self.wait(job.id, {"running"})

        self.assertEqual(jobs.pause(job.id).id, job.id)
        self.wait(job.id, {"paused"})
        self.assertIn(jobs.resume(job.id).status, ("queued", "running"))
        self.wait(job.id, {"running"})
        self.assertEqual(jobs.cancel(job.id).id, job.id)

        self.assertEqual(self.wait(job.id, ENDED).status, "cancelled")
        for call in (jobs.pause, jobs.resume, jobs.cancel):
            with self.assertRaises(openai.BadRequestError) as caught:
                call(job.id)
            self.assertEqual(caught.exception.code, "job_not_active")

    def test_lists_by_metadata(self):
        jobs = self.loose.fine_tuning.jobs
        ids = []
        for number in range(3):
            job = self.create(metadata={**self.mark, "n": str(number)})
            jobs.cancel(job.id)
            ids.append(job.id)

        self.assertEqual([job.id for job in jobs.list(metadata=self.mark, limit=1)], ids[::-1])
        self.assertEqual([job.id for job in jobs.list(metadata={**self.mark, "n": "1"})], [ids[1]])
        page = jobs.list(metadata=self.mark, limit=2)
        self.assertTrue(page.has_next_page())
        self.assertEqual([job.id for job in page.get_next_page().data], [ids[0]])
        self.assertEqual(jobs.list(metadata=self.mark, after=ids[0]).data, [])
        self.assertEqual([job.id for job in jobs.list() if job.id in ids], ids[::-1])

    def test_what_is_wrong_has_its_class_and_its_place(self):
        sdk = self.sdk
        spoiled = sdk.files.create(file=CHATS.replace(b'"assistant"', b'"nobody"', 1),
                                   purpose="fine-tune")
        self.addCleanup(sdk.files.delete, spoiled.id)
        for call, kind, code, param in (
                (lambda: self.create(model="gpt-4o"), openai.NotFoundError, "model_not_found",
                 "model"),
                (lambda: self.create(training_file="file-none"), openai.NotFoundError,
                 "file_not_found", "training_file"),
                (lambda: self.create(training_file=spoiled.id), openai.BadRequestError,
                 "invalid_training_file", "training_file"),
                (lambda: self.create(method={"type": "reinforcement"}), openai.BadRequestError,
                 "unsupported_value", "method"),
                (lambda: sdk.fine_tuning.jobs.retrieve("ftjob-none"), openai.NotFoundError,
                 "job_not_found", "id")):
            with self.assertRaises(kind) as caught:
                call()
            self.assertEqual((caught.exception.code, caught.exception.param), (code, param))
            if code == "invalid_training_file":
                self.assertIn("line 1", caught.exception.message)


class Async(unittest.IsolatedAsyncioTestCase):
    async def test_the_same_calls_awaited(self):
        async with client(openai.AsyncOpenAI, strict=False) as sdk:
            jobs = sdk.fine_tuning.jobs
            mark = {"test": uuid.uuid4().hex}
            file = await sdk.files.create(file=CHATS, purpose="fine-tune")
            self.assertEqual((await sdk.files.wait_for_processing(file.id)).status, "processed")
            self.assertEqual((await sdk.files.content(file.id)).content, CHATS)
            self.assertIn(file.id, [one.id async for one in sdk.files.list(limit=1)])
            job = await jobs.create(model=MODEL, training_file=file.id, metadata=mark,
                                    method=supervised(n_epochs=1, batch_size=6))
            end = time.monotonic() + PATIENCE_S
            while job.status not in ENDED and time.monotonic() < end:
                await asyncio.sleep(0.1)
                job = await jobs.retrieve(job.id)
            self.assertEqual(job.status, "succeeded")
            self.assertEqual([one.id async for one in jobs.list(metadata=mark, limit=1)], [job.id])
            self.assertGreater(len([one async for one in jobs.list_events(job.id, limit=2)]), 3)
            (checkpoint,) = [one async for one in jobs.checkpoints.list(job.id)
                             if one.fine_tuned_model_checkpoint == job.fine_tuned_model]
            self.assertEqual(checkpoint.step_number, 2)
            await sdk.models.delete(job.fine_tuned_model)
            await sdk.files.delete(file.id)


if __name__ == "__main__":
    unittest.main()
