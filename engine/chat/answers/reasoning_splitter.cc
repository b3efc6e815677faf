#include "engine/chat/answers/reasoning_splitter.h"

#include <algorithm>
#include <utility>

#include "engine/chat/answers/partial_mark.h"

namespace tandem::engine {
ReasoningSplitter::Pieces ReasoningSplitter::Push(std::string_view text) {
  held_ += text;
  Pieces out;
  if (state_ == State::kUndecided) {
    const size_t begin = std::min(held_.find_first_not_of(kWhiteSpace), held_.size());
    const std::string_view rest = std::string_view(held_).substr(begin);
    if (rest.size() < kThinkOpen.size() && kThinkOpen.starts_with(rest)) return out;
    if (rest.starts_with(kThinkOpen)) {
      state_ = State::kThinking;
      held_.erase(0, begin + kThinkOpen.size());
    } else {
      state_ = State::kAnswering;
    }
  }
  if (state_ == State::kThinking) {
    const size_t close = held_.find(kThinkClose);
    if (close == std::string::npos) {
      const size_t n_sure = held_.size() - PartialEnd(held_, kThinkClose);
      out.reasoning = held_.substr(0, n_sure);
      held_.erase(0, n_sure);
      return out;
    }
    out.reasoning = held_.substr(0, close);
    held_.erase(0, close + kThinkClose.size());
    state_ = State::kAnswering;
  }
  out.content = std::exchange(held_, {});
  return out;
}

ReasoningSplitter::Pieces ReasoningSplitter::Flush() {
  Pieces out;
  (state_ == State::kThinking ? out.reasoning : out.content) = std::exchange(held_, {});
  return out;
}

ReasoningSplitter::State StateAfterPrompt(std::string_view prompt) {
  const size_t end = prompt.find_last_not_of(kWhiteSpace);
  prompt = prompt.substr(0, end == std::string_view::npos ? 0 : end + 1);
  if (prompt.ends_with(kThinkOpen)) return ReasoningSplitter::State::kThinking;
  if (prompt.ends_with(kThinkClose)) return ReasoningSplitter::State::kAnswering;
  return ReasoningSplitter::State::kUndecided;
}

ReasoningSplitter::State StateWithin(std::string_view answer) {
  ReasoningSplitter splitter(ReasoningSplitter::State::kUndecided);
  splitter.Push(answer);
  // After other text, a mark no longer starts a thought.
  return splitter.state();
}

}  // namespace tandem::engine
