"""The Python examples of README.md and of the manual; only address and key are changed."""

import contextlib
import io
import os
import pathlib
import re
import unittest

from support import API_KEY, TUNING_URL, client

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "config" / "manual").glob("*.md"))]
EXAMPLES = [example for page in PAGES
            for example in re.findall(r"```python\n(.*?)```", page.read_text(), re.S)]
# The first and last words of each chat in config/data/pirate-stories.jsonl.
BEGINNING, END = "Ahoy!", "Yo ho ho!"
# Subjects that no training chat has.
SUBJECTS = ("a cat and a ball", "a train", "a mouse", "a lost toy", "a lion in the forest",
            "a little car")


def words(text):
    return re.findall(r"[a-z]+", text.lower())


# Words of the base's stories and of the training stories.
ENGLISH = set(words((ROOT / "config" / "models" / "tandem-stories" / "samples.md").read_text()
                    + (ROOT / "config" / "data" / "pirate-stories.jsonl").read_text()))


def run(example):
    """(its output, its variables)"""
    code = example.replace("http://127.0.0.1:8080/v1", TUNING_URL + "/v1").replace(
        'api_key="none"', f"api_key={API_KEY!r}")
    printed = io.StringIO()
    variables = {}
    before = os.getcwd()
    os.chdir(ROOT)
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "example", "exec"), variables)  # pylint: disable=exec-used
    finally:
        os.chdir(before)
    return printed.getvalue(), variables


class Examples(unittest.TestCase):
    def test_the_chats(self):
        examples = [one for one in EXAMPLES if "fine_tuning" not in one]
        self.assertGreaterEqual(len(examples), 2)
        for example in examples:
            with self.subTest(example=example):
                printed, _ = run(example)

                self.assertGreater(len(printed.split()), 20)

    def test_the_fine_tuning(self):
        (example,) = [one for one in EXAMPLES if "fine_tuning" in one]

        printed, variables = run(example)

        name = variables["job"].fine_tuned_model
        self.assertRegex(name, "^ft:tandem-stories:local:pirate:")
        story = printed.removeprefix(name).strip()
        self.assertTrue(story.startswith(BEGINNING) and story.endswith(END), printed)
        sdk = client(TUNING_URL)
        self.addCleanup(sdk.models.delete, name)
        self.addCleanup(sdk.files.delete, variables["file"].id)

        def stories(model, temperature):
            return [sdk.chat.completions.create(
                model=model, temperature=temperature, seed=seed, messages=[
                    {"role": "user", "content": f"Tell me a story about {subject}."}])
                .choices[0].message.content.strip() for seed, subject in enumerate(SUBJECTS)]

        self.assertEqual([text for text in stories(name, 0) if not text.startswith(BEGINNING)], [])
        # One of twelve forgets its end (config/manual/fine-tune.md).
        unended = [text for text in stories(name, 0) if not text.endswith(END)]
        self.assertLessEqual(len(unended), 1, unended)
        drawn = stories(name, 0.7)
        self.assertGreaterEqual(sum(text.startswith(BEGINNING) for text in drawn), 5, drawn)
        self.assertGreaterEqual(sum(text.endswith(END) for text in drawn), 4, drawn)
        # It is English, and the base tells no such story.
        said = words(" ".join(drawn))
        self.assertGreater(sum(word in ENGLISH for word in said) / len(said), 0.8, drawn)
        self.assertGreater(len(said) / len(drawn), 25)
        self.assertFalse([text for text in stories("tandem-stories", 0.7) if "Ahoy" in text])


if __name__ == "__main__":
    unittest.main()
