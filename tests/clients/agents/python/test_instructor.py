"""instructor: objects through forced tools and through response formats, and its retries."""

import unittest

import instructor
import openai
import pydantic
from support import ADA, BASE, KEY, MODEL, Person


class Adult(Person):
    model_config = {"title": "Person"}

    @pydantic.field_validator("age")
    @classmethod
    def is_positive(cls, value):
        if value < 0:
            raise ValueError("an age is never negative")
        return value


# The tool has the name of the class.
Adult.__name__ = "Person"


def client(mode, kind=openai.OpenAI):
    return instructor.from_openai(kind(base_url=BASE, api_key=KEY, max_retries=0), mode=mode)


def asked(name, kind=Person, **more):
    return dict(model=MODEL, response_model=kind,
                messages=[{"role": "user", "content": f"Who? #{name}"}], **more)


class Objects(unittest.TestCase):
    def test_a_forced_tool_makes_the_object(self):
        for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT):
            sdk = client(mode)
            self.assertEqual(sdk.chat.completions.create(**asked("person-call")).model_dump(),
                             ADA.model_dump())

    def test_response_formats_make_the_object(self):
        for mode in (instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA):
            sdk = client(mode)
            self.assertEqual(sdk.chat.completions.create(**asked("person")).model_dump(),
                             ADA.model_dump())

    def test_an_object_that_its_validator_refuses_is_asked_for_again(self):
        sdk = client(instructor.Mode.TOOLS)
        attempts = []
        sdk.on("completion:response", attempts.append)

        person = sdk.chat.completions.create(**asked("person-retry", Adult, max_retries=2))

        self.assertEqual(person.age, 36)
        self.assertEqual(len(attempts), 2)

    def test_partial_objects_arrive_while_the_stream_runs(self):
        sdk = client(instructor.Mode.TOOLS)
        parts = list(sdk.chat.completions.create_partial(**asked("person-partial")))

        self.assertGreater(len(parts), 2)
        self.assertEqual(parts[-1].model_dump(), ADA.model_dump())


if __name__ == "__main__":
    unittest.main()
