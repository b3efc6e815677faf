#include "engine/constrain/text_grammars.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"

namespace tandem::engine {
namespace {

constexpr size_t kMaxRegexBytes = 16 << 10;
constexpr size_t kMaxLarkBytes = 64 << 10;
constexpr size_t kMaxChoices = 10'000;
constexpr size_t kMaxChoiceBytes = 256 << 10;
// The compiler recurses over brackets; the limit keeps its derivatives small as well.
constexpr int kMaxBracketDepth = 64;

Error Bad(const std::string& param, const std::string& message) {
  return Error(ErrorCode::kInvalidArgument, param + " " + message)
      .WithParam(param)
      .WithReason("invalid_value");
}

void CheckSize(const std::string& text, size_t most, const std::string& param) {
  if (text.empty() || text.size() > most) {
    throw Bad(param, "must have 1 to " + std::to_string(most) + " bytes, got " +
                         std::to_string(text.size()));
  }
  if (text.find('\0') != std::string::npos) throw Bad(param, "must not contain a NUL");
}

// Counts every bracket, also within strings and classes, so it never counts too few.
void CheckDepth(const std::string& text, const std::string& param) {
  int depth = 0;
  for (const char c : text) {
    if (c == '(' || c == '[' || c == '{') ++depth;
    if ((c == ')' || c == ']' || c == '}') && depth > 0) --depth;
    if (depth > kMaxBracketDepth) {
      throw Bad(param,
                "must nest brackets at most " + std::to_string(kMaxBracketDepth) + " levels deep");
    }
  }
}

}  // namespace

GrammarSource RegexGrammar(const std::string& regex, const std::string& param) {
  CheckSize(regex, kMaxRegexBytes, param);
  CheckDepth(regex, param);
  // A line break would end the regex in the grammar that llguidance makes of it.
  if (regex.find_first_of("\n\r") != std::string::npos) {
    throw Bad(param, "must write line breaks as \\n and \\r");
  }
  return {GrammarSource::Kind::kRegex, regex};
}

GrammarSource ChoiceGrammar(std::span<const std::string> choices, const std::string& param) {
  if (choices.empty() || choices.size() > kMaxChoices) {
    throw Bad(param, "must have 1 to " + std::to_string(kMaxChoices) + " texts, got " +
                         std::to_string(choices.size()));
  }
  size_t n_bytes = 0;
  std::string grammar = "start: CHOICE\nCHOICE: ";
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].empty()) {
      const std::string element = param + "[" + std::to_string(i) + "]";
      throw Bad(element, "must not be empty");
    }
    n_bytes += choices[i].size();
    grammar += (i == 0 ? "" : " | ") + nlohmann::json(choices[i]).dump();
  }
  if (n_bytes > kMaxChoiceBytes) {
    throw Bad(param, "must have at most " + std::to_string(kMaxChoiceBytes) +
                         " bytes in all, got " + std::to_string(n_bytes));
  }
  return {GrammarSource::Kind::kLark, std::move(grammar) + "\n"};
}

GrammarSource LarkGrammar(const std::string& grammar, const std::string& param) {
  CheckSize(grammar, kMaxLarkBytes, param);
  CheckDepth(grammar, param);
  return {GrammarSource::Kind::kLark, grammar};
}

}  // namespace tandem::engine
