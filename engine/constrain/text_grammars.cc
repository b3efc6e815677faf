#include "engine/constrain/text_grammars.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"

namespace tandem::engine {
namespace {

constexpr size_t kMaxRegexBytes = 16 << 10;
constexpr size_t kMaxLarkBytes = 64 << 10;
constexpr size_t kMaxChoices = 10'000;
constexpr size_t kMaxChoiceBytes = 256 << 10;
// llguidance keeps at most 2,000 items in a row of its parser. A rule has an item for each of its
// alternatives where it begins.
constexpr int kMaxAlternatives = 1'500;
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

// Returns the position after the string or regular expression that begins at `at`.
size_t AfterQuoted(const std::string& text, size_t at) {
  const char quote = text[at++];
  while (at < text.size() && text[at] != quote && text[at] != '\n') {
    at += text[at] == '\\' ? 2 : 1;
  }
  return std::min(at + 1, text.size());
}

// Counts the alternatives of all rules. Terminals, whose names have capitals, become regular
// expressions and may have any number.
void CheckAlternatives(const std::string& text, const std::string& param) {
  int n_alternatives = 0;
  bool is_terminal = false;
  bool is_new_line = true;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (is_new_line && c != ' ' && c != '\t' && c != '|') {
      is_terminal =
          c == '_' ? at + 1 < text.size() && std::isupper(text[at + 1]) != 0 : c >= 'A' && c <= 'Z';
    }
    is_new_line = c == '\n' || (is_new_line && (c == ' ' || c == '\t'));
    if (text.compare(at, 2, "//") == 0 || c == '#') {
      at = std::min(text.find('\n', at), text.size());
    } else if (c == '"' || c == '/') {
      at = AfterQuoted(text, at);
    } else {
      if (c == '|' && !is_terminal) ++n_alternatives;
      ++at;
    }
  }
  if (n_alternatives > kMaxAlternatives) {
    throw Bad(param, "must have at most " + std::to_string(kMaxAlternatives) +
                         " alternatives in all its rules, got " + std::to_string(n_alternatives) +
                         ": write texts as one terminal, as in WORD: \"a\" | \"b\"");
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
  CheckAlternatives(grammar, param);
  return {GrammarSource::Kind::kLark, grammar};
}

}  // namespace tandem::engine
