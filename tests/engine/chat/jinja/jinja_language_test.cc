// The template language, feature by feature. Expectations come from Python's Jinja2 with
// trim_blocks and lstrip_blocks.
#include <gtest/gtest.h>

#include <utility>

#include "tests/engine/chat/rendering.h"

namespace tandem::engine::testing {
namespace {

using Cases = std::vector<std::pair<std::string, std::string>>;

const Json kMessages = Json::parse(R"([
  {"role": "system", "content": " Be nice.\n"},
  {"role": "user", "content": "Hi, Ärger", "n": 3, "none": null, "list": [1, 2.0, "x", null]},
  {"role": "assistant", "content": "a,b", "tool_calls": [{"function": {"name": "f"}}]}
])");

// {{ expression }} -> text.
void ExpectValues(const Cases& cases) {
  for (const auto& [expression, expected] : cases) {
    SCOPED_TRACE(expression);
    EXPECT_NO_THROW(EXPECT_EQ(Render("{{ " + expression + " }}", kMessages), expected));
  }
}

void ExpectTexts(const Cases& cases) {
  for (const auto& [source, expected] : cases) {
    SCOPED_TRACE(source);
    EXPECT_NO_THROW(EXPECT_EQ(Render(source, kMessages), expected));
  }
}

TEST(JinjaLanguage, ArithmeticIsPythons) {
  ExpectValues({
      {"1 + 2 * 3", "7"},
      {"10 - 2 - 3", "5"},
      {"7 // -2", "-4"},
      {"-7 % 3", "2"},
      {"7 % -2", "-1"},
      {"-7.5 % 2", "0.5"},
      {"7.5 // 2", "3.0"},
      {"2.0 // 0.1", "19.0"},
      {"-2.0 // 0.1", "-20.0"},
      {"0.0 // -3", "-0.0"},
      {"4 / 2", "2.0"},
      {"2 ** 10", "1024"},
      {"-2 ** 2", "4"},  // Jinja binds the minus first
      {"2 ** 3 ** 2", "64"},
      {"2 ** -1", "0.5"},
      {"true + true", "2"},
      {"- -5", "5"},
      {"0x1F + 0b11 + 0o17", "49"},
      {"1_000", "1000"},
  });
}

TEST(JinjaLanguage, NumbersPrintAsInPython) {
  ExpectValues({
      {"0.1 + 0.2", "0.30000000000000004"},
      {"1e3", "1000.0"},
      {"1e15", "1000000000000000.0"},
      {"1e16", "1e+16"},
      {"0.0001", "0.0001"},
      {"1.5e-7", "1.5e-07"},
      {"123456789012345678.0", "1.2345678901234568e+17"},
      {"-0.0", "-0.0"},
      {"true", "True"},
      {"none", "None"},
  });
}

TEST(JinjaLanguage, ContainersPrintAsInPython) {
  ExpectValues({
      {"[1, 'a', none, true, 2.5]", "[1, 'a', None, True, 2.5]"},
      {"(1,)", "(1,)"},
      {"(1, 2)", "(1, 2)"},
      {"()", "()"},
      {"{'a': 1, 'b': [1, {'c': none}]}", "{'a': 1, 'b': [1, {'c': None}]}"},
      {"{1: 'x', 1.0: 'y', true: 'z'}", "{1: 'z'}"},
      {"[\"it's\", 'q\"', '\\n\\t\\\\']", R"(["it's", 'q"', '\n\t\\'])"},
      {"['\\x07\\u00e9\\u200b']", "['\\x07é\\u200b']"},
      {"messages[1].list", "[1, 2.0, 'x', None]"},
  });
}

TEST(JinjaLanguage, TruthIsPythons) {
  ExpectValues({
      {"0 or 'x'", "x"},
      {"'' or [] or {} or none or 'y'", "y"},
      {"1 and 2", "2"},
      {"'0' and 'true'", "true"},
      {"not undefined_name", "True"},
      {"not 1 == 2", "True"},
      {"'yes' if [0] else 'no'", "yes"},
      // Lazy filters are true even if they produce nothing.
      {"(messages | selectattr('role', 'equalto', 'nobody')) and 'lazy'", "lazy"},
  });
}

TEST(JinjaLanguage, ComparisonsChainAndCrossNumberTypes) {
  ExpectValues({
      {"1 < 2 < 3", "True"},
      {"1 < 3 < 2", "False"},
      {"1 == 1.0 == true", "True"},
      {"9007199254740993 == 9007199254740992.0", "False"},
      {"'Z' < 'a'", "True"},
      {"[1, 2] < [1, 3]", "True"},
      {"(1, 2) == [1, 2]", "False"},
      {"{'a': 1, 'b': 2} == {'b': 2, 'a': 1}", "True"},
      {"'a' in 'abc'", "True"},
      {"'x' not in ['x']", "False"},
      {"'role' in messages[0]", "True"},
      {"messages[0] == messages[0]", "True"},
  });
}

TEST(JinjaLanguage, UndefinedPrintsNothingAndIsEmpty) {
  ExpectValues({
      {"undefined_name", ""},
      {"undefined_name ~ 'a'", "a"},
      {"undefined_name | length", "0"},
      {"undefined_name is defined", "False"},
      {"undefined_name == none", "False"},
      {"messages[99] is undefined", "True"},
      {"messages[0].missing is defined", "False"},
      {"'a' if false", ""},
  });
}

TEST(JinjaLanguage, UndefinedCannotBeUsed) {
  EXPECT_EQ(FaultOf("a\n {{ nobody.name }}"),
            "chat template line 2, column 5: 'nobody' is undefined");
  EXPECT_NE(FaultOf("{{ nobody + 1 }}"), "");
  EXPECT_NE(FaultOf("{{ nobody() }}"), "");
  EXPECT_NE(FaultOf("{{ nobody < 1 }}"), "");
  EXPECT_NE(FaultOf("{{ messages[0].x.y }}", kMessages), "");
}

TEST(JinjaLanguage, WrongTypesAreFaultsAsInPython) {
  for (const char* expression :
       {"'a' + 1", "[1] + (2,)", "none + 'a'", "1 < 'a'", "1 // 0", "1.0 / 0", "5 % 0",
        "9223372036854775807 + 1", "'a'()", "1 in 'abc'", "{[1]: 2}", "[3, 'a'] | sort",
        "5 | length", "[1].append(2)", "'abc'.split('')", "range(1, 2, 0) | list"}) {
    SCOPED_TRACE(expression);
    EXPECT_NE(FaultOf("{{ " + std::string(expression) + " }}"), "");
  }
}

TEST(JinjaLanguage, SlicesAndIndexesCountCodePoints) {
  ExpectValues({
      {"'äöü'[1:]", "öü"},
      {"'äöü'[-1]", "ü"},
      {"'abcdef'[::-1]", "fedcba"},
      {"'abcdef'[4:1:-1]", "edc"},
      {"'abcdef'[-3:]", "def"},
      {"'abcdef'[:-1]", "abcde"},
      {"'abcdef'[-100:100:2]", "ace"},
      {"'abc'[5]", ""},
      {"[1, 2, 3, 4][3:0:-2]", "[4, 2]"},
      {"(1, 2, 3)[1:]", "(2, 3)"},
      {"messages[1:] | length", "2"},
      {"messages[::-1][0].role", "assistant"},
      {"messages.0.role", "system"},
      {"'äöü' | length", "3"},
  });
}

TEST(JinjaLanguage, StringLiteralsKnowPythonsEscapes) {
  ExpectValues({
      {R"("a\tb\n\\ \x41 \u00e4 \U0001F600 \101 \q")", "a\tb\n\\ A ä 😀 A \\q"},
      {"'a' 'b' \"c\"", "abc"},
      {"'it\\'s'", "it's"},
      {"'a\\\nb'", "ab"},
      {"'line\r\nbreak'", "line\nbreak"},
  });
}

TEST(JinjaLanguage, PrecedenceIsJinjas) {
  ExpectValues({
      {"2 * 3 ~ 4", "64"},
      {"5 ~ 5 + 1 if false else 'x'", "x"},
      {"'a' | upper == 'A'", "True"},
      {"not 'a' in 'b'", "True"},
      {"not none is none", "False"},
      {"messages | length - 1", "2"},
      {"'<' + messages[0].content | trim + '>'", "<Be nice.>"},
      {"-1 | abs", "1"},
      {"1 if none else 2 if none else 3", "3"},
      {"'a' is string and 1 is number", "True"},
      {"'A' 'B' | lower", "ab"},
  });
}

TEST(JinjaLanguage, StringMethods) {
  ExpectValues({
      {"'  x '.strip() ~ '|'", "x|"},
      {"'xxaxx'.lstrip('x')", "axx"},
      {"'xyaxy'.rstrip('yx')", "xya"},
      {"'a b  c '.split()", "['a', 'b', 'c']"},
      {"'a b  c'.split(' ')", "['a', 'b', '', 'c']"},
      {"' a b c '.split(none, 1)", "['a', 'b c ']"},
      {"'a,b,c'.split(',', 1)", "['a', 'b,c']"},
      {"'a,b,c'.rsplit(',', 1)", "['a,b', 'c']"},
      {"'a\\nb\\r\\nc\\n'.splitlines()", "['a', 'b', 'c']"},
      {"\"they're bill's\".title()", "They'Re Bill'S"},
      {"'hELLO'.capitalize()", "Hello"},
      {"'Ärger'.upper() ~ 'ÄÖ'.lower() ~ 'straße'.upper()", "ÄRGERäöSTRASSE"},
      {"'abc'.startswith('ab') and 'abc'.endswith(('x', 'c'))", "True"},
      {"'abab'.replace('a', 'x', 1)", "xbab"},
      {"'abc'.replace('', '-')", "-a-b-c-"},
      {"'äbäb'.rfind('b')", "3"},
      {"'abc'.find('z')", "-1"},
      {"'abcabc'.count('bc')", "2"},
      {"'-'.join(['a', 'b'])", "a-b"},
      {"'a-b-c'.partition('-')", "('a', '-', 'b-c')"},
      {"'a-b-c'.rpartition('-')", "('a-b', '-', 'c')"},
      {"'prefixx'.removeprefix('pre').removesuffix('x')", "fix"},
      {"'{} {} {a} {{}}'.format(1, 'b', a=none)", "1 b None {}"},
      {"'%s-%d-%.2f|%5s|%-3s|%%' % ('a', 3, 2.5, 'r', 'l')", "a-3-2.50|    r|l  |%"},
      {"'12'.isdigit() and 'ab'.isalpha() and ' '.isspace() and 'AB1'.isupper()", "True"},
  });
}

TEST(JinjaLanguage, DictAndListMethods) {
  ExpectValues({
      {"{'a': 1}.items() | list", "[('a', 1)]"},
      {"{'a': 1}.keys() | list", "['a']"},
      {"{'a': 1}.values() | list", "[1]"},
      {"{'a': 1}.get('b') ~ {'a': 1}.get('b', 2) ~ {'a': 1}.get('a')", "None21"},
      {"{'items': 7}['items']", "7"},  // brackets look up the item first
      {"[1, 2, 1].count(1)", "2"},
      {"[1, 2].index(2)", "1"},
      {"dict([('a', 1)], b=2)", "{'a': 1, 'b': 2}"},
  });
}

TEST(JinjaLanguage, TextFilters) {
  ExpectValues({
      {"' x ' | trim ~ '|'", "x|"},
      {"'xxaxx' | trim('x')", "a"},
      {"\"they're bill's-friend (x)\" | title", "They're Bill's-Friend (X)"},
      {"'hELLO' | capitalize", "Hello"},
      {"'a' | upper ~ 'A' | lower", "Aa"},
      {"'abab' | replace('a', 'x', 1)", "xbab"},
      {"'<a href=\"x\">&\\'' | escape", "&lt;a href=&#34;x&#34;&gt;&amp;&#39;"},
      {"'a\\nb\\n\\nc' | indent(2)", "a\n  b\n\n  c"},
      {"'a\\nb\\n\\nc' | indent(2, true, true)", "  a\n  b\n  \n  c"},
      {"'a\\nb' | indent('> ')", "a\n> b"},
      {"'%s %s' | format('a', 1)", "a 1"},
      {"'a b_c d-e' | wordcount", "4"},
      {"[1, none] | string", "[1, None]"},
      {"'abc' | reverse", "cba"},
  });
}

TEST(JinjaLanguage, NumberFilters) {
  ExpectValues({
      {"'42' | int + 1", "43"},
      {"'42.7' | int", "42"},
      {"'x' | int", "0"},
      {"'x' | int(7)", "7"},
      {"'0x1f' | int(0, 16)", "31"},
      {"-3.9 | int", "-3"},
      {"'1e3' | float", "1000.0"},
      {"'x' | float(1.5)", "1.5"},
      {"-5.5 | abs", "5.5"},
      {"42.55 | round", "43.0"},
      {"2.5 | round", "2.0"},
      {"42.55 | round(1, 'floor')", "42.5"},
      {"42.51 | round(1, 'ceil')", "42.6"},
      {"42 | round", "42"},
      {"[1.5, 2] | sum", "3.5"},
      {"-0.25 | round(0, 'ceil') ~ '|' ~ (-0.25 | round)", "0.0|-0.0"},
  });
}

TEST(JinjaLanguage, SequenceFilters) {
  ExpectValues({
      {"[1, 2] | first ~ [1, 2] | last", "12"},
      {"[] | first is undefined", "True"},
      {"['a', 1, none] | join('-')", "a-1-None"},
      {"messages | join(',', attribute='role')", "system,user,assistant"},
      {"'abc' | list", "['a', 'b', 'c']"},
      {"{'b': 1, 'A': 2} | list", "['b', 'A']"},
      {"{'b': 1, 'A': 2} | dictsort", "[('A', 2), ('b', 1)]"},
      {"{'b': 1, 'A': 2} | dictsort(by='value', reverse=true)", "[('A', 2), ('b', 1)]"},
      {"{'a': 1} | items | list", "[('a', 1)]"},
      {"['b', 'A', 'c'] | sort", "['A', 'b', 'c']"},
      {"['b', 'A', 'c'] | sort(case_sensitive=true, reverse=true)", "['c', 'b', 'A']"},
      {"messages | sort(attribute='role') | map(attribute='role') | join", "assistantsystemuser"},
      {"['a', 'A', 'b', 'a'] | unique | list", "['a', 'b']"},
      {"[3, 1, 2] | max ~ [3, 1, 2] | min", "31"},
      {"[1, 2, 3] | batch(2, 'x') | list", "[[1, 2], [3, 'x']]"},
      {"[1, 2] | reverse | list", "[2, 1]"},
      {"['a', 'b'] | map('upper') | list", "['A', 'B']"},
      {"['a', 'b'] | map('replace', 'a', 'c') | list", "['c', 'b']"},
      {"messages | map(attribute='n', default=0) | list", "[0, 3, 0]"},
      {"messages | selectattr('role', 'equalto', 'user') | map(attribute='n') | list", "[3]"},
      {"messages | selectattr('tool_calls', 'defined') | list | length", "1"},
      {"messages | rejectattr('role', 'in', ['user', 'system']) | list | length", "1"},
      {"[1, 2, 3] | select('odd') | list", "[1, 3]"},
      {"[0, 1, '', none, 'a'] | reject | list", "[0, '', None]"},
      {"undefined_name | default('d') ~ none | default('d') ~ '' | default('e', true)", "dNonee"},
      {"range(5, 0, -2) | list", "[5, 3, 1]"},
  });
}

TEST(JinjaLanguage, ToJsonWritesAsPythonDoes) {
  ExpectValues({
      {"{'b': 1, 'a': [true, none, 1.0, 'ä']} | tojson",
       R"({"b": 1, "a": [true, null, 1.0, "ä"]})"},
      {"{'b': [], 'a': {}} | tojson(indent=2)", "{\n  \"b\": [],\n  \"a\": {}\n}"},
      {"[1, [2]] | tojson(indent=1)", "[\n 1,\n [\n  2\n ]\n]"},
      {"{'b': 1, 'a': 2} | tojson(sort_keys=true)", R"({"a": 2, "b": 1})"},
      {"[1, {'a': 2}] | tojson(separators=(',', ':'))", R"([1,{"a":2}])"},
      {"'<&>\"\\\\\\n\\x1f\\x7f' | tojson", "\"<&>\\\"\\\\\\n\\u001f\x7f\""},
      {"'é😀' | tojson(ensure_ascii=true)", R"("\u00e9\ud83d\ude00")"},
      {"{1: 2, none: 3, true: 4} | tojson", R"({"1": 4, "null": 3})"},
      {"messages[1] | tojson",
       R"({"role": "user", "content": "Hi, Ärger", "n": 3, "none": null, "list": [1, 2.0, "x", null]})"},
  });
  EXPECT_NE(FaultOf("{{ nobody | tojson }}"), "");
}

TEST(JinjaLanguage, Tests) {
  ExpectValues({
      {"3 is odd and 4 is even and 6 is divisibleby 3 and 6 is divisibleby(2)", "True"},
      {"1.0 is odd and 2.0 is even and 1.5 is not odd and 7.5 is divisibleby 2.5", "True"},
      {"-3 is odd and -4 is even", "True"},
      {"1 is number and 1 is integer and 1.0 is float and true is boolean", "True"},
      {"true is integer", "False"},
      {"true is number", "True"},
      {"'a' is string and {} is mapping and [] is sequence and 'a' is iterable", "True"},
      {"5 is iterable", "False"},
      {"none is none and 1 is not none", "True"},
      {"true is true and 1 is not true and false is false", "True"},
      {"'ab' is lower and 'AB' is upper", "True"},
      {"3 is eq 3 and 3 is equalto(3) and 3 is ne 4 and 3 is lt 4 and 3 is ge 3", "True"},
      {"'a' is in ['a']", "True"},
      {"1 is sameas true", "False"},
      {"range is callable", "True"},
      {"'upper' is filter and 'odd' is test", "True"},
  });
}

TEST(JinjaLanguage, LoopsKnowWhereTheyAre) {
  ExpectTexts({
      {"{% for x in 'ab' %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}"
       "{{ loop.last }}{{ loop.length }};{% endfor %}",
       "102TrueFalse2;211FalseTrue2;"},
      {"{% for x in [1, 2] %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}{% endfor %}",
       "<1>21<2>"},
      {"{% for x in [1, 2, 3] %}{{ loop.cycle('a', 'b') }}{% endfor %}", "aba"},
      {"{% for x in [1,2,3,4] if x is even %}{{ loop.index }}:{{ x }}/{{ loop.length }} {% endfor "
       "%}",
       "1:2/2 2:4/2 "},
      {"{% for x in [1] if x > 1 %}{{ x }}{% else %}none{% endfor %}", "none"},
      {"{% for k, (a, b) in [(1, (2, 3))] %}{{ k }}{{ a }}{{ b }}{% endfor %}", "123"},
      {"{% for k, v in {'a': 1}.items() %}{{ k }}={{ v }}{% endfor %}", "a=1"},
      {"{% for c in 'äb' %}{{ c }}-{% endfor %}", "ä-b-"},
      {"{% for x in [1,2,3,4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}"
       "{% endif %}{{ x }}{% endfor %}",
       "13"},
      {"{% for x in [1, 2] %}{{ x }}{% break %}{% else %}e{% endfor %}", "1e"},
      {"{% set s = 0 %}{% for x in [] %}{% else %}{% set s = 1 %}{{ s }}{% endfor %}{{ s }}", "10"},
      {"{% for x in [1] %}{% break %}{% else %}{% set s = 1 %}{% endfor %}{{ s is defined }}",
       "False"},
      {"{% for x in [1, 2] %}{% if x == 2 %}{% break %}{% endif %}{% else %}e{% endfor %}", ""},
      {"{% for x in [1, 1, 2, 2] %}{{ loop.changed(x) }}{% endfor %}", "TrueFalseTrueFalse"},
      {"{% for x in [1, 1] %}{{ loop.changed(loop) }}{% endfor %}", "TrueTrue"},
  });
  EXPECT_NE(FaultOf("{% for a, b in [(1, 2, 3)] %}{% endfor %}"), "");
  EXPECT_NE(FaultOf("{% for a in 5 %}{% endfor %}"), "");
}

TEST(JinjaLanguage, AssignmentsStayInTheirLoop) {
  ExpectTexts({
      {"{% set x = 0 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}", "120"},
      {"{% set ns = namespace(x=0) %}{% for i in [1, 2] %}{% set ns.x = ns.x + i %}{% endfor %}"
       "{{ ns.x }}",
       "3"},
      {"{% if true %}{% set x = 1 %}{% endif %}{{ x }}", "1"},
      {"{% set a, b = 1, 2 %}{{ b }}{{ a }}", "21"},
      {"{% set x | trim | upper %}  hi {{ 1 }} {% endset %}[{{ x }}]", "[HI 1]"},
      {"{% set messages = messages[1:] %}{{ messages[0].role }}", "user"},
      {"{% set x = 1 %}{% with x = x + 1, y = x %}{{ x }}{{ y }}{% endwith %}{{ x }}", "211"},
  });
  EXPECT_NE(FaultOf("{% set d = {} %}{% set d.x = 1 %}"), "");
}

TEST(JinjaLanguage, MacrosTakeDefaultsAndRecurse) {
  ExpectTexts({
      {"{% macro f(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}"
       "{{ f(1) }}|{{ f(1, 3) }}|{{ f(b=4, a=5) }}",
       "121|131|545"},
      {"{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
       "321"},
      {"{% macro f(a) %}[{{ a }}{{ varargs }}{{ kwargs }}]{% endmacro %}{{ f(1, 2, x=3) }}",
       "[1(2,){'x': 3}]"},
      {"{% macro f() %}{{ caller(1) }}!{% endmacro %}{% call(a) f() %}{{ a }}+{% endcall %}",
       "1+!"},
      {"{% macro f() %} a {% endmacro %}{{ f() | trim }}{{ f() is string }}", "aTrue"},
      {"{% set x = 'o' %}{% macro f() %}{{ x }}{{ bos_token }}{% endmacro %}{{ f() }}", "o<s>"},
      {"{% filter trim | upper %} abc {% endfilter %}", "ABC"},
  });
}

TEST(JinjaLanguage, ArgumentsAreUnpacked) {
  ExpectTexts({
      {"{% macro f(a, b=0, c=0) %}{{ a }}{{ b }}{{ c }}{% endmacro %}"
       "{{ f(*[1, 2]) }}|{{ f(1, *(2, 3)) }}|{{ f(1, **{'c': 4}) }}|{{ f(*[5], **dict(b=6)) }}",
       "120|123|104|560"},
  });
  EXPECT_NE(FaultOf("{{ dict(**5) }}"), "");
  EXPECT_NE(FaultOf("{{ dict(**{1: 2}) }}"), "");
  EXPECT_NE(FaultOf("{{ range(*none) }}"), "");
}

TEST(JinjaLanguage, SearchesTakeAPartOfTheString) {
  ExpectValues({
      {"'äbcb'.find('b', 2) ~ 'äbcb'.rfind('b', 0, 3) ~ 'äbcb'.find('b', -1)", "313"},
      {"'aaaa'.count('a', 1, 3) ~ 'ab'.count('', 2) ~ 'ab'.find('', 3)", "21-1"},
      {"'abc'.startswith('b', 1) ~ 'abc'.endswith('b', 0, -1)", "TrueTrue"},
      {"'abcb'.rindex('b')", "3"},
      {"'abc'.find('c', 2, 1)", "-1"},
  });
}

TEST(JinjaLanguage, StringsAreFilledToAWidth) {
  ExpectValues({
      {"'ab'.ljust(4) ~ '|' ~ 'ab'.rjust(4, 'é') ~ '|' ~ '-7'.zfill(4)", "ab  |ééab|-007"},
      {"'ab'.center(5) ~ '|' ~ 'abc'.center(6) ~ '|' ~ 'abc'.center(2)", "  ab | abc  |abc"},
      {"'aBé'.swapcase() ~ 'é'.isascii() ~ 'a'.isascii() ~ ''.isascii()", "AbÉFalseTrueTrue"},
      {"{'a': [1].copy()}.copy()", "{'a': [1]}"},
  });
  EXPECT_NE(FaultOf("{{ 'a'.center(3, 'xy') }}"), "");
  EXPECT_NE(FaultOf("{{ 'a'.ljust(100000000) }}"), "");
}

TEST(JinjaLanguage, SelectingFromNothingYieldsNothing) {
  ExpectValues({
      {"none | selectattr('x') | list ~ (none | map('upper') | list) ~ (0 | reject | list)",
       "[][][]"},
  });
}

TEST(JinjaLanguage, WhiteSpaceControl) {
  ExpectTexts({
      {"  {% if true %}\n  x\n  {% endif %}\ny", "  x\ny"},
      {"  {%+ if true %}\nx{% endif %}", "  x"},
      {"{% if true +%}\nx{% endif %}", "\nx"},
      {"a  {%- if true -%}  b  {%- endif -%}  c", "abc"},
      {"a\n  {{- 'x' -}}  \n b", "axb"},
      {"a\n  {{ 'x' }}\nb", "a\n  x\nb"},
      {"x {% if true %} y {% endif %} z", "x  y  z"},
      {"a\n  {# c #}\nb", "a\nb"},
      {"a {# c #}\nb", "a b"},
      {"x{#- c -#} y", "xy"},
      {"x\n\n", "x\n"},  // drops one line break at the very end
      {"x\r\ny\r", "x\ny"},
      {"{{ '{{' }}{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a': {}}}}", "{{1{'a': {}}"},
      {"{ {x} { % }", "{ {x} { % }"},
      {"{% raw %}{{ x }} {% if %}{# c #}{% endraw %}", "{{ x }} {% if %}{# c #}"},
      {"a {%- raw -%} x {%- endraw -%} b", "axb"},
  });
}

TEST(JinjaLanguage, GenerationBlocksPassThrough) {
  ExpectTexts({{"{% generation %}a{{ eos_token }}{% endgeneration %}", "a</s>"}});
}

TEST(JinjaLanguage, StrftimeNowShowsTheGivenTime) {
  ExpectValues({{"strftime_now('%d %b %Y %H:%M %A %-d %%')", "15 Jan 2025 12:00 Wednesday 15 %"}});
  EXPECT_NE(FaultOf("{{ strftime_now('%1000000000d') }}"), "");
}

struct Broken {
  const char* source;
  ErrorCode code;
  const char* fault;
};

TEST(JinjaLanguage, UnknownFiltersAndTestsFailOnlyWhereTheyAreReached) {
  ExpectTexts({{"{% if false %}{{ x | nofilter }}{{ x is notest }}{% endif %}a", "a"},
               {"{{ x | nofilter if false else 'b' }}", "b"},
               {"{% if false %}{% filter nofilter %}c{% endfilter %}{% endif %}d", "d"},
               {"{{ true or x is notest }}", "True"}});
  const std::vector<std::pair<const char*, const char*>> reached = {
      {"a\n{{ x | nofilter }}", "chat template line 2, column 8: unknown filter 'nofilter'"},
      {"{{ x is notest }}", "chat template line 1, column 9: unknown test 'notest'"},
      {"{{ x | map('nofilter') }}", "chat template line 1, column 12: unknown filter 'nofilter'"},
      {"{{ x | selectattr('a', 'notest') }}",
       "chat template line 1, column 24: unknown test 'notest'"},
      {"{% filter upper | nofilter %}a{% endfilter %}",
       "chat template line 1, column 19: unknown filter 'nofilter'"}};
  for (const auto& [source, fault] : reached) {
    try {
      Render(source);
      ADD_FAILURE() << source;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << source;
      EXPECT_STREQ(error.what(), fault);
    }
  }
}

TEST(JinjaLanguage, SyntaxErrorsNameLineAndColumn) {
  const std::vector<Broken> cases = {
      {"{% include 'x' %}", ErrorCode::kUnsupported,
       "chat template line 1, column 4: the statement 'include' is not supported in chat "
       "templates"},
      {"{% for a in b recursive %}{% endfor %}", ErrorCode::kUnsupported,
       "chat template line 1, column 15: recursive loops are not supported"},
      {"{{ f(**a, *b) }}", ErrorCode::kInvalidArgument,
       "chat template line 1, column 11: unexpected '*'"},
      {"{{ f(*a, 1) }}", ErrorCode::kInvalidArgument,
       "chat template line 1, column 10: a positional argument follows a named one"},
      {"{% unheard %}", ErrorCode::kInvalidArgument,
       "chat template line 1, column 4: unknown statement 'unheard'"},
      {"\n\n  {% if x %}", ErrorCode::kInvalidArgument,
       "chat template line 3, column 3: misses its 'endif'"},
      {"{% if x %}{% endfor %}", ErrorCode::kInvalidArgument,
       "chat template line 1, column 14: expected 'endif', found 'endfor'"},
      {"{% endif %}", ErrorCode::kInvalidArgument,
       "chat template line 1, column 1: unexpected 'endif'"},
      {"{{ 1 + }}", ErrorCode::kInvalidArgument,
       "chat template line 1, column 8: expected an expression, found '}}'"},
      {"{{ (1 }}", ErrorCode::kInvalidArgument, "chat template line 1, column 7: unexpected '}'"},
      {"{{ 'abc }}", ErrorCode::kInvalidArgument,
       "chat template line 1, column 4: the string is not closed"},
      {"{{ x ? y }}", ErrorCode::kInvalidArgument,
       "chat template line 1, column 6: unexpected character"},
      {"x {# y", ErrorCode::kInvalidArgument,
       "chat template line 1, column 3: the comment is not closed"},
      {"{% raw %} y", ErrorCode::kInvalidArgument,
       "chat template line 1, column 1: the raw block is not closed"},
      {"{{ x", ErrorCode::kInvalidArgument,
       "chat template line 1, column 1: the tag is not closed"},
      {"{% break %}", ErrorCode::kInvalidArgument,
       "chat template line 1, column 4: 'break' outside of a loop"},
      {"{% set true = 1 %}", ErrorCode::kInvalidArgument,
       "chat template line 1, column 8: cannot assign to 'true'"},
      {"{{ '\\ud800' }}", ErrorCode::kInvalidArgument,
       "chat template line 1, column 5: the escape is not a Unicode character"},
      {"{{ 99999999999999999999 }}", ErrorCode::kInvalidArgument,
       "chat template line 1, column 4: the integer does not fit into 64 bits"},
  };
  for (const Broken& broken : cases) {
    SCOPED_TRACE(broken.source);
    try {
      ChatTemplate::Compile(broken.source);
      ADD_FAILURE() << "compiled";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), broken.code);
      EXPECT_STREQ(error.what(), broken.fault);
    }
  }
}

}  // namespace
}  // namespace tandem::engine::testing
