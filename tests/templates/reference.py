"""Jinja2, set up as in transformers' apply_chat_template."""

import datetime
import json

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    """{% generation %} passes its body through."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_pass"), [], [], body).set_lineno(line)

    @staticmethod
    def _pass(caller):
        return caller()


class Rejected(jinja2.TemplateError):
    """The template's own raise_exception."""


def _raise_exception(message):
    raise Rejected(message)


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


class Reference:
    def __init__(self):
        self.now = 0
        self.source, self.compiled = None, None
        self.environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
        self.environment.filters["tojson"] = _tojson
        self.environment.globals["raise_exception"] = _raise_exception
        self.environment.globals["strftime_now"] = self._strftime_now

    def _strftime_now(self, form):
        when = datetime.datetime.fromtimestamp(self.now, datetime.timezone.utc)
        return when.replace(tzinfo=None).strftime(form)

    def render(self, case):
        """{"text"}, {"rejected"} with the template's own words, or {"fault"}."""
        self.now = case["now"]
        # The values of a template's inputs that a chat lacks.
        names = {"documents": None, **case["extra"]}
        names.update({name: case[name] for name in
                      ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")})
        try:
            if case["template"] != self.source:
                self.source, self.compiled = None, self.environment.from_string(case["template"])
                self.source = case["template"]
            return {"text": self.compiled.render(names)}
        except Rejected as fault:
            return {"rejected": str(fault)}
        except Exception as fault:  # any exception of Python or Jinja in a template
            return {"fault": f"{type(fault).__name__}: {fault}"}
