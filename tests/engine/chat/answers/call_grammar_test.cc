#include "engine/chat/answers/call_grammar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/chat/answers/answer_parser.h"
#include "engine/constrain/json_schema.h"
#include "tests/engine/constrain/constrain_test_support.h"

namespace tandem::engine {
namespace {

using OrderedJson = nlohmann::ordered_json;

// All bytes; marks as control tokens if wanted; the last token ends the answer.
struct MarkedVocabulary {
  MarkedVocabulary(const ToolFormat& format, bool has_tokens) {
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    if (has_tokens) {
      for (const std::string_view mark : MarksOf(format)) Add(mark);
      Add(kThinkOpen);
      Add(kThinkClose);
    }
    tokens.emplace_back("<end>");
    special.insert(size() - 1);
    compiler = std::make_unique<GrammarCompiler>(std::make_shared<ListedTokens>(tokens, special),
                                                 std::vector<TokenId>{end()}, size());
  }
  void Add(std::string_view mark) {
    marks[std::string(mark)] = size();
    special.insert(size());
    tokens.emplace_back(mark);
  }
  TokenId size() const { return static_cast<TokenId>(tokens.size()); }
  TokenId end() const { return size() - 1; }

  std::vector<std::string> tokens;
  std::map<std::string, TokenId> marks;
  std::set<TokenId> special;
  std::unique_ptr<GrammarCompiler> compiler;
};

const OrderedJson& ManyTools() {
  static const auto tools = OrderedJson::parse(R"([
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object",
      "properties": {"city": {"type": "string"}, "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "unit": {"enum": ["C", "F"]}, "exact": {"type": "boolean"}},
      "required": ["city", "n"], "additionalProperties": false}}},
    {"type": "function", "function": {"name": "foo-bar", "parameters": {"type": "object",
      "properties": {"point": {"$ref": "#/$defs/p"}, "words": {"type": "array", "maxItems": 2,
        "items": {"type": "string", "maxLength": 4}}, "code": {"type": "string", "pattern": "^[a-c]{2}$"}},
      "required": ["point"], "additionalProperties": false,
      "$defs": {"p": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": ["null",
        "boolean"]}}, "required": ["x"], "additionalProperties": false}}}}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object",
      "properties": {}, "additionalProperties": false}}},
    {"type": "function", "function": {"name": "any"}},
    {"type": "custom", "custom": {"name": "note", "format": {"type": "text"}}}])");
  return tools;
}

const OrderedJson& RawTools() {
  static const auto tools = OrderedJson::parse(R"([
    {"type": "custom", "custom": {"name": "patch", "format": {"type": "grammar", "grammar": {
      "syntax": "lark", "definition": "start: \"add \" WORD (\"\\n\" WORD)*\nWORD: /[a-z<>\"]{1,5}/"}}}}])");
  return tools;
}

const OrderedJson& NoteArguments() {
  static const auto schema = OrderedJson::parse(R"({"type": "object", "properties": {"input":
      {"type": "string"}}, "required": ["input"], "additionalProperties": false})");
  return schema;
}

std::vector<CallableTool> Callable(const OrderedJson& tools) {
  std::vector<CallableTool> out;
  for (const OrderedJson& tool : tools) {
    const OrderedJson& inner = tool["type"] == "custom" ? tool["custom"] : tool["function"];
    CallableTool one{.name = inner["name"], .path = "parameters"};
    if (inner.contains("parameters")) one.parameters = &inner["parameters"];
    if (tool["type"] == "custom") one.parameters = &NoteArguments();
    if (HasRawInput(inner)) one.input_grammar = inner["format"]["grammar"]["definition"];
    out.push_back(std::move(one));
  }
  return out;
}

// Whether the text is of the grammar, in which llguidance escapes the byte 127 of JSON strings.
bool Obeys(const Grammar& grammar, const MarkedVocabulary& vocabulary, std::string_view text) {
  GrammarMatcher matcher = grammar.NewMatcher();
  std::vector<uint32_t> mask(MaskWords(vocabulary.size()));
  std::string escaped;
  for (const char byte : text)
    escaped += byte == '\x7f' ? std::string("\\u007F") : std::string(1, byte);
  for (const char byte : escaped) {
    const auto token = static_cast<TokenId>(static_cast<unsigned char>(byte));
    if (!matcher.Mask(mask) || !IsAllowed(mask, token)) return false;
    matcher.Commit(token);
  }
  return matcher.IsComplete();
}

struct Setting {
  const ToolFormat* format = nullptr;
  bool has_tokens = false;
  bool is_forced = false;
  bool has_raw = false;
  std::optional<ReasoningSplitter::State> reasoning = {};
};

// One row, its tools, and walks through the masks of its grammar.
class Walks {
 public:
  explicit Walks(const Setting& setting)
      : setting_(setting), vocabulary_(*setting.format, setting.has_tokens), tools_(ManyTools()) {
    if (setting.has_raw) tools_.insert(tools_.end(), RawTools().begin(), RawTools().end());
    CallGrammarOptions options;
    options.format = setting.format;
    options.reasoning = setting.reasoning;
    options.is_forced = setting.is_forced;
    options.find_mark = [this](std::string_view mark) {
      const auto found = vocabulary_.marks.find(std::string(mark));
      return found == vocabulary_.marks.end() ? MarkToken{} : MarkToken{.id = found->second};
    };
    options.schema = [](const OrderedJson& schema, const std::string& path) {
      return SchemaGrammar(schema, path).text;
    };
    grammar_ = vocabulary_.compiler->Compile(
        {GrammarSource::Kind::kLark, CallGrammar(Callable(tools_), options)});
    for (const CallableTool& tool : Callable(tools_)) {
      if (tool.input_grammar) {
        obeyed_[tool.name] =
            vocabulary_.compiler->Compile({GrammarSource::Kind::kLark, *tool.input_grammar});
        continue;
      }
      const auto any = OrderedJson::parse(R"({"type": "object"})");
      const OrderedJson& schema = tool.parameters != nullptr ? *tool.parameters : any;
      // As a part, because only a grammar of JSON alone bounds the length of numbers.
      obeyed_[tool.name] = vocabulary_.compiler->Compile(
          {GrammarSource::Kind::kLark,
           "start: %json " + SchemaGrammar(schema, "schema").text + "\n"});
    }
    goals_ = {"\"", "</parameter>", "</think>", "<think>", "}", "{\"name\": \"f\"", "[f(", "\n"};
    for (const std::string_view mark : MarksOf(*setting.format)) goals_.emplace_back(mark);
    goals_.emplace_back("<tool_input name=\"patch\">\n");
  }

  // Draws one answer. Returns whether it is complete.
  bool Draw(std::mt19937& random) {
    answer_.clear();
    ends_.clear();
    GrammarMatcher matcher = grammar_->NewMatcher();
    std::vector<uint32_t> mask(MaskWords(vocabulary_.size()));
    std::string goal = random() % 2 == 0 ? Beginning() : "";
    for (int i = 0; i < 900; ++i) {
      if (!matcher.Mask(mask)) return true;
      std::vector<TokenId> allowed;
      for (TokenId id = 0; id < vocabulary_.size(); ++id) {
        if (IsAllowed(mask, id)) allowed.push_back(id);
      }
      if (allowed.empty()) return false;
      if (goal.empty() && random() % (i > 60 ? 2 : 8) == 0) goal = goals_[random() % goals_.size()];
      TokenId token = allowed[random() % allowed.size()];
      // Aimless bytes would seldom spell a mark or end a text.
      if (!goal.empty()) {
        const auto wanted = static_cast<TokenId>(static_cast<unsigned char>(goal.front()));
        goal.erase(0, 1);
        IsAllowed(mask, wanted) ? void(token = wanted) : goal.clear();
      } else if (i > 40 && IsAllowed(mask, vocabulary_.end())) {
        token = vocabulary_.end();
      } else if (random() % 4 == 0) {
        std::vector<TokenId> marks;
        for (const TokenId id : allowed) {
          if (id > 255 && id != vocabulary_.end()) marks.push_back(id);
        }
        if (!marks.empty()) token = marks[random() % marks.size()];
      }
      const bool is_complete = matcher.Commit(token);
      if (token == vocabulary_.end()) return true;
      answer_ += vocabulary_.tokens[static_cast<size_t>(token)];
      if (token > 255) ends_.push_back(answer_.size());
      if (is_complete) return true;
    }
    return false;
  }

  // What the parser reads from the answer, and whether it is as the grammar promises.
  void Check() {
    AnswerOptions options;
    options.format = setting_.format;
    options.reasoning = setting_.reasoning;
    options.tools = std::make_shared<const DeclaredTools>(tools_, true);
    options.new_id = [] { return std::string(); };
    for (const auto& [mark, id] : vocabulary_.marks) {
      if (mark != kThinkOpen && mark != kThinkClose) options.token_marks.push_back(mark);
    }
    AnswerParser parser(options);
    AnswerEvents events = parser.Push(answer_, ends_);
    for (AnswerEvent& event : parser.Finish(false)) events.push_back(std::move(event));

    std::string name, arguments, text;
    int n_open = 0, n_ended = 0;
    for (const AnswerEvent& event : events) {
      if (const auto* begin = std::get_if<CallBegin>(&event)) {
        name = begin->name;
        arguments.clear();
        ++n_open;
      } else if (const auto* part = std::get_if<CallArguments>(&event)) {
        arguments += part->text;
      } else if (const auto* said = std::get_if<TextPart>(&event)) {
        text += said->text;
      } else if (std::holds_alternative<CallDropped>(event)) {
        ADD_FAILURE() << "dropped: " << answer_;
      } else if (std::holds_alternative<CallEnd>(event)) {
        ++n_ended;
        if (name == "note") continue;  // any text
        EXPECT_TRUE(Obeys(*obeyed_.at(name), vocabulary_, arguments))
            << name << arguments << answer_;
      }
    }
    EXPECT_EQ(n_open, n_ended) << answer_;
    n_calls += n_ended;
    if (!setting_.is_forced) return;
    EXPECT_GE(n_ended, 1) << answer_;
    EXPECT_EQ(text, "") << answer_;
  }

  int n_calls = 0;

 private:
  // The letters with which a call begins.
  std::string Beginning() const {
    if (!setting_.format->only_at_beginning) return std::string(setting_.format->opening);
    return setting_.format->style == CallStyle::kPythonic ? "[f(" : "{\"name\": \"f\"";
  }

  const Setting setting_;
  MarkedVocabulary vocabulary_;
  OrderedJson tools_;
  std::shared_ptr<const Grammar> grammar_;
  std::map<std::string, std::shared_ptr<const Grammar>> obeyed_;
  std::vector<std::string> goals_;
  std::string answer_;
  std::vector<size_t> ends_;
};

int CallsOf(const Setting& setting, int n_walks, unsigned seed) {
  SCOPED_TRACE(std::string(setting.format->name) + (setting.has_tokens ? " tokens" : " letters") +
               (setting.has_raw ? " raw" : "") +
               (setting.reasoning ? std::to_string(static_cast<int>(*setting.reasoning)) : ""));
  Walks walks(setting);
  std::mt19937 random(seed);
  int n_complete = 0;
  for (int i = 0; i < n_walks && !::testing::Test::HasFailure(); ++i) {
    if (!walks.Draw(random)) continue;
    ++n_complete;
    walks.Check();
  }
  EXPECT_GT(n_complete, n_walks / 4);
  return walks.n_calls;
}

TEST(CallGrammar, ForcedAnswersAreCallsThatTheParserReadsInEveryFormat) {
  TANDEM_NEED_LLGUIDANCE();
  for (const ToolFormat& format : ToolFormats()) {
    for (const bool has_tokens : {false, true}) {
      const Setting setting{.format = &format, .has_tokens = has_tokens, .is_forced = true};
      EXPECT_GT(CallsOf(setting, 25, 1), 8) << format.name;
    }
  }
}

TEST(CallGrammar, FreeAnswersHoldOnlyDeclaredCallsWithValidArguments) {
  TANDEM_NEED_LLGUIDANCE();
  for (const ToolFormat& format : ToolFormats()) {
    for (const bool has_tokens : {false, true}) {
      if (format.style == CallStyle::kHarmony && !has_tokens) continue;
      EXPECT_GT(CallsOf({.format = &format, .has_tokens = has_tokens}, 60, 2), 0) << format.name;
    }
  }
}

TEST(CallGrammar, AThoughtMayStandBeforeCalls) {
  TANDEM_NEED_LLGUIDANCE();
  using State = ReasoningSplitter::State;
  for (const char* name : {"hermes", "json", "pythonic", "qwen3-coder"}) {
    for (const State state : {State::kUndecided, State::kThinking, State::kAnswering}) {
      for (const bool has_tokens : {false, true}) {
        for (const bool is_forced : {false, true}) {
          CallsOf({.format = FindToolFormat(name),
                   .has_tokens = has_tokens,
                   .is_forced = is_forced,
                   .has_raw = false,
                   .reasoning = state},
                  12, 3);
        }
      }
    }
  }
}

TEST(CallGrammar, InputsWithALarkGrammarStandUnquotedAtTheEnd) {
  TANDEM_NEED_LLGUIDANCE();
  for (const ToolFormat& format : ToolFormats()) {
    for (const bool is_forced : {false, true}) {
      CallsOf({.format = &format, .has_tokens = true, .is_forced = is_forced, .has_raw = true}, 15,
              4);
    }
  }
}

TEST(CallGrammar, AStructuredAnswerIsTheValueOrACallBehindAThought) {
  TANDEM_NEED_LLGUIDANCE();
  const MarkedVocabulary vocabulary(*FindToolFormat("hermes"), false);
  CallGrammarOptions options;
  options.format = FindToolFormat("hermes");
  options.reasoning = ReasoningSplitter::State::kThinking;
  options.answer = "%json " + SchemaGrammar({{"const", "yes"}}, "schema").text;
  options.find_mark = [](std::string_view) { return MarkToken{}; };
  options.schema = [](const OrderedJson& schema, const std::string& path) {
    return SchemaGrammar(schema, path).text;
  };
  const auto obeys = [&](const std::vector<CallableTool>& tools, std::string_view text) {
    const auto grammar =
        vocabulary.compiler->Compile({GrammarSource::Kind::kLark, CallGrammar(tools, options)});
    return Obeys(*grammar, vocabulary, text);
  };
  const std::vector<CallableTool> tools = {
      {.name = "f", .path = "p", .parameters = nullptr, .input_grammar = {}}};
  const std::string call = R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)";

  EXPECT_TRUE(obeys({}, "so</think>\"yes\""));
  EXPECT_FALSE(obeys({}, "so"));
  EXPECT_FALSE(obeys({}, "so</think>" + call));
  EXPECT_TRUE(obeys(tools, "so</think>\"yes\""));
  EXPECT_TRUE(obeys(tools, "so</think>" + call));
  EXPECT_FALSE(obeys(tools, "so</think>text"));

  options.reasoning = ReasoningSplitter::State::kUndecided;
  EXPECT_TRUE(obeys({}, "\"yes\""));
  EXPECT_TRUE(obeys({}, " <think>so</think>\"yes\""));
  options.reasoning = std::nullopt;
  EXPECT_TRUE(obeys({}, "\"yes\""));
  EXPECT_FALSE(obeys({}, "<think>so</think>\"yes\""));
}

TEST(CallGrammar, DefinitionsThatEveryParameterRepeatsAreBounded) {
  OrderedJson schema = {{"type", "object"}, {"properties", OrderedJson::object()}};
  for (int i = 0; i < 1000; ++i) {
    schema["properties"]["p" + std::to_string(i)] = {{"$ref", "#/$defs/d"}};
  }
  schema["$defs"]["d"] = {{"type", "integer"}, {"description", std::string(100'000, 'x')}};
  CallGrammarOptions options;
  options.format = FindToolFormat("pythonic");
  options.find_mark = [](std::string_view) { return MarkToken{}; };
  options.schema = [](const OrderedJson& one, const std::string&) { return one.dump(); };
  const auto error = ErrorOf([&] {
    CallGrammar({{.name = "f", .path = "p", .parameters = &schema, .input_grammar = {}}}, options);
  });

  ASSERT_TRUE(error);
  EXPECT_EQ(error->param(), "tools");
}

TEST(CallGrammar, ParametersThatAFormatCannotSpellAreRefusedWithTheirPath) {
  const auto schema = OrderedJson::parse(R"({"type": "object", "anyOf": [{"required": ["a"]}]})");
  CallGrammarOptions options;
  options.format = FindToolFormat("qwen3-coder");
  options.find_mark = [](std::string_view) { return MarkToken{}; };
  options.schema = [](const OrderedJson& one, const std::string&) { return one.dump(); };
  const auto error = ErrorOf([&] {
    CallGrammar({{.name = "f", .path = "tools[0].function.parameters", .parameters = &schema}},
                options);
  });

  ASSERT_TRUE(error);
  EXPECT_EQ(error->param(), "tools[0].function.parameters.anyOf");
  EXPECT_EQ(error->reason(), "unsupported_schema");
}

}  // namespace
}  // namespace tandem::engine
