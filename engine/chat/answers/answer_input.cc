#include "engine/chat/answers/answer_input.h"

#include <algorithm>
#include <utility>

#include "engine/chat/answers/partial_mark.h"

namespace tandem::engine {
AnswerInput::AnswerInput(std::vector<std::string> token_marks)
    : token_marks_(std::move(token_marks)) {}

void AnswerInput::Append(std::string_view text, std::span<const size_t> token_ends) {
  // Removes forgotten bytes only once they are the larger part, so that the cost stays linear.
  if (begin_ > text_.size() / 2) {
    text_.erase(0, begin_);
    dropped_ += begin_;
    at_ -= begin_;
    begin_ = 0;
  }
  if (token_marks_.empty()) {
    text_ += text;
    return;
  }
  const uint64_t unread = dropped_ + at_;
  token_ends_.erase(token_ends_.begin(),
                    std::upper_bound(token_ends_.begin(), token_ends_.end(), unread));
  for (const size_t end : token_ends) token_ends_.push_back(dropped_ + text_.size() + end);
  text_ += text;
}

std::string_view AnswerInput::Take(size_t n) {
  const std::string_view out = text().substr(0, n);
  at_ += out.size();
  return out;
}

bool AnswerInput::SkipSpace() {
  Take(std::min(text().find_first_not_of(kWhiteSpace), text().size()));
  return !text().empty();
}

void AnswerInput::Forget() { begin_ = at_; }

bool AnswerInput::IsToken(std::string_view mark) const {
  return std::find(token_marks_.begin(), token_marks_.end(), mark) != token_marks_.end();
}

bool AnswerInput::EndsToken(size_t end) const {
  return std::binary_search(token_ends_.begin(), token_ends_.end(), dropped_ + at_ + end);
}

AnswerInput::Found AnswerInput::Find(std::span<const std::string_view> marks) const {
  const std::string_view unread = text();
  Found found{.at = unread.size(), .mark = {}};
  for (const std::string_view mark : marks) {
    const bool is_token = IsToken(mark);
    size_t at = unread.find(mark);
    while (is_token && at != std::string_view::npos && !EndsToken(at + mark.size())) {
      at = unread.find(mark, at + 1);
    }
    if (at != std::string_view::npos) {
      if (at < found.at || (at == found.at && mark.size() > found.mark.size())) found = {at, mark};
    } else if (!is_token) {
      const size_t partial = unread.size() - PartialEnd(unread, mark);
      if (partial < found.at) found = {partial, {}};
    }
  }
  return found;
}

AnswerInput::Match AnswerInput::Begins(std::string_view mark) const {
  const std::string_view unread = text();
  if (unread.starts_with(mark)) {
    return !IsToken(mark) || EndsToken(mark.size()) ? Match::kYes : Match::kNo;
  }
  if (IsToken(mark)) return unread.empty() ? Match::kMore : Match::kNo;
  return mark.starts_with(unread) ? Match::kMore : Match::kNo;
}

}  // namespace tandem::engine
