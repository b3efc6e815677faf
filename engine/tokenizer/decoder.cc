#include "engine/tokenizer/decoder.h"

#include <algorithm>

namespace tandem::engine {

std::string TextRuleState::Push(std::string_view part) {
  std::string text = std::move(held_.append(part));
  held_.clear();
  return rule_->kind == TextRule::Kind::kStrip ? PushStrip(std::move(text))
                                               : PushReplace(std::move(text));
}

std::string TextRuleState::PushStrip(std::string text) {
  const std::string& mark = rule_->from;
  size_t begin = 0;
  while (to_strip_ > 0 && text.compare(begin, mark.size(), mark) == 0) {
    begin += mark.size();
    --to_strip_;
  }
  if (begin < text.size()) to_strip_ = 0;
  size_t end = text.size();
  for (size_t i = 0; i < rule_->stop && end >= begin + mark.size(); ++i) {
    if (text.compare(end - mark.size(), mark.size(), mark) != 0) break;
    end -= mark.size();
  }
  held_ = text.substr(end);
  return text.substr(begin, end - begin);
}

std::string TextRuleState::PushReplace(std::string text) {
  const std::string& from = rule_->from;
  std::string out;
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, done)) {
    out.append(text, done, at - done).append(rule_->to);
    done = at + from.size();
  }
  // Holds back the longest end of the text that may begin a match.
  const size_t left = text.size() - done;
  size_t held = std::min(from.size() - 1, left);
  while (held > 0 && text.compare(text.size() - held, held, from, 0, held) != 0) --held;
  held_ = text.substr(text.size() - held);
  return out.append(text, done, left - held);
}

std::string TextRuleState::Flush() {
  std::string rest = std::move(held_);
  held_.clear();
  return rule_->kind == TextRule::Kind::kStrip ? std::string() : rest;
}

}  // namespace tandem::engine
