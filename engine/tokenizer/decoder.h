#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::engine {

// Position of a token among the tokens decoded together.
struct TokenPlace {
  bool first = false;
  bool last = false;
};

// A rule for the whole decoded text.
struct TextRule {
  enum class Kind {
    kStrip,    // removes up to `start` times `from` at the beginning and `stop` times at the end
    kReplace,  // replaces every `from` by `to`
  };
  Kind kind = Kind::kStrip;
  std::string from;  // kStrip: one character
  std::string to = {};
  size_t start = 0;
  size_t stop = 0;
};

// Turns token spellings into text. Steps run on each token with its place; then rules run on the
// joined text. Every rule also works on text that arrives in parts.
struct Decoder {
  using Step = std::function<std::string(std::string, TokenPlace)>;

  std::vector<Step> steps;
  bool first_differs = false;  // a step looks at TokenPlace::first
  bool last_differs = false;
  std::vector<TextRule> rules;

  std::string TextOf(std::string_view spelling, TokenPlace place) const {
    std::string text(spelling);
    for (const Step& step : steps) text = step(std::move(text), place);
    return text;
  }
};

// Applies one TextRule to text that arrives in parts of whole characters. Output is final, and its
// concatenation does not depend on the parts.
class TextRuleState {
 public:
  TextRuleState(const TextRule& rule, bool at_start)
      : rule_(&rule), to_strip_(at_start ? rule.start : 0) {}

  std::string Push(std::string_view part);
  std::string Flush();  // at the end of the text

 private:
  std::string PushStrip(std::string text);
  std::string PushReplace(std::string text);

  const TextRule* rule_;
  size_t to_strip_;
  std::string held_;  // waits for the next part
};

}  // namespace tandem::engine
