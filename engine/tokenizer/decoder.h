#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::engine {

// Where a token stands among those that are decoded together.
struct TokenPlace {
  bool first = false;
  bool last = false;
};

// Something done to decoded text as a whole.
struct TextRule {
  enum class Kind {
    kStrip,    // at most `start` times `from` at the beginning goes, and `stop` times at the end
    kReplace,  // every `from` becomes `to`
  };
  Kind kind = Kind::kStrip;
  std::string from;  // kStrip: one character
  std::string to = {};
  size_t start = 0;
  size_t stop = 0;
};

// From spellings of tokens back to text: each token by itself, knowing whether it is the first or
// the last, then rules over the joined text. Every rule can be followed while tokens arrive.
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

// One TextRule followed through a text that arrives in parts of whole characters. What it gives out
// is never taken back; the joined output does not depend on how the text was cut.
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
  std::string held_;  // text that what follows decides about
};

}  // namespace tandem::engine
