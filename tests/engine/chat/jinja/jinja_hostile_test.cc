// Templates and messages that try to crash, hang or fill the memory. Each must end in text or an
// Error; sanitizer builds check the memory accesses.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/engine/chat/rendering.h"
#include "tests/support/sanitized.h"

namespace tandem::engine::testing {
namespace {

std::string Repeated(const std::string& text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

TEST(JinjaHostile, DeepSyntaxIsRefused) {
  constexpr size_t kMany = 20000;
  const std::vector<std::string> sources = {
      "{{ " + Repeated("(", kMany) + "1" + Repeated(")", kMany) + " }}",
      "{{ " + Repeated("[", kMany) + Repeated("]", kMany) + " }}",
      "{{ " + Repeated("{1:", kMany) + "1" + Repeated("}", kMany) + " }}",
      "{{ " + Repeated("not ", kMany) + "1 }}",
      "{{ " + Repeated("-", kMany) + "1 }}",
      "{{ 1" + Repeated(" + 1", kMany) + " }}",
      "{{ 1" + Repeated(" or 1", kMany) + " }}",
      "{{ 1" + Repeated(" if 1", kMany) + " }}",
      "{{ 1" + Repeated(" if 1 else 1", kMany) + " }}",
      "{{ 'a'" + Repeated("|upper", kMany) + " }}",
      "{{ a" + Repeated(".a", kMany) + " }}",
      "{{ a" + Repeated("[a", kMany) + Repeated("]", kMany) + " }}",
      "{{ a" + Repeated("()", kMany) + " }}",
      "{{ a" + Repeated(" is odd", kMany) + " }}",
      "{{ 2" + Repeated(" ** 2", kMany) + " }}",
      Repeated("{% if 1 %}", kMany) + Repeated("{% endif %}", kMany),
      Repeated("{% for x in y %}", kMany) + Repeated("{% endfor %}", kMany),
      Repeated("{% macro f() %}", kMany) + Repeated("{% endmacro %}", kMany),
      "{% for " + Repeated("(", kMany) + "x" + Repeated(")", kMany) + " in y %}{% endfor %}",
      Repeated("{% if 1 %}", kMany),
      Repeated("{{", kMany),
      Repeated("{%", kMany),
      "{% if 1 %}" + Repeated("{% elif 1 %}", kMany) + "x",
  };
  for (const std::string& source : sources) {
    SCOPED_TRACE(source.substr(0, 40));
    EXPECT_NE(FaultOf(source), "");
  }
}

TEST(JinjaHostile, OversizedTemplatesAreRefused) {
  EXPECT_EQ(FaultOf(std::string((1 << 20) + 1, 'x')),
            "the chat template has 1048577 bytes, the limit is 1048576");
  EXPECT_EQ(Render(std::string(1 << 20, 'x')).size(), size_t{1} << 20);
}

TEST(JinjaHostile, WideButShallowTemplatesRender) {
  EXPECT_EQ(Render("{{ 1" + Repeated(" ~ 1", 20000) + " }}").size(), 20001u);
  EXPECT_EQ(Render("{% if 0 %}a" + Repeated("{% elif 0 %}b", 20000) + "{% else %}c{% endif %}"),
            "c");
  // One line of 49,932 tags: searching backwards from each tag to the start of its line would take
  // minutes.
  EXPECT_EQ(Render(Repeated("{% if 1 %}{% endif %}", 49932)), "");
}

// Templates that repeat one operation until a budget ends them. A sanitizer sees in few rounds what
// it sees in many.
struct Repetition {
  std::string source;
  std::string many;
  std::string few;
};

TEST(JinjaHostile, EndlessRepetitionEndsAtTheBudget) {
  const std::vector<Repetition> repetitions = {
      {"{{ [1] * 1000000000 }}", "1000000000", "1000"},
      {"{% set ns = namespace(s='xx') %}{% for i in range(100) %}"
       "{% set ns.s = ns.s.replace('x', 'xx') %}{% endfor %}",
       "100", "9"},
      {"{% set s = 'x' * 8000000 %}{% for i in range(100000) %}{% set t = s.upper() %}{% endfor %}",
       "range(100000)", "[1, 2]"},
      {"{% set s = 'x' * 8000000 %}{% for i in range(100000) %}{{ s | length }}{% endfor %}",
       "range(100000)", "[1, 2]"},
      {"{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
       "40", "9"},
      {"{{ ('x' * 8000000) | list | length }}", "8000000", "8000"},
  };
  for (const auto& [source, many, few] : repetitions) {
    SCOPED_TRACE(source);
    std::string finite = source;
    finite.replace(finite.find(many), many.size(), few);
    EXPECT_EQ(FaultOf(finite), "");
    if (!tests::kIsSanitized) {
      EXPECT_NE(FaultOf(source), "");
    }
  }
}

TEST(JinjaHostile, EndlessWorkEndsAtTheBudget) {
  const std::vector<std::string> sources = {
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
      "{{ range(1000000000) | list }}",
      "{{ 'x' * 1000000000 }}",
      "{{ 'x' * 9223372036854775807 }}",
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% "
      "endfor %}",
      "{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% "
      "endfor %}",
      "{% set s = 'a' * 4000000 %}{{ s in (s ~ s)[:-1] ~ 'b' }}{{ (s ~ s) in s }}"
      "{{ (s ~ 'b').rfind('b' ~ s[1:]) }}{% for i in range(99999) %}{{ s.find('b') }}{% endfor %}",
      "{{ ('a' * 100000).rfind('a' * 50000 ~ 'b' ) }}{{ ('ab' * 4000000).rfind('a' * 1000) }}"
      "{% for i in range(99999) %}{{ ('ab' * 1000).rfind('a' * 9) }}{% endfor %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f(n) %}{{ f(n) ~ f(n) }}{% endmacro %}{{ f(1) }}",
      "{% macro f() %}{{ caller() }}{% endmacro %}{% macro g() %}{% call f() %}{{ g() }}{% endcall "
      "%}"
      "{% endmacro %}{{ g() }}",
      "{% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = [ns.l] %}{% endfor %}",
      "{% set ns = namespace(d={}) %}{% for i in range(1000) %}{% set ns.d = {'a': ns.d} %}{% "
      "endfor %}",
      "{% set ns = namespace(d={}) %}{% for i in range(1000) %}{% set ns.d = [{'a': ns.d}.items] "
      "%}{% "
      "endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% "
      "endfor %}"
      "{{ ns.l }}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% "
      "endfor %}"
      "{{ ns.l | tojson }}",
      "{% set a = namespace(l=[1]) %}{% set b = namespace(l=[1]) %}{% for i in range(60) %}"
      "{% set a.l = [a.l, a.l] %}{% set b.l = [b.l, b.l] %}{% endfor %}{{ a.l == b.l }}",
      "{{ [1, 2] | tojson(indent=1000000000) }}",
      "{{ 'a\nb' | indent(1000000000) }}",
      "{{ '%1000000000d' % 1 }}",
      "{{ '%.1000000000f' % 1 }}",
      "{{ [1] | batch(100000, 'x') | list | string * 1000 }}",
      "{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
      "{{ 2 ** 1000000 }}",
      "{{ -9223372036854775807 - 2 }}",
      "{{ (-9223372036854775807 - 1) // -1 }}",
      "{{ (-9223372036854775807 - 1) | abs }}",
      "{{ -(-9223372036854775807 - 1) }}",
      "{{ [1, 2] | " + Repeated("map('list')|", 100) + "list }}",
      "{{ strftime_now('%Y' * 100000) }}",
      "{{ range(100000) | list | string | list | unique | sort | join | nothing }}",
  };
  for (const std::string& source : sources) {
    SCOPED_TRACE(source.substr(0, 100));
    EXPECT_NE(FaultOf(source), "");
  }
}

TEST(JinjaHostile, OddButLegalTemplatesRender) {
  EXPECT_EQ(Render("{{ (-9223372036854775807 - 1) % -1 }}"), "0");
  EXPECT_EQ(Render("{{ [1, 2, 3][9223372036854775807::-9223372036854775807] }}"), "[3]");
  EXPECT_EQ(Render("{{ 'abc'[-9223372036854775807 - 1:] }}"), "abc");
  EXPECT_EQ(Render("{{ [1][-9223372036854775807 - 1] }}"), "");
  EXPECT_EQ(Render("{{ range(9223372036854775806, 9223372036854775807) | list }}"),
            "[9223372036854775806]");
  EXPECT_EQ(Render("{{ '' * 9223372036854775807 }}"), "");
}

// Cycles through namespaces and macros must neither leak (LeakSanitizer checks) nor recurse.
TEST(JinjaHostile, CyclesAreTakenApart) {
  EXPECT_EQ(Render("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns.me.me.me == ns }}"),
            "True");
  EXPECT_EQ(Render("{% set ns = namespace() %}{% set ns.l = [ns] %}{{ ns.l }}"), "[<Namespace>]");
  EXPECT_EQ(Render("{% macro f() %}{% endmacro %}{% set g = f %}{{ f == g }}"), "True");
  EXPECT_EQ(Render("{% set ns = namespace(n=namespace()) %}{% for i in range(100000) %}"
                   "{% set ns.n = namespace(p=ns.n) %}{% endfor %}x"),
            "x");
  EXPECT_EQ(Render("{% set ns = namespace(f=none) %}{% macro make(f) %}{% macro g() %}{{ f }}"
                   "{% endmacro %}{% set ns.f = g %}{% endmacro %}"
                   "{% for i in range(10000) %}{{ make(ns.f) }}{% endfor %}x"),
            "x");
}

// Recursion 600 nodes deep must fit into any rendering thread's stack, with sanitizers too.
TEST(JinjaHostile, DeepestRecursionFitsAThreadsStack) {
  std::string fault;
  std::thread renderer([&fault] {
    fault = FaultOf(
        "{% macro f(n) %}{% for i in [1] %}{% if 1 %}{% set x %}{{ [{'a': (1 + f(n + 1) | int)}] | "
        "tojson ~ '' }}{% endset %}{{ x }}{% endif %}{% endfor %}{% endmacro %}{{ f(0) }}");
  });
  renderer.join();

  EXPECT_NE(fault.find("nests or recurses too deeply"), std::string::npos) << fault;
}

// Known escapes from Jinja's sandbox in Python have no effect here.
TEST(JinjaHostile, AttributesOfTheHostDoNotExist) {
  for (const char* path : {"''.__class__",
                           "''['__class__']",
                           "[].__class__",
                           "messages.__init__",
                           "dict.__globals__",
                           "range.__globals__",
                           "namespace.__init__",
                           "raise_exception.__globals__",
                           "(''|attr('__class__'))",
                           "('%s'|attr('format'))|attr('__self__')",
                           "loop.__class__",
                           "strftime_now.__code__",
                           "f.__func__",
                           "self",
                           "config",
                           "request",
                           "cycler",
                           "joiner",
                           "lipsum",
                           "get_flashed_messages",
                           "caller",
                           "environment",
                           "os",
                           "open",
                           "eval"}) {
    SCOPED_TRACE(path);
    const std::string text =
        "{% macro f() %}{% endmacro %}{% for x in [1] %}{{ " + std::string(path);
    EXPECT_EQ(Render(text + " is defined }}{% endfor %}"), "False");
    EXPECT_NE(FaultOf(text + "() }}{% endfor %}"), "");
  }
  EXPECT_NE(FaultOf("{{ ''.__class__.__mro__[1].__subclasses__() }}"), "");
  EXPECT_NE(FaultOf("{{ '{0.__class__}'.format(1) }}"), "");
  EXPECT_NE(FaultOf("{{ '%(__class__)s' % 1 }}"), "");
}

TEST(JinjaHostile, DeepMessagesAreRefused) {
  Json deep = Json::array();
  for (int i = 0; i < 500; ++i) deep = Json::array({deep});

  EXPECT_NE(FaultOf("{{ messages }}", deep), "");
}

TEST(JinjaHostile, InvalidUtf8PassesThroughUnharmed) {
  const Json messages = {{{"role", "user"}, {"content", "a\xff\xe2\x82"}}};

  EXPECT_EQ(Render("{{ messages[0].content.upper().strip()[::-1] | tojson }}", messages),
            "\"\x82\xe2\xff"
            "A\"");
  EXPECT_EQ(Render("\xff{{ '\xe2\x82' }}{# \xff #}"), "\xff\xe2\x82");
}

TEST(JinjaHostile, NulBytesAreOrdinaryInTextAndStrings) {
  const std::string source("a\0b{{ 'c\0d' | length }}", 23);

  EXPECT_EQ(Render(source), std::string("a\0b3", 4));
  EXPECT_NE(FaultOf(std::string("{{ \0 }}", 7)), "");
}

// Random damage to templates that use most of the language: nothing may crash.
TEST(JinjaHostile, DamagedTemplatesNeverCrash) {
  const std::vector<std::string> seeds = {
      "{%- macro r(x, d=0) -%}{%- if x is mapping -%}{%- for k, v in x.items() -%}{{ k ~ r(v, d + "
      "1) }}"
      "{{ ', ' if not loop.last }}{%- endfor -%}{%- elif x is iterable and x is not string -%}"
      "[{{ x | map('string') | join(',') }}]{%- else -%}{{ x | tojson(indent=2) }}{%- endif -%}"
      "{%- endmacro -%}{{ r(messages[0]) }}",
      "{% set ns = namespace(a=0, l=[]) %}{% for m in messages[::-1] if m.role != 'x' %}"
      "{% set ns.a = ns.a + loop.index0 * 2 // 3 % 5 %}{% set ns.l = ns.l + "
      "[m.content[1:-1].split()] %}"
      "{{ '%s|%d' % (m.role | upper | trim, ns.a) }}{% else %}{{ none }}{% endfor %}{{ ns.l }}",
      "{# c #}{% raw %}{{ x }}{% endraw %}{% with a = 1, b = {'k': (1, 2)} %}{{ b.k[0] ~ a }}{% "
      "endwith %}"
      "{% filter upper | replace('A', 'b') %}{{ strftime_now('%d %b') }}{% endfilter %}"
      "{% macro m() %}{{ caller(1) }}{% endmacro %}{% call(x) m() %}{{ x }}{% endcall %}",
      "{{ range(1, 9, 2) | select('divisibleby', 3) | list | sort(reverse=true) | first | "
      "default(-1.5e3) }}"
      "{{ messages | selectattr('role', 'in', ['user', 'tool']) | map(attribute='content.0') | "
      "list }}",
  };
  const Json messages =
      Json::parse(R"([{"role": "user", "content": "Hällo you", "n": [1, {"a": null}]},
                                        {"role": "tool", "content": "x"}])");
  for (const std::string& source : seeds) EXPECT_EQ(FaultOf(source, messages), "");
  const std::string alphabet = "{}%#-+|.()[]'\"=<>~,: \nabx019\\_\xc3";
  const uint32_t seed = 20261120;
  std::mt19937 random(seed);
  int rendered = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string source = seeds[random() % seeds.size()];
    for (uint32_t edits = 1 + random() % 3; edits > 0 && !source.empty(); --edits) {
      const size_t at = random() % source.size();
      switch (random() % 4) {
        case 0:
          source.erase(at, 1 + random() % 4);
          break;
        case 1:
          source.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
        case 2:
          source[at] = alphabet[random() % alphabet.size()];
          break;
        default:
          source.insert(random() % source.size(), source.substr(at, 1 + random() % 20));
      }
    }
    SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(round));
    if (FaultOf(source, messages).empty()) ++rendered;
  }

  // Both outcomes must be frequent, or the damage is too strong or too weak.
  EXPECT_GT(rendered, 200);
  EXPECT_LT(rendered, 3800);
}

}  // namespace
}  // namespace tandem::engine::testing
