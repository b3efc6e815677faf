#include "engine/loop/output.h"

#include <algorithm>
#include <utility>

namespace tandem::engine {

ChoiceOutput::ChoiceOutput(Options options)
    : options_(std::move(options)),
      enders_(options_.end_tokens),
      matcher_(options_.tokenizer != nullptr ? options_.stop.strings : std::vector<std::string>()) {
  enders_.insert(enders_.end(), options_.stop.token_ids.begin(), options_.stop.token_ids.end());
  std::sort(enders_.begin(), enders_.end());
  enders_.erase(std::unique(enders_.begin(), enders_.end()), enders_.end());
  is_thinking_ = options_.thought_limit && options_.thought_limit->is_open;
  if (options_.tokenizer != nullptr) {
    detokenizer_.emplace(*options_.tokenizer, /*skip_special=*/false,  // see AddsText
                         options_.continues_text);
  }
}

std::span<const TokenId> ChoiceOutput::banned_tokens() const {
  if (n_tokens_ >= options_.stop.min_new_tokens) return {};
  return enders_;
}

TokenId ChoiceOutput::forced_token() const {
  const bool is_over = is_thinking_ && n_thought_tokens_ >= options_.thought_limit->max_tokens;
  return is_over ? options_.thought_limit->close : -1;
}

void ChoiceOutput::CountThought(TokenId token) {
  if (!options_.thought_limit) return;
  if (token == options_.thought_limit->close) {
    is_thinking_ = false;
  } else if (is_thinking_) {
    ++n_thought_tokens_;
  } else if (token == options_.thought_limit->open) {
    is_thinking_ = true;
  }
}

bool ChoiceOutput::EndsAt(TokenId token) const {
  return n_tokens_ > options_.stop.min_new_tokens &&
         std::binary_search(enders_.begin(), enders_.end(), token);
}

bool ChoiceOutput::AddsText(TokenId token) const {
  if (!options_.skip_special_tokens || !options_.tokenizer->IsSpecial(token)) return true;
  const std::vector<TokenId>& shown = options_.shown_special_tokens;
  return std::find(shown.begin(), shown.end(), token) != shown.end();
}

std::optional<ChoiceOutput::End> ChoiceOutput::Push(TokenId token, TokenLogprob logprob,
                                                    bool is_complete) {
  ++n_tokens_;
  CountThought(token);
  const bool ends_at_token = EndsAt(token);
  std::optional<size_t> stop_string;
  bool unfinished_character = false;
  if (detokenizer_ && (!ends_at_token || options_.stop.include_stop_string)) {
    const bool adds_text = AddsText(token);
    const std::string piece = adds_text ? detokenizer_->Push(token) : std::string();
    // An incomplete character: the token belongs to the text that completes it.
    unfinished_character =
        adds_text && piece.empty() && !options_.tokenizer->TokenBytes(token).empty();
    stop_string = Feed(piece);
  }
  const auto text_end = shown_ + static_cast<int64_t>(text_.size());
  if (!unfinished_character) {
    // Tokens whose character this token completes are shown with it.
    for (size_t i = waiting_.size(); i-- > 0 && waiting_[i].unfinished;) {
      waiting_[i].unfinished = false;
      waiting_[i].text_end = text_end;
    }
  }
  waiting_.push_back({token, std::move(logprob), text_end, unfinished_character});

  const bool at_limit = n_tokens_ >= options_.stop.max_new_tokens;
  if (!ends_at_token && !stop_string && !at_limit && !is_complete) return std::nullopt;
  // The choice is over: flush an incomplete character.
  if (detokenizer_ && !stop_string) stop_string = Feed(detokenizer_->Flush());
  ended_ = true;
  held_ = 0;
  End end;
  if (ends_at_token) {
    end.stop_token = token;
  } else if (stop_string) {
    end.stop_string = options_.stop.strings[*stop_string];
  } else if (!is_complete) {
    end.reason = ChoiceFinished::Reason::kLength;
  }
  return end;
}

ChoiceOutput::End ChoiceOutput::Complete() {
  End end;
  if (detokenizer_) {
    const std::optional<size_t> stop_string = Feed(detokenizer_->Flush());
    if (stop_string) end.stop_string = options_.stop.strings[*stop_string];
  }
  ended_ = true;
  held_ = 0;
  return end;
}

std::optional<size_t> ChoiceOutput::Feed(const std::string& piece) {
  if (matcher_.empty() || n_tokens_ <= options_.stop.min_new_tokens) {
    text_ += piece;
    return std::nullopt;
  }
  for (const char byte : piece) {
    text_ += byte;
    if (const std::optional<size_t> found = matcher_.Feed(byte)) {
      if (!options_.stop.include_stop_string) {
        text_.resize(text_.size() - options_.stop.strings[*found].size());
      }
      held_ = 0;
      return found;
    }
  }
  held_ = matcher_.partial();
  return std::nullopt;
}

std::optional<TextDelta> ChoiceOutput::TakeDelta() {
  // Whole tokens only: a token is sent together with all of its text.
  const int64_t may_show = shown_ + static_cast<int64_t>(text_.size() - held_);
  size_t n_tokens = 0;
  while (n_tokens < waiting_.size() &&
         (ended_ || (!waiting_[n_tokens].unfinished && waiting_[n_tokens].text_end <= may_show))) {
    ++n_tokens;
  }
  size_t n_bytes = 0;
  if (ended_) {
    n_bytes = text_.size();
  } else if (n_tokens > 0) {
    n_bytes = static_cast<size_t>(waiting_[n_tokens - 1].text_end - shown_);
  }
  const int64_t first = shown_;
  shown_ += static_cast<int64_t>(n_bytes);
  if (n_bytes == 0 && n_tokens == 0) return std::nullopt;
  TextDelta delta;
  delta.choice = options_.choice;
  delta.text = text_.substr(0, n_bytes);
  text_.erase(0, n_bytes);
  for (size_t i = 0; i < n_tokens; ++i) {
    const TokenId token = waiting_[i].token;
    delta.token_ids.push_back(token);
    const auto end = static_cast<size_t>(waiting_[i].text_end - first);
    if (options_.tokenizer != nullptr && options_.tokenizer->IsSpecial(token) && AddsText(token) &&
        end <= n_bytes) {
      delta.token_ends.push_back(end);
    }
    if (options_.with_logprobs) delta.logprobs.push_back(std::move(waiting_[i].logprob));
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(n_tokens));
  return delta;
}

}  // namespace tandem::engine
