#include "engine/chat/answers/raw_input.h"

#include <algorithm>
#include <utility>

#include "engine/chat/answers/declared_tools.h"
#include "engine/chat/answers/partial_mark.h"

namespace tandem::engine {
RawInputSplitter::RawInputSplitter(const std::vector<std::string>& names) : names_(names) {
  for (const std::string& name : names) marks_.push_back(RawInputMark(name));
}

RawInputSplitter::Pieces RawInputSplitter::Push(std::string_view text,
                                                std::span<const size_t> token_ends) {
  Pieces out;
  if (is_in_input_) {
    out.input = text;
    return out;
  }
  const size_t n_held = held_.size();
  held_ += text;
  size_t at = std::string::npos, which = 0, n_partial = 0;
  for (size_t i = 0; i < marks_.size(); ++i) {
    const size_t found = held_.find(marks_[i]);
    if (found < at) {
      at = found;
      which = i;
    }
    n_partial = std::max(n_partial, PartialEnd(held_, marks_[i]));
  }
  const bool is_found = at != std::string::npos;
  const size_t n_text = is_found ? at : held_.size() - n_partial;
  out.text = held_.substr(0, n_text);
  for (const size_t end : token_ends) {
    if (n_held + end <= n_text) out.token_ends.push_back(n_held + end);
  }
  if (is_found) {
    out.name = names_[which];
    out.input = held_.substr(at + marks_[which].size());
    held_.clear();
    is_in_input_ = true;
  } else {
    held_.erase(0, n_text);
  }
  return out;
}

RawInputSplitter::Pieces RawInputSplitter::Flush() {
  Pieces out;
  out.text = std::exchange(held_, {});
  return out;
}

}  // namespace tandem::engine
