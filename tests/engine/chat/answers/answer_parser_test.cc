#include "engine/chat/answers/answer_parser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/engine/chat/answers/reading.h"

namespace tandem::engine {
namespace {

using testing::ReadBytes;
using testing::ReadCut;
using testing::ReadsCalls;
using testing::ReadWhole;
using testing::Spell;

struct Answer {
  const char* format;
  std::string text;
  std::string events;  // as Spell writes them
};

const std::vector<Answer>& Answers() {
  static const std::vector<Answer> answers = {
      // ---- calls
      {"hermes",
       "Let me look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Bern "
       "</tool_call> \\\"é\\\"\",  \"n\":[1,{}]}}\n</tool_call>",
       "t\"Let me look.\" begin(get_weather) a\"{\"city\": \"Bern </tool_call> \\\"é\\\"\",  "
       "\"n\":[1,{}]}\" end finish(calls)"},
      {"hermes",
       "<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"name\": "
       "\"now\"}\n</tool_call>\n",
       "begin(now) a\"{}\" end begin(now) a\"{}\" end finish(calls)"},
      {"hermes", "<tool_call>{\"arguments\": {\"days\": 1.50}, \"name\": \"get_weather\"}",
       "begin(get_weather) a\"{\"days\": 1.50}\" end finish(calls)"},
      {"hermes",
       R"(<tool_call>{"name": "now", "arguments": "{\"k\": 1}", "id": 7}</tool_call>Done.)",
       R"(begin(now) a"{"k": 1}" end t"Done." finish(calls))"},
      {"hermes", R"(<tool_call>[{"name": "now"}, {"name": "now", "arguments": null}]</tool_call>)",
       R"(begin(now) a"{}" end begin(now) a"{}" end finish(calls))"},
      {"qwen3-coder",
       "<tool_call>\n<function=get_weather>\n<parameter=city>\nBern </parameter> x </function>"
       "\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=parts>\n[\"a\"]\n"
       "</parameter>\n</function>\n</tool_call>",
       R"(begin(get_weather) a"{"city": "Bern </parameter> x </function>", "days": 3, )"
       R"("parts": ["a"]}" end finish(calls))"},
      {"mistral", R"([TOOL_CALLS] [{"name": "now", "arguments": {}, "id": "abcdefghi"}])",
       R"(begin(now) a"{}" end finish(calls))"},
      {"mistral-args",
       R"(Hm.[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{"a": 1}[TOOL_CALLS]now[ARGS]{})",
       R"(t"Hm." begin(now) a"{"a": 1}" end begin(now) a"{}" end finish(calls))"},
      {"functiongemma",
       "<start_function_call>call:get_weather{city:<escape>Bern }<escape>,days:2,parts:[<escape>a"
       "<escape>,{k:null}]}<end_function_call>",
       R"(begin(get_weather) a"{"city": "Bern }", "days": 2, "parts": ["a", {"k": null}]}" end )"
       "finish(calls)"},
      {"gemma4", "<|tool_call>call:now{}<tool_call|><|tool_call>call:now{a:true}<tool_call|>",
       R"(begin(now) a"{}" end begin(now) a"{"a": true}" end finish(calls))"},
      {"harmony",
       "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
       "to=functions.now <|constrain|>json<|message|>{\"a\": 1}<|call|>",
       R"(r"Hm." begin(now) a"{"a": 1}" end finish(calls))"},
      {"harmony",
       " to=functions.now<|channel|>commentary json<|message|>{}<|call|><|start|>assistant"
       "<|channel|>final<|message|>Done.<|return|>",
       R"(begin(now) a"{}" end t"Done." finish(calls))"},
      {"llama3-json", R"({"name": "now", "parameters": {"a": 1}})",
       R"(begin(now) a"{"a": 1}" end finish(calls))"},
      {"llama3-json", "<|python_tag|>{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"now\"}",
       R"(begin(now) a"{}" end finish(calls))"},
      {"pythonic",
       "[get_weather(city='B\\'x', days=-2, parts=[True, None, (1, 'a')],), now(a={'k': 1.5})]",
       R"(begin(get_weather) a"{"city": "B'x", "days": -2, "parts": [true, null, [1, "a"]]}" end )"
       R"(begin(now) a"{"a": {"k": 1.5}}" end finish(calls))"},
      {"json", "\n[{\"name\": \"now\", \"arguments\": {}}]\n",
       R"(begin(now) a"{}" end finish(calls))"},
      // ---- text
      {"hermes", "a <tool_call b <tool_calls> </tool_call>\n ",
       "t\"a <tool_call b <tool_calls> </tool_call>\n \" finish"},
      {"hermes", "<tool_call> nothing </tool_call>",
       "t\"<tool_call> nothing </tool_call>\" finish"},
      {"hermes", "x <tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>",
       "t\"x <tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>\" finish"},
      {"hermes", "<tool_call> <tool_call>{\"name\": \"now\"}</tool_call>",
       "t\"<tool_call>\" begin(now) a\"{}\" end finish(calls)"},
      {"hermes", "<tool_call>{\"name\": \"now\", \"argu",
       "t\"<tool_call>{\"name\": \"now\", \"argu\" finish"},
      {"qwen3-coder", "<tool_call>\n<function=other></function></tool_call>",
       "t\"<tool_call>\n<function=other></function></tool_call>\" finish"},
      {"mistral", "[TOOL_CALLS] [] x", "t\"[TOOL_CALLS] [] x\" finish"},
      {"mistral-args", "[TOOL_CALLS]other[ARGS]{}", "t\"[TOOL_CALLS]other[ARGS]{}\" finish"},
      {"functiongemma", "<start_function_call>call:now{a:oops}<end_function_call>",
       "t\"<start_function_call>call:now{a:oops}<end_function_call>\" finish"},
      {"harmony", "Just text.", "t\"Just text.\" finish"},
      {"harmony", "<|channel|>commentary to=functions.other<|message|>{}<|call|>",
       "t\"{}\" finish"},
      {"llama3-json", "{\"name\": \"Ada\", \"age\": 36}",
       "t\"{\"name\": \"Ada\", \"age\": 36}\" finish"},
      {"llama3-json", "{\"person\": 1}", "t\"{\"person\": 1}\" finish"},
      {"pythonic", "[1] is a footnote.", "t\"[1] is a footnote.\" finish"},
      {"pythonic", "[now(1)] x", "t\"[now(1)] x\" finish"},
      {"json", "No {\"name\": \"now\"} here.", "t\"No {\"name\": \"now\"} here.\" finish"},
      // ---- arguments that stop being JSON
      {"hermes", "a <tool_call>{\"name\": \"now\", \"arguments\": {\"k\": oops}}</tool_call>",
       "t\"a\" begin(now) a\"{\"k\": \" drop t\"oops}}</tool_call>\" finish"},
      {"hermes", "<tool_call>{\"name\": \"now\", \"arguments\": {\"k\": 1",
       "begin(now) a\"{\"k\": 1\" drop finish"},
      {"harmony", "<|channel|>commentary to=functions.now<|message|>{\"k\" 1}<|call|>",
       "begin(now) a\"{\"k\" \" drop t\"1}\" finish"},
  };
  return answers;
}

TEST(AnswerParser, EveryFormatsAnswersBecomeTheseEvents) {
  for (const Answer& answer : Answers()) {
    EXPECT_EQ(Spell(ReadWhole(ReadsCalls(answer.format), answer.text)), answer.events)
        << answer.format << ": " << answer.text;
  }
}

TEST(AnswerParser, EventsDoNotDependOnWhereTheTextIsCut) {
  for (const Answer& answer : Answers()) {
    const AnswerOptions options = ReadsCalls(answer.format);
    for (size_t cut = 0; cut <= answer.text.size(); ++cut) {
      EXPECT_EQ(Spell(ReadCut(options, answer.text, {cut})), answer.events) << answer.format << cut;
    }
    EXPECT_EQ(Spell(ReadBytes(options, answer.text)), answer.events) << answer.format;
  }
}

TEST(AnswerParser, AThoughtComesBeforeTheCallsOfTheAnswer) {
  AnswerOptions options = ReadsCalls("hermes");
  options.reasoning = ReasoningSplitter::State::kUndecided;
  const std::string answer =
      "<think>a <tool_call>{}</think>\n\n<tool_call>{\"name\": \"now\"}</tool_call>";

  EXPECT_EQ(Spell(ReadWhole(options, answer)),
            R"(r"a <tool_call>{}" begin(now) a"{}" end finish(calls))");
  EXPECT_EQ(Spell(ReadBytes(options, answer)), Spell(ReadWhole(options, answer)));
}

TEST(AnswerParser, ACallThatTheLimitCutStaysOpen) {
  const std::string answer = "<tool_call>{\"name\": \"now\", \"arguments\": {\"k\": [1";

  EXPECT_EQ(Spell(ReadBytes(ReadsCalls("hermes"), answer, true)),
            "begin(now) a\"{\"k\": [1\" finish(calls)");
}

TEST(AnswerParser, ANameThatIsNoTextMakesText) {
  for (const char* name : {"[1, \"a\"]", "{\"now\": 1}", "true", "null", "12"}) {
    const std::string answer = "<tool_call>{\"name\": " + std::string(name) + "}</tool_call>";

    EXPECT_EQ(Spell(ReadBytes(ReadsCalls("hermes"), answer)), "t\"" + answer + "\" finish");
  }
}

TEST(AnswerParser, NamesThatAreTooLongAreTextHoweverTheTextArrives) {
  for (const size_t n : {200, 230, 240, 244, 245, 250, 256, 257, 300, 400}) {
    const std::string long_name(n, 'x'), space(n, ' ');
    for (const auto& [format, answer] : std::vector<std::pair<const char*, std::string>>{
             {"qwen3-coder", "<tool_call><function=now><parameter=" + long_name +
                                 ">1</parameter></function></tool_call>"},
             {"mistral-args", "[TOOL_CALLS]now" + space + "[ARGS]{}"},
             {"pythonic", "[" + space + "now()]"},
             {"gemma4", "<|tool_call>call:" + space + "now{}<tool_call|>"}}) {
      const AnswerOptions options = ReadsCalls(format);
      EXPECT_EQ(Spell(ReadBytes(options, answer)), Spell(ReadWhole(options, answer)))
          << format << n;
    }
  }
}

TEST(AnswerParser, AHeaderThatIsTooLongIsTextHoweverTheTextArrives) {
  for (const size_t n : {100, 240, 250, 256, 300, 1000, 5000}) {
    const std::string answer = "<|start|>" + std::string(n, 'x') + "<|message|>a";
    const AnswerOptions options = ReadsCalls("harmony");
    EXPECT_EQ(Spell(ReadBytes(options, answer)), Spell(ReadWhole(options, answer))) << n;
  }
  const std::string endless = "<|start|>" + std::string(5000, 'x');
  EXPECT_EQ(Spell(ReadWhole(ReadsCalls("harmony"), endless)), "t\"" + endless + "\" finish");
}

TEST(AnswerParser, TheBeginningOfAFurtherCallThatTheLimitCutIsNoText) {
  const std::string list = R"([{"name": "now", "arguments": {}}, {"name": ")";
  const std::string call = R"([TOOL_CALLS][{"name": "now", "arguments": {}}, {"na)";

  EXPECT_EQ(Spell(ReadBytes(ReadsCalls("json"), list, true)),
            "begin(now) a\"{}\" end finish(calls)");
  EXPECT_EQ(Spell(ReadBytes(ReadsCalls("mistral"), call, true)),
            "begin(now) a\"{}\" end finish(calls)");
  // Nothing cut it, so the model meant text.
  EXPECT_EQ(Spell(ReadBytes(ReadsCalls("json"), list, false)),
            "begin(now) a\"{}\" end t\", {\"name\": \"\" finish(calls)");
}

TEST(AnswerParser, CallsBeyondTheLimitOfOneAreLeftOut) {
  AnswerOptions options = ReadsCalls("hermes");
  options.max_calls = 1;
  const std::string call = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";

  EXPECT_EQ(Spell(ReadBytes(options, call + "\n" + call + "\nDone.")),
            "begin(now) a\"{}\" end t\"\nDone.\" finish(calls)");
}

TEST(AnswerParser, OnlyTheControlTokenIsAMarkThatIsOne) {
  AnswerOptions options = ReadsCalls("mistral");
  options.token_marks = {"[TOOL_CALLS]"};
  const std::string mark = "[TOOL_CALLS]", call = "[{\"name\": \"now\"}]";
  const std::vector<size_t> ends = {mark.size()};
  AnswerParser parser(options);

  AnswerEvents events = parser.Push(mark + call);
  for (AnswerEvent& event : parser.Push(mark, ends)) events.push_back(std::move(event));
  for (AnswerEvent& event : parser.Push(call)) events.push_back(std::move(event));
  for (AnswerEvent& event : parser.Finish(false)) events.push_back(std::move(event));

  EXPECT_EQ(Spell(events),
            "t\"[TOOL_CALLS][{\"name\": \"now\"}]\" begin(now) a\"{}\" end finish(calls)");
}

TEST(AnswerParser, ADroppedCallReturnsItsTextWithTheSpaceBeforeIt) {
  const std::string answer = "a\n<tool_call>{\"name\": \"now\", \"arguments\": {1}}";
  std::string text;

  for (const AnswerEvent& event : ReadBytes(ReadsCalls("hermes"), answer)) {
    if (const auto* part = std::get_if<TextPart>(&event)) text += part->text;
    if (const auto* dropped = std::get_if<CallDropped>(&event)) text += dropped->written;
  }

  EXPECT_EQ(text, answer);
}

TEST(AnswerParser, AnswersWithoutToolsAreTextAsTheyArrive) {
  AnswerOptions options;
  AnswerParser parser(options);

  EXPECT_EQ(std::get<TextPart>(parser.Push("a \n").at(0)).text, "a \n");
  EXPECT_FALSE(parser.holds());
}

// ---- random answers

// Pieces of all formats and of JSON, in any order.
std::string RandomAnswer(std::mt19937_64& random) {
  static const std::vector<std::string> pieces = [] {
    std::vector<std::string> out = {"{",           "}",  "[",  "]",    "\"name\"", "\"arguments\"",
                                    ":",           ",",  "\"", "\\",   "now",      "\"now\"",
                                    "get_weather", "{}", "1",  "-0.5", "e",        "true",
                                    " ",           "\n", "é",  "()",   "='",       "call:"};
    for (const ToolFormat& row : ToolFormats()) {
      for (const std::string_view mark : MarksOf(row)) out.emplace_back(mark);
      out.emplace_back(row.summary);
    }
    for (const char* text : {"<function=now>", "</function>", "<parameter=city>", "</parameter>",
                             "{\"name\": \"now\", \"arguments\": {\"a\": ", " to=functions.now"}) {
      out.emplace_back(text);
    }
    return out;
  }();
  std::string answer;
  for (size_t n = 1 + random() % 12; n > 0; --n) {
    const std::string& piece = pieces[random() % pieces.size()];
    const bool is_part = random() % 8 == 0 && piece != "é";
    answer += is_part ? piece.substr(0, 1 + random() % piece.size()) : piece;
  }
  return answer;
}

// The order rules of AnswerParser. Returns the first one that the events break, or "".
std::string BrokenRule(const AnswerEvents& events, bool was_cut) {
  int open = -1, n_begun = 0;
  bool has_ended = false;
  std::string arguments;
  for (size_t i = 0; i < events.size(); ++i) {
    const AnswerEvent& event = events[i];
    const bool is_last = i + 1 == events.size();
    if (std::holds_alternative<AnswerFinish>(event) != is_last) return "finish is last, once";
    if (std::holds_alternative<ReasoningPart>(event)) continue;
    if (std::holds_alternative<TextPart>(event) && open >= 0) return "text within a call";
    if (const auto* begin = std::get_if<CallBegin>(&event)) {
      if (open >= 0) return "a call begins within a call";
      if (begin->index != n_begun++) return "indices have no gaps";
      if (begin->name != "now" && begin->name != "get_weather") return "an undeclared name";
      open = begin->index;
      arguments.clear();
    } else if (const auto* part = std::get_if<CallArguments>(&event)) {
      if (part->index != open || part->text.empty()) return "arguments outside their call";
      arguments += part->text;
    } else if (const auto* end = std::get_if<CallEnd>(&event)) {
      if (end->index != open) return "an end outside its call";
      const auto json = nlohmann::json::parse(arguments, nullptr, false);
      if (!json.is_object()) return "arguments of a call that ended are an object";
      has_ended = true;
      open = -1;
    } else if (const auto* dropped = std::get_if<CallDropped>(&event)) {
      if (dropped->index != open) return "a drop outside its call";
      open = -1;
    }
  }
  const bool has_calls = std::get<AnswerFinish>(events.back()).has_calls;
  if (open >= 0 && !was_cut) return "an open call that nothing cut";
  return has_calls == (has_ended || open >= 0) ? "" : "finish knows of the calls";
}

TEST(AnswerParser, RandomAnswersKeepTheOrderRulesAndDoNotDependOnTheCut) {
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const ToolFormat& row = ToolFormats()[random() % ToolFormats().size()];
    AnswerOptions options = ReadsCalls(row.name);
    if (random() % 4 == 0) options.reasoning = ReasoningSplitter::State::kUndecided;
    const std::string answer = RandomAnswer(random);
    const bool was_cut = random() % 2 == 0;

    const AnswerEvents whole = ReadWhole(options, answer, was_cut);
    ASSERT_EQ(BrokenRule(whole, was_cut), "") << row.name << ": " << answer;
    ASSERT_EQ(Spell(ReadBytes(options, answer, was_cut)), Spell(whole))
        << row.name << ": " << answer;
  }
}

TEST(AnswerParser, LongHostileAnswersTakeLinearTime) {
  // Quadratic work on these would take hours.
  for (const char* unit : {"<tool_call>", "</parameter>", "{", "[", "<|\"|>", "[now(", " ", "\\"}) {
    std::string answer = "<tool_call>\n<function=now>\n<parameter=a>";
    while (answer.size() < (size_t{1} << 20)) answer += unit;
    for (const ToolFormat& row : ToolFormats()) {
      AnswerParser parser(ReadsCalls(row.name));
      for (size_t at = 0; at < answer.size(); at += 4096) parser.Push(answer.substr(at, 4096));
      EXPECT_TRUE(std::holds_alternative<AnswerFinish>(parser.Finish(false).back()));
    }
  }
}

}  // namespace
}  // namespace tandem::engine
