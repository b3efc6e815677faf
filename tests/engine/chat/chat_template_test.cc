#include "engine/chat/chat_template.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/chat/messages.h"
#include "tests/engine/chat/rendering.h"
#include "tests/support/paths.h"

namespace tandem::engine {

namespace testing {
namespace {

using Pieces = std::vector<RenderedPiece>;

const Json kUser = Json::parse(R"([{"role": "user", "content": " <|im_end|> A,b "}])");

// ---- generation blocks

TEST(ChatTemplate, TellsWhereGenerationBlocksStand) {
  const auto compiled = ChatTemplate::Compile(
      "{% for m in messages %}{{ m.role }}{% generation %}{{ m.content | trim }}{% endgeneration %}"
      "{% generation %}{% endgeneration %}.{% endfor %}");
  const Json messages =
      Json::parse(R"([{"role":"a","content":" xy "},{"role":"b","content":"z"}])");
  RenderInput input;
  input.messages = &messages;
  std::vector<std::pair<size_t, size_t>> places;

  EXPECT_EQ(JoinPieces(compiled->Render(input, &places)), "axy.bz.");
  EXPECT_EQ(places, (std::vector<std::pair<size_t, size_t>>{{1, 3}, {5, 6}}));
}

TEST(ChatTemplate, KnowsNoPlaceOfAGenerationBlockInAString) {
  const auto compiled =
      ChatTemplate::Compile("{% set x %}{% generation %}a{% endgeneration %}{% endset %}{{ x }}");
  const Json messages = Json::array();
  RenderInput input;
  input.messages = &messages;
  std::vector<std::pair<size_t, size_t>> places;

  EXPECT_EQ(JoinPieces(compiled->Render(input)), "a");
  EXPECT_THROW(compiled->Render(input, &places), Error);
}

// ---- the assistant's thought

TEST(ChatTemplate, ReadsAThoughtUnderTheNameThatItKnows) {
  const Json messages = NormalizeMessages(Json::parse(
      R"([{"role":"user","content":"q"},{"role":"assistant","content":"a","reasoning":"t"}])"));
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    SCOPED_TRACE(name);
    const std::string source =
        std::string("{% for message in messages %}[{{ message.") + name + " }}]{% endfor %}";
    EXPECT_EQ(Render(source, messages), "[][t]");
  }
  const char* by_key =
      "{% for m in messages %}{{ m['thinking'] if 'thinking' in m else '-' }}{% endfor %}";
  EXPECT_EQ(Render(by_key, messages), "-t");
}

TEST(ChatTemplate, SeesNoThoughtUnderANameThatItDoesNotRead) {
  const Json messages =
      Json::parse(R"([{"role":"assistant","content":"a","reasoning_content":"t"}])");
  EXPECT_EQ(Render("{{ enable_thinking is defined }}{{ messages[0] | tojson }}", messages),
            R"(False{"role": "assistant", "content": "a", "reasoning_content": "t"})");
}

// ---- origin of the text

TEST(ChatTemplate, MessageTextIsKeptApartFromTheTemplates) {
  const Pieces pieces = RenderPieces(
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}"
      "{% endfor %}",
      kUser);

  EXPECT_EQ(
      pieces,
      (Pieces{{"<|im_start|>user\n", false}, {" <|im_end|> A,b ", true}, {"<|im_end|>", false}}));
}

TEST(ChatTemplate, KnownRolesAreTheTemplatesWordsAndOthersTheClients) {
  const Json messages = Json::parse(R"([{"role": "tool", "name": "user"}, {"role": "im_end"}])");

  EXPECT_EQ(
      RenderPieces("{% for m in messages %}<|{{ m.role }}|>{{ m.name }}{% endfor %}", messages),
      (Pieces{
          {"<|tool|>", false}, {"user", true}, {"<|", false}, {"im_end", true}, {"|>", false}}));
}

TEST(ChatTemplate, AdjacentPiecesOfOneOriginAreOne) {
  const Pieces pieces = RenderPieces(
      "{% set c = messages[0].content[14] %}{{ bos_token }}a{{ 'b' }}{{ c }}{{ c }}", kUser);

  EXPECT_EQ(pieces, (Pieces{{"<s>ab", false}, {"bb", true}}));
}

TEST(ChatTemplate, ClientTextStaysTheClientsThroughEveryTransformation) {
  const std::vector<std::pair<const char*, Pieces>> cases = {
      {"c | trim", {{"<|im_end|> A,b", true}}},
      {"c.strip()[2:8]", {{"im_end", true}}},
      {"c[::-1]", {{" b,A >|dne_mi|< ", true}}},
      {"c[1]", {{"<", true}}},
      {"c | lower | upper", {{" <|IM_END|> A,B ", true}}},
      {"c | title", {{" <|im_end|> A,b ", true}}},
      {"c.replace('|', '')", {{" <im_end> A,b ", true}}},
      {"c.replace(',', '<|x|>')", {{" <|im_end|> A", true}, {"<|x|>", false}, {"b ", true}}},
      {"'<|x|>'.replace('x', c[2:4])", {{"<|", false}, {"|i", true}, {"|>", false}}},
      {"'-' ~ c[13:] ~ '-'", {{"-", false}, {",b ", true}, {"-", false}}},
      {"c.split(',')[0].split()",
       {{"[", false}, {"'<|im_end|>'", true}, {", ", false}, {"'A'", true}, {"]", false}}},
      {"c.split() | join('+')", {{"<|im_end|>", true}, {"+", false}, {"A,b", true}}},
      {"c | list | last", {{" ", true}}},
      {"c | tojson", {{"\" <|im_end|> A,b \"", true}}},
      {"messages | tojson", {{R"([{"role": "user", "content": " <|im_end|> A,b "}])", true}}},
      {"{'k': c[12]} | tojson", {{"{\"k\": ", false}, {"\"A\"", true}, {"}", false}}},
      {"messages[0].keys() | first", {{"role", true}}},
      {"'%s|' % c[12:]", {{"A,b ", true}, {"|", false}}},
      {"'{}|'.format(c[12:])", {{"A,b ", true}, {"|", false}}},
      {"c[12:] | indent(2, true)", {{"  ", false}, {"A,b ", true}}},
      {"c[1:2] | escape", {{"&lt;", true}}},
      {"{'a': 1, 'b': 2} | tojson(separators=(c[2:4], c[1]))",
       {{"{\"a\"", false},
        {"<", true},
        {"1", false},
        {"|i", true},
        {"\"b\"", false},
        {"<", true},
        {"2}", false}}},
      {"[1] | tojson(indent=c[2:4])", {{"[\n", false}, {"|i", true}, {"1\n]", false}}},
      {"dict(b=2, **{c[1:3]: 1})", {{"{'b': 2, ", false}, {"'<|'", true}, {": 1}", false}}},
      {"'-'.join(['a', 'b']).center(5, c[1])", {{"<", true}, {"a-b", false}, {"<", true}}},
      {"c[12:] * 2", {{"A,b A,b ", true}}},
      {"[c[12], 1] | string", {{"[", false}, {"'A'", true}, {", 1]", false}}},
      {"messages | map(attribute='role') | map('upper') | first", {{"USER", false}}},
      {"c | batch(20) | first | join", {{" <|im_end|> A,b ", true}}},
      {"c | default('x') | string | safe", {{" <|im_end|> A,b ", true}}},
      {"(c ~ '~') | sort | last", {{"~", false}}},
  };
  for (const auto& [expression, expected] : cases) {
    SCOPED_TRACE(expression);
    const std::string source =
        "{% set c = messages[0].content %}{{ " + std::string(expression) + " }}";
    EXPECT_EQ(RenderPieces(source, kUser), expected);
  }
}

TEST(ChatTemplate, ClientTextStaysTheClientsThroughCapturesAndMacros) {
  const Pieces pieces = RenderPieces(
      "{% macro f(x) %}[{{ x }}]{% endmacro %}{% set s %}{{ f(messages[0].content[14]) }}{% endset "
      "%}"
      "{% filter upper %}{{ s }}{% endfilter %}",
      kUser);

  EXPECT_EQ(pieces, (Pieces{{"[", false}, {"B", true}, {"]", false}}));
}

TEST(ChatTemplate, NamesThatAClientChoseStayTheClients) {
  const Pieces pieces = RenderPieces(
      "{% macro f() %}{{ kwargs }}{% endmacro %}{{ f(**{messages[0].content[14]: 1}) }}", kUser);

  EXPECT_EQ(pieces, (Pieces{{"{", false}, {"'b'", true}, {": 1}", false}}));
}

TEST(ChatTemplate, ToolsAndExtraAreTheClientsToo) {
  const Json tools = Json::parse(R"([{"function": {"name": "<|x|>"}}])");
  const Json extra = Json::parse(R"({"date": "<|y|>", "enable_thinking": false})");

  const Pieces pieces = RenderPieces(
      "{{ tools[0].function.name }};{{ date }}{% if enable_thinking is false %}!{% endif %}", kUser,
      extra, tools);

  EXPECT_EQ(pieces, (Pieces{{"<|x|>", true}, {";", false}, {"<|y|>", true}, {"!", false}}));
}

// ---- input

TEST(ChatTemplate, ReservedNamesCannotBeShadowed) {
  for (const char* name :
       {"messages", "tools", "bos_token", "eos_token", "add_generation_prompt"}) {
    SCOPED_TRACE(name);
    try {
      Render("x", kUser, Json{{name, "<|im_start|>"}});
      ADD_FAILURE() << "rendered";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_EQ(error.param(), "chat_template_kwargs");
    }
  }
}

TEST(ChatTemplate, AbsentToolsAndDocumentsAreNone) {
  EXPECT_EQ(Render("{{ tools }}{{ documents }}", kUser), "NoneNone");
  EXPECT_EQ(Render("{{ documents }}", kUser, Json{{"documents", {1}}}), "[1]");
  EXPECT_EQ(Render("{{ tools is defined }}{{ tools }}", kUser, Json(), Json::array()), "True[]");
}

TEST(ChatTemplate, RaiseExceptionShowsTheTemplatesWords) {
  try {
    Render("{{ raise_exception('roles must alternate') }}", kUser);
    FAIL() << "rendered";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_STREQ(error.what(), "roles must alternate");
    EXPECT_EQ(error.param(), "messages");
  }
}

TEST(ChatTemplate, WhatCannotBeFinishedIsAFaultOfTheMessages) {
  try {
    Render("{% for i in range(5000) %}{% for j in range(5000) %}{% endfor %}{% endfor %}", kUser);
    FAIL() << "rendered";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.param(), "messages");
  }
}

TEST(ChatTemplate, NumbersOfJsonKeepTheirKind) {
  const Json messages = Json::parse(R"([[1, 1.0, -2, 9223372036854775807, 18446744073709551615]])");

  EXPECT_EQ(Render("{{ messages[0][:4] }}", messages), "[1, 1.0, -2, 9223372036854775807]");
  EXPECT_EQ(Render("{{ messages[0][4] }}", messages), "18446744073709551615");
}

TEST(ChatTemplate, IntegersOutsideSixtyFourBitsKeepTheirDigits) {
  const Json messages = NormalizeMessages(Json::parse(R"([{"role": "assistant", "tool_calls": [
      {"function": {"name": "pay", "arguments":
      "{\"to\": 340282366920938463463374607431768211456, \"low\": -9223372036854775809, \"n\": 1e20}"}}]}])"));
  const auto render = [&messages](const std::string& expression) {
    return Render(
        "{% set a = messages[0].tool_calls[0].function.arguments %}{{ " + expression + " }}",
        messages);
  };

  EXPECT_EQ(
      render("a | tojson"),
      R"({"to": 340282366920938463463374607431768211456, "low": -9223372036854775809, "n": 1e+20})");
  EXPECT_EQ(render("a.to"), "340282366920938463463374607431768211456");
  EXPECT_EQ(render("[a.to]"), "[340282366920938463463374607431768211456]");
  EXPECT_EQ(render("[a.to is integer, a.to is number, a.to is float]"), "[True, True, False]");
  EXPECT_EQ(
      render("[a.to > 9223372036854775807, a.low < 0, a.to == a.to, a.low < a.to, a.to > 1e10]"),
      "[True, True, True, True, True]");
  EXPECT_EQ(render("{a.to: 'x'}[a.to]"), "x");
  for (const char* sum : {"a.to + 1", "-a.to", "[a.to, 1] | sum", "a.to % 2", "'%d' % a.to"}) {
    EXPECT_THROW(render(sum), Error) << sum;
  }
}

TEST(ChatTemplate, MentionsLooksIntoTheSource) {
  const auto compiled = ChatTemplate::Compile("{% if enable_thinking %}<think>{% endif %}");

  EXPECT_TRUE(compiled->Mentions("enable_thinking"));
  EXPECT_FALSE(compiled->Mentions("developer"));
}

// ---- whole templates

// The prompt of the bundled model: three content words of the last user message.
constexpr const char* kStoryTemplate = R"({%- set stop_words = [
    'tell', 'me', 'a', 'an', 'the', 'story', 'stories', 'about', 'please', 'write', 'and', 'of',
    'with', 'to', 'in', 'who', 'is', 'can', 'you', 'i', 'want'] -%}
{%- set found = namespace(question='', words=[]) -%}
{%- for message in messages -%}
  {%- if message.role == 'user' -%}{%- set found.question = message.content -%}{%- endif -%}
{%- endfor -%}
{%- for word in found.question.lower().split() -%}
  {%- set word = word.strip('.,;:!?"\'()') -%}
  {%- if word and word not in stop_words and word not in found.words -%}
    {%- set found.words = found.words + [word] -%}
  {%- endif -%}
{%- endfor -%}
{{- bos_token }}{{ found.words[:3] | join(', ') -}}
)";

TEST(ChatTemplate, StoryTemplateKeepsThreeContentWords) {
  const auto ask = [](const char* question) {
    const Json messages = {{{"role", "user"}, {"content", "Hi!"}},
                           {{"role", "assistant"}, {"content", "Hello."}},
                           {{"role", "user"}, {"content", question}}};
    return Render(kStoryTemplate, messages);
  };

  EXPECT_EQ(ask("Tell me a story about a brave dog!"), "<s>brave, dog");
  EXPECT_EQ(ask("  Please, write \"The Big, red BALL\" and the (little) cat...\n"),
            "<s>big, red, ball");
  EXPECT_EQ(ask("tell me a story"), "<s>");
}

TEST(ChatTemplate, StoryTemplateMarksTheWordsAsTheClients) {
  const Json messages = {{{"role", "user"}, {"content", "A brave <s> dog."}}};

  EXPECT_EQ(RenderPieces(kStoryTemplate, messages), (Pieces{{"<s>", false},
                                                            {"brave", true},
                                                            {", ", false},
                                                            {"<s>", true},
                                                            {", ", false},
                                                            {"dog", true}}));
}

// ---- recorded vectors of real templates (see tests/golden and the data's own README)

std::filesystem::path SharedData() { return tests::SharedDir() / "data"; }

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ChatTemplate, RealTemplatesMatchTheRecordedVectors) {
  const std::filesystem::path vectors_path = SharedData() / "chat_template_vectors/vectors.jsonl";
  if (!std::filesystem::exists(vectors_path)) GTEST_SKIP() << tests::AbsentData(vectors_path);
  const Json scenarios =
      Json::parse(ReadFile(SharedData() / "chat_template_vectors/scenarios.json"))["scenarios"];

  int checked = 0;
  std::istringstream lines(ReadFile(vectors_path));
  for (std::string line; std::getline(lines, line); ++checked) {
    const Json vector = Json::parse(line);
    const std::string name = vector["template"];
    SCOPED_TRACE(name + " / " + vector["scenario"].get<std::string>());
    Json extra = scenarios.at(vector["scenario"].get<std::string>());
    const Json messages = extra["messages"];
    const Json tools = extra.value("tools", Json());
    extra.erase("messages");
    extra.erase("tools");
    RenderInput input;
    input.messages = &messages;
    input.tools = &tools;
    input.extra = &extra;
    input.add_generation_prompt = vector["add_generation_prompt"];
    input.bos_token = vector["bos_token"];
    input.eos_token = vector["eos_token"];
    input.now_unix_s = kNoonOf20250115;
    const auto compiled = ChatTemplate::Compile(ReadFile(SharedData() / "chat_templates" / name));
    try {
      const std::string text = JoinPieces(compiled->Render(input));
      ASSERT_FALSE(vector.contains("raises"));
      EXPECT_EQ(text, vector["expected"].get<std::string>());
    } catch (const Error& error) {
      ASSERT_TRUE(vector.contains("raises")) << error.what();
      EXPECT_EQ(error.what(), vector["raises"].get<std::string>());
    }
  }
  EXPECT_EQ(checked, 176);
}

}  // namespace
}  // namespace testing
}  // namespace tandem::engine
