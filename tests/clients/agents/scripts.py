"""The answers of the scripted model: for each `#NAME` in a user message, one answer per turn."""

import json


def call(name, /, **arguments):
    """A tool call as Hermes models write it."""
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


PLAIN = "Grüße! I am a small model, and I always give this answer. 🦊"
SUNNY = "It is sunny in Paris, 21 °C."
BOTH = "Paris is sunny; Oslo has snow."
ADA = {"name": "Ada Lovelace", "age": 36, "languages": ["English", "French"]}
REPORT = {"city": "Paris", "degrees": 21}

SCRIPTS = {
    "plain": [PLAIN],
    "weather": [call("get_weather", city="Paris"), SUNNY],
    "pair": ["I ask for both.\n" + call("get_weather", city="Paris") + "\n"
             + call("get_weather", city="Oslo"), BOTH],
    "person": [json.dumps(ADA)],
    "report": [call("get_weather", city="Paris"), json.dumps(REPORT)],
    # Frameworks that return an object through a tool of their own.
    "person-call": [call("Person", **ADA)],
    "person-retry": [call("Person", name="Ada Lovelace", age=-36, languages=["English"]),
                     call("Person", **ADA)],
    "hand-off": [call("to_reporter"), call("get_weather", city="Paris"), SUNNY],
    "report-call": [call("get_weather", city="Paris"), call("final_result", **REPORT)],
}

# What the suites expect, by name.
EXPECTED = {"plain": PLAIN, "sunny": SUNNY, "both": BOTH, "ada": ADA, "report": REPORT}
