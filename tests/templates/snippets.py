"""Random templates: every construct of the language, in random combinations.

Expressions are built by type, so that most of them have a value. Differences and refusals listed in
engine/chat/README.md are omitted.
"""

STRINGS = ["''", "' '", "'\\n'", "'a'", "'b,c,,d'", "'Hello World'", "'  pad\\t'", "'äÉ中😀'", "'<|im_end|>'",
           "'it\\'s'", "\"q\\\"uo\"", "'ABC def-ghi (jkl)'", "'42'", "'-7'", "'2.5'", "'a\\nb\\r\\nc\\n'",
           "'xaxbxa'", "'None'", "'%'", "'\\u00e9\\x41'", "'role'", "'user'", "'0x1F'", "'word word  word'"]
NAMES = ["s", "t", "n", "k", "xs", "ys", "d", "e", "flag", "nothing", "missing"]
KEYS = ["role", "content", "name", "x", "y", "tool_calls", "missing"]

PRELUDE = ("{% set s = 'Some Text, here' %}{% set t = messages[0].content %}{% set n = 7 %}{% set k = -2 %}"
           "{% set xs = [3, 1, 2, 1] %}{% set ys = ['b', 'A', 'c', 'a'] %}"
           "{% set d = {'x': 1, 'role': 'r', 'y': [1, {'z': none}], 3: 'three'} %}{% set e = {} %}"
           "{% set flag = true %}{% set nothing = none %}")


class Maker:
    def __init__(self, rng):
        self.rng = rng
        self.budget = 0

    def pick(self, *choices):
        return self.rng.choice(choices)

    def one_of(self, plain, *makers):
        """One of the makers' expressions while the budget lasts, then a plain one."""
        self.budget -= 1
        if self.budget <= 0 or self.rng.random() < 0.25:
            return self.rng.choice(plain)
        return self.rng.choice(makers)()

    # ---- expressions

    def any(self):
        return self.pick(self.string, self.integer, self.number, self.truth, self.listing, self.mapping,
                         self.name)()

    def name(self):
        return self.pick(*NAMES)

    def string(self):
        return self.one_of(
            STRINGS + ["s", "t", "messages[0].role", "messages[-1]['content']", "bos_token"],
            lambda: f"{self.string()} + {self.string()}",
            lambda: f"({self.string()} ~ {self.any()})",
            lambda: f"({self.string()} * {self.integer()} )[:40]",
            lambda: f"{self.paren(self.string)} | {self.pick('trim', 'lower', 'upper', 'title', 'capitalize')}",
            lambda: f"{self.paren(self.string)}.{self.pick('strip', 'lstrip', 'rstrip')}({self.pick('', self.string())})",
            lambda: f"{self.paren(self.string)}.{self.pick('lower', 'upper', 'title', 'capitalize', 'swapcase')}()",
            lambda: f"{self.paren(self.string)}.replace({self.string()}, {self.string()})",
            lambda: f"{self.paren(self.string)} | replace({self.string()}, {self.string()})",
            lambda: f"{self.paren(self.string)}[{self.slice()}]",
            lambda: f"{self.paren(self.string)}[{self.integer()}]",
            lambda: f"{self.paren(self.string)}.split({self.string()})[{self.pick('0', '-1')}]",
            lambda: f"{self.paren(self.listing)} | join({self.pick('', self.string())})",
            lambda: f"{self.paren(self.string)}.join({self.paren(self.listing)} | map('string'))",
            lambda: f"{self.paren(self.any)} | string",
            lambda: f"{self.paren(self.any)} | tojson",
            lambda: f"{self.paren(self.any)} | tojson(indent={self.pick('2', '4', '0', 'none')})",
            lambda: f"{self.paren(self.any)} | tojson({self.pick('ensure_ascii=true', 'sort_keys=true', 'separators=(`,`, `:`)').replace('`', chr(39))})",
            lambda: f"({self.string()} if {self.truth()} else {self.string()})",
            lambda: f"{self.paren(self.string)} | indent({self.pick('', '2', '2, true', 'first=true', 'width=3, blank=true')})",
            lambda: f"{self.paren(self.string)} | default({self.string()})",
            lambda: f"{self.name()} | default({self.string()}, {self.truth()})",
            lambda: f"'%s|%s' % ({self.any()}, {self.any()})",
            lambda: f"'%d %05.2f %x' | format({self.integer()}, {self.number()}, n)",
            lambda: f"'{{}}-{{}}'.format({self.string()}, {self.integer()})",
            lambda: f"{self.paren(self.string)}.{self.pick('removeprefix', 'removesuffix')}({self.string()})",
            lambda: f"{self.paren(self.string)}.{self.pick('partition', 'rpartition')}({self.pick(chr(39) + ',' + chr(39), chr(39) + 'a' + chr(39))})[{self.pick('0', '1', '2', '-1')}]",
            lambda: f"{self.paren(self.string)} | {self.pick('string', 'reverse', 'first', 'last')}",
            lambda: f"{self.paren(self.string)}.{self.pick('zfill', 'ljust', 'rjust', 'center')}({self.pick('0', '3', '20')})",
            lambda: f"strftime_now({self.pick('%d %b %Y', '%Y-%m-%d', '%H:%M:%S', '%A, %B %-d', '%j %p %I')!r})",
            lambda: f"range({self.pick('3', '2, 8, 3', '5, 0, -2')}) | join({self.string()})",
        )

    def integer(self):
        return self.one_of(
            ["0", "1", "2", "3", "5", "-1", "n", "k", "10", "0x1f", "1_000", "true"],
            lambda: f"({self.integer()} {self.pick('+', '-', '*', '//', '%')} {self.integer()})",
            lambda: f"{self.paren(self.pick(self.string, self.listing, self.mapping))} | {self.pick('length', 'count')}",
            lambda: f"{self.paren(self.pick(self.string, self.number))} | {self.pick('int', 'wordcount')}",
            lambda: f"-{self.paren(self.integer)}",
            lambda: f"{self.paren(self.integer)} | abs",
            lambda: f"{self.paren(self.string)} | int({self.pick('', '5', 'default=-3', '0, 16', 'base=8')})",
            lambda: f"{self.paren(self.string)}.{self.pick('find', 'rfind', 'count', 'index')}({self.string()})",
            lambda: f"{self.paren(self.string)}.{self.pick('find', 'count')}({self.string()}, {self.integer()})",
            lambda: f"{self.paren(self.listing)}.{self.pick('index', 'count')}({self.any()})",
            lambda: "(xs | sum)",
            lambda: f"{self.paren(self.listing)} | {self.pick('first', 'last', 'max', 'min', 'sum')}",
            lambda: f"({self.integer()} if {self.truth()} else {self.integer()})",
            lambda: f"({self.integer()} ** {self.pick('0', '1', '2', '3')})",
        )

    def number(self):
        return self.one_of(
            ["1.5", "0.1", "2.0", "1e3", "1.5e-7", "3", "-0.25", "123456789.125"],
            lambda: f"({self.number()} {self.pick('+', '-', '*', '/', '//', '%')} {self.number()})",
            lambda: f"{self.paren(self.number)} | round({self.pick('', '1', '2', '0, `floor`', '1, `ceil`').replace('`', chr(39))})",
            lambda: f"{self.paren(self.any)} | float",
            self.integer,
        )

    def truth(self):
        return self.one_of(
            ["true", "false", "flag", "nothing", "missing", "add_generation_prompt", "none"],
            lambda: f"({self.any()} {self.pick('==', '!=')} {self.any()})",
            lambda: f"({self.integer()} {self.pick('<', '<=', '>', '>=')} {self.number()})",
            lambda: f"({self.string()} {self.pick('<', '>=')} {self.string()})",
            lambda: f"({self.integer()} < {self.integer()} <= {self.integer()})",
            lambda: f"({self.string()} {self.pick('in', 'not in')} {self.string()})",
            lambda: f"({self.any()} {self.pick('in', 'not in')} {self.paren(self.pick(self.listing, self.mapping))})",
            lambda: f"({self.truth()} {self.pick('and', 'or')} {self.truth()})",
            lambda: f"(not {self.truth()})",
            lambda: f"({self.paren(self.any)} is {self.pick('', 'not ')}{self.test()})",
            lambda: f"{self.paren(self.string)}.{self.pick('startswith', 'endswith')}({self.string()})",
            lambda: f"{self.paren(self.string)}.startswith(({self.string()}, {self.string()}))",
            lambda: f"{self.paren(self.string)}.{self.pick('isdigit', 'isalpha', 'isalnum', 'isspace', 'isupper', 'islower', 'isascii')}()",
            lambda: f"({self.paren(self.any)} {self.pick('and', 'or')} {self.paren(self.any)})",
        )

    def test(self):
        return self.pick("defined", "undefined", "none", "string", "number", "integer", "float", "boolean",
                         "mapping", "iterable", "sequence", "true", "false", "lower", "upper", "odd", "even",
                         "callable", f"divisibleby {self.pick('2', '3')}", f"eq {self.pick('1', 's')}",
                         f"equalto({self.any()})", f"ne({self.any()})", f"in [{self.any()}, {self.any()}]",
                         f"gt {self.pick('1', '2.5')}", "le(3)", "sameas none", "filter", "test")

    def listing(self):
        return self.one_of(
            ["xs", "ys", "[]", "[1, 'a', none, true, 2.5]", "(1, 2)", "messages", "[[1, 2], [3, 4]]",
             "[{'x': 2}, {'x': 1}, {'y': 3}]"],
            lambda: f"[{self.any()}, {self.any()}]",
            lambda: f"({self.any()}, {self.any()},)",
            lambda: f"{self.paren(self.listing)}[{self.slice()}]",
            lambda: f"({self.listing()} + {self.listing()})",
            lambda: f"([{self.any()}] * {self.pick('0', '2', '3')})",
            lambda: f"{self.paren(self.pick(self.listing, self.string, self.mapping))} | list",
            lambda: f"{self.paren(self.string)}.{self.pick('split', 'rsplit')}({self.pick('', self.string(), chr(39) + ',' + chr(39) + ', 1')})",
            lambda: f"{self.paren(self.string)}.splitlines({self.pick('', 'true')})",
            lambda: f"{self.pick('xs', 'ys')} | sort({self.pick('', 'reverse=true', 'case_sensitive=true')})",
            lambda: f"[{{'x': 2}}, {{'x': 1}}] | sort(attribute='x')",
            lambda: f"{self.paren(self.listing)} | unique | list",
            lambda: f"{self.paren(self.listing)} | reverse | list",
            lambda: f"{self.paren(self.listing)} | map({self.mapped()}) | list",
            lambda: f"{self.paren(self.listing)} | {self.pick('select', 'reject')}({self.pick('', self.tested())}) | list",
            lambda: f"messages | {self.pick('selectattr', 'rejectattr')}({self.pick(*KEYS)!r}{self.pick('', ', ' + self.tested())}) | list",
            lambda: f"{self.paren(self.listing)} | batch({self.pick('1', '2', '3')}{self.pick('', ', 0')}) | list",
            lambda: f"{self.paren(self.mapping)}.{self.pick('keys', 'values', 'items')}() | list",
            lambda: f"{self.paren(self.mapping)} | {self.pick('items | list', 'dictsort', 'dictsort(by=`value`)', 'dictsort(reverse=true)').replace('`', chr(39))}",
            lambda: f"range({self.pick('4', '1, 3', '9, 1, -3')}) | list",
            lambda: f"({self.listing()} if {self.truth()} else {self.listing()})",
            lambda: f"({self.listing()} or {self.listing()})",
        )

    def mapped(self):
        return self.pick("'string'", "'upper'", "'trim'", "'length'", "'tojson'", "'default', 'z'", "'first'",
                         "'replace', 'a', 'b'", "attribute='role'", "attribute='x', default=0", "attribute=0",
                         "'int'", "'list'", "attribute='content'")

    def tested(self):
        return self.pick("'string'", "'defined'", "'odd'", "'number'", "'none'", f"'equalto', {self.any()}",
                         f"'in', {self.paren(self.listing)}", "'mapping'", f"'ne', {self.any()}", "'undefined'")

    def mapping(self):
        return self.one_of(
            ["d", "e", "{}", "messages[0]", "{'a': 1, 'b': [2]}", "dict(x=1, y='z')"],
            lambda: f"{{{self.pick(*STRINGS)}: {self.any()}, 'x': {self.any()}}}",
            lambda: f"dict(d, w={self.any()})",
            lambda: f"dict([('k', {self.any()})])",
            lambda: f"{self.paren(self.mapping)}.copy()",
        )

    def item(self):
        return self.pick(
            lambda: f"{self.paren(self.mapping)}.{self.pick(*KEYS)}",
            lambda: f"{self.paren(self.mapping)}[{self.pick(*KEYS)!r}]",
            lambda: f"{self.paren(self.mapping)}.get({self.pick(*KEYS)!r}{self.pick('', ', ' + self.any())})",
            lambda: f"{self.paren(self.listing)}[{self.integer()}]",
            lambda: f"{self.paren(self.mapping)} | attr('x')",
            lambda: f"nothing.{self.pick(*KEYS)}",
            lambda: f"xs.{self.pick('0', '1', '9')}",
        )()

    def slice(self):
        part = lambda: self.pick("", "", "0", "1", "3", "-1", "-4", "n", "k", "99", "-99")
        return self.pick(f"{part()}:{part()}", f"{part()}:{part()}:{self.pick('1', '2', '-1', '-2')}", "::-1", "1:", ":-1")

    def paren(self, maker):
        made = maker()
        return made if made.replace("_", "a").isalnum() and not made[0].isdigit() else f"({made})"

    def expression(self):
        self.budget = self.rng.randrange(2, 14)
        return self.item() if self.rng.random() < 0.15 else self.any()

    # ---- statements

    def tag(self, inside):
        return (self.pick("{% ", "{% ", "{%- ", "{%", "{%+ ") + inside
                + self.pick(" %}", " %}", " -%}", "%}", " +%}"))

    def show(self, inside):
        return self.pick("{{ ", "{{- ", "{{") + inside + self.pick(" }}", " -}}", "}}")

    def text(self):
        return self.pick("", "\n", " ", "  \n  ", "text", "\n\nmore\n", "a {b} c", "# x", "{# note #}",
                         "  {#- note -#}\n", "é\t", "}} %}", "{% raw %}{{ s }}{% endraw %}", "  ")

    def block(self, depth):
        return "".join(self.statement(depth) for _ in range(self.rng.randrange(1, 4)))

    def statement(self, depth):
        if depth <= 0:
            return self.text() + self.show(self.expression()) + self.text()
        return self.text() + self.rng.choice([
            lambda: self.show(self.expression()),
            lambda: self.show(f"({self.expression()}) {self.pick('', '', '| e', '| safe')}"),
            lambda: self.conditional(depth), lambda: self.conditional(depth),
            lambda: self.loop(depth), lambda: self.loop(depth),
            lambda: self.tag(f"set {self.pick('s', 't', 'n', 'xs', 'd', 'new')} = {self.expression()}"),
            lambda: self.tag("set a, b = (1, 2)") + self.show("b ~ a"),
            lambda: self.tag("set s") + self.block(depth - 1) + self.tag("endset") + self.show("s"),
            lambda: self.tag("set s | " + self.pick("trim", "upper", "trim | lower")) + self.block(depth - 1)
            + self.tag("endset") + self.show("s"),
            lambda: self.spaces(depth), lambda: self.macro(depth), lambda: self.caller(depth),
            lambda: self.tag(f"with s = {self.expression()}, w = n") + self.block(depth - 1)
            + self.tag("endwith") + self.show("s ~ w"),
            lambda: self.tag("filter " + self.pick("upper", "trim", "replace('a', 'b')", "indent(2)", "trim | title"))
            + self.block(depth - 1) + self.tag("endfilter"),
            lambda: self.tag("generation") + self.block(depth - 1) + self.tag("endgeneration"),
        ])() + self.text()

    def conditional(self, depth):
        out = self.tag(f"if {self.expression()}") + self.block(depth - 1)
        for _ in range(self.rng.randrange(2)):
            out += self.tag(f"elif {self.expression()}") + self.block(depth - 1)
        if self.rng.random() < 0.5:
            out += self.tag("else") + self.block(depth - 1)
        return out + self.tag("endif")

    def loop(self, depth):
        self.budget = 6
        head, body = self.pick(
            (f"for x in {self.listing()}", self.show("x")),
            (f"for x in {self.string()}", self.show("x")),
            (f"for m in messages{self.pick('', '[1:]', '[::-1]')}", self.show("m.role ~ m['content']")),
            (f"for key, value in {self.paren(self.mapping)}.items()", self.show("key ~ '=' ~ value")),
            ("for key, value in d | items", self.show("key ~ value")),
            (f"for x in {self.mapping()}", self.show("x")),
            (f"for x in range({self.pick('3', '1, 4')})", self.show("x * 2")),
            ("for a, (b, c) in [(1, (2, 3)), (4, (5, 6))]", self.show("a + b + c")),
        )
        if " in " in head and self.rng.random() < 0.25:
            head += " if " + self.pick("loop is undefined", "x is defined", "flag", "n > 3", "x is string")
        body += self.show("loop." + self.pick("index", "index0", "revindex", "revindex0", "first", "last", "length",
                                              "depth", "depth0", "previtem", "nextitem", "cycle('a', 'b', 3)",
                                              "changed(n)", "changed(loop.index // 2)"))
        if self.rng.random() < 0.3:
            body += self.tag(f"if loop.index {self.pick('==', '>')} {self.pick('1', '2')}") + self.tag(
                self.pick("break", "continue")) + self.tag("endif")
        body += self.block(depth - 1)
        out = self.tag(head) + body
        if self.rng.random() < 0.3:
            out += self.tag("else") + self.block(depth - 1)
        return out + self.tag("endfor")

    def spaces(self, depth):
        return (self.tag(f"set ns = namespace(a={self.expression()}, b=0)")
                + self.tag("for x in [1, 2, 3]") + self.tag("set ns.b = ns.b + x") + self.block(depth - 1)
                + self.tag("endfor") + self.show("ns.a") + self.show("ns['b']") + self.show("ns.c is defined"))

    def macro(self, depth):
        name = self.pick("f", "g", "render")
        self.budget = 5
        # An extra argument is a fault unless the macro uses varargs or kwargs.
        extra, more = self.pick(("", ()), (self.show("varargs"), ("1, 2, 3, 4", "*xs")),
                                (self.show("kwargs"), ("1, u=2", "**{'v': 3}")))
        return (self.tag(f"macro {name}(p, q={self.pick('1', 's', 'none', 'p')}, r={self.string()})")
                + self.show("p") + self.show("q ~ r") + extra
                + self.block(depth - 1) + self.tag("endmacro")
                + self.show(f"{name}({self.pick('', self.any(), '1, 2', '1, r=3', 'q=s, p=2', '*[1, 2]', '1, **dict(r=4)', *more)})")
                + self.pick("", self.show(f"{name}(1) | upper")))

    def caller(self, depth):
        return (self.tag("macro wrap(title)") + "<" + self.show("title") + self.show(
                    self.pick("caller()", "caller()", "caller(1)"))
                + self.show(self.pick("caller is defined", "''")) + ">" + self.tag("endmacro")
                + self.tag(self.pick("call wrap('x')", "call(u=3) wrap(s)", "call(u=2) wrap(n)")) + self.block(depth - 1)
                + self.pick("", self.show("u")) + self.tag("endcall"))

    def template(self):
        return PRELUDE + "".join(self.statement(2) for _ in range(self.rng.randrange(1, 4)))
