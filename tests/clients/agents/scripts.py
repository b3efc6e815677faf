"""The answers of the scripted model: for each `#NAME` in a user message, one answer per turn."""

import json


def call(name, /, **arguments):
    """A tool call as Hermes models write it."""
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def raw_input(name, text):
    """A call of a custom tool with a Lark grammar: its input ends the answer."""
    return f'<tool_input name="{name}">\n{text}'


PATCH = """\
*** Begin Patch
*** Update File: greeting.txt
@@
-hello
+goodbye
*** End Patch
"""
PLAIN = "Grüße! I am a small model, and I always give this answer. 🦊"
SUNNY = "It is sunny in Paris, 21 °C."
THOUGHT = "I look out of the window."
BOTH = "Paris is sunny; Oslo has snow."
ADA = {"name": "Ada Lovelace", "age": 36, "languages": ["English", "French"]}
REPORT = {"city": "Paris", "degrees": 21}

SCRIPTS = {
    "plain": [PLAIN],
    "weather": [call("get_weather", city="Paris"), SUNNY],
    "pair": ["I ask for both.\n" + call("get_weather", city="Paris") + "\n"
             + call("get_weather", city="Oslo"), BOTH],
    "thought": [f"<think>{THOUGHT}</think>{SUNNY}"],
    "person": [json.dumps(ADA)],
    "report": [call("get_weather", city="Paris"), json.dumps(REPORT)],
    # Frameworks that return an object through a tool of their own.
    "person-call": [call("Person", **ADA)],
    "person-partial": [call("PartialPerson", **ADA)],
    "person-retry": [call("Person", name="Ada Lovelace", age=-36, languages=["English"]),
                     call("Person", **ADA)],
    "person-json": [call("json", **ADA)],
    "report-json": [call("get_weather", city="Paris"), call("json", **REPORT)],
    "hand-off": [call("to_reporter"), call("get_weather", city="Paris"), SUNNY],
    # Programs with tools of their own.
    "patch": [raw_input("apply_patch", PATCH), "The greeting is changed."],
    "shell": [call("exec_command", cmd="cat greeting.txt"), "The greeting is read."],
    "write": [call("Write", file_path="letter.txt", content="Dear reader\n"),
              "The letter is written."],
    "read": [call("Read", filepath="greeting.txt"), "The greeting is read."],
    "write-path": [call("Write", filepath="letter.txt", content="Dear reader\n"),
                   "The letter is written."],
    "bash": [call("Bash", command="cat greeting.txt", description="Read the greeting"),
             "The greeting is read."],
    "lamp": [call("HassTurnOn", name="Lamp"), "The lamp is on."],
    "report-call": [call("get_weather", city="Paris"), call("final_result", **REPORT)],
}

# What the suites expect, by name.
EXPECTED = {"plain": PLAIN, "sunny": SUNNY, "both": BOTH, "ada": ADA, "report": REPORT,
            "patch": PATCH, "thought": THOUGHT}
