"""Shared by the Python suites: the address, the expected answers, and the tool that agents call."""

import json
import os

import pydantic

URL = os.environ["TANDEM_URL"]
BASE = URL + "/v1"
KEY = os.environ["TANDEM_TEST_API_KEY"]
MODEL = "scripted"
EXPECTED = json.loads(os.environ["TANDEM_TEST_SCRIPTS"])


class Person(pydantic.BaseModel):
    """A person."""

    name: str
    age: int
    languages: list[str]


class Report(pydantic.BaseModel):
    """The weather in a city."""

    city: str
    degrees: int


ADA = Person(**EXPECTED["ada"])
REPORT = Report(**EXPECTED["report"])
# The cities of the calls so far; tests clear it.
asked = []


def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: Its name.
    """
    asked.append(city)
    return {"Paris": "sunny, 21 °C", "Oslo": "snow, -3 °C"}[city]


WEATHER_PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}},
                      "required": ["city"], "additionalProperties": False}
PATCH_GRAMMAR = {"syntax": "lark", "definition": r"""
start: "*** Begin Patch\n" line+ "*** End Patch\n"
line: /[-+ @*][^\n]*\n/
"""}
