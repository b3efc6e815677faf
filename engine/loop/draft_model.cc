#include "engine/loop/draft_model.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/base/check.h"

namespace tandem::engine {

DraftModel::Text::Text(DraftModel& owner) : owner_(owner) { owner.texts_.push_back(this); }

DraftModel::Text::~Text() {
  owner_.Release(*this);
  std::erase(owner_.texts_, this);
}

DraftModel::DraftModel(std::shared_ptr<const Model> model, OpsContext& ops, int64_t n_blocks,
                       int64_t most_wants, int64_t vocab_size)
    : model_(std::move(model)),
      vocab_size_(vocab_size),
      draft_vocab_size_(model_->config().vocab_size),
      kv_(ModelRunner::KvShape(*model_, n_blocks)),
      pool_(n_blocks),
      runner_(model_, ops, kCatchUpRows + most_wants, most_wants) {
  TANDEM_CHECK(ModelRunner::StateFloats(*model_) == 0 && most_wants > 0);
}

void DraftModel::Discard() {
  TANDEM_CHECK(texts_.empty());
  kv_.Discard();
}

void DraftModel::Release(Text& text) {
  for (size_t i = text.blocks_.size(); i-- > 0;) pool_.Release(text.blocks_[i]);
  text.blocks_.clear();
  text.tokens_.clear();
}

// Takes the blocks of the text that was used least recently; false: this call uses all of them.
bool DraftModel::EvictOne() {
  Text* oldest = nullptr;
  for (Text* text : texts_) {
    if (text->blocks_.empty() || text->last_use_ == calls_) continue;
    if (oldest == nullptr || text->last_use_ < oldest->last_use_) oldest = text;
  }
  if (oldest == nullptr) return false;
  Release(*oldest);
  return true;
}

bool DraftModel::Reserve(Text& text, int64_t n_tokens) {
  const auto n_blocks = static_cast<size_t>(BlocksFor(n_tokens));
  text.blocks_.reserve(n_blocks);  // so that push_back does not throw
  text.tokens_.reserve(static_cast<size_t>(n_tokens));
  while (text.blocks_.size() < n_blocks) {
    if (const auto block = pool_.TryAllocate()) {
      text.blocks_.push_back(block->block);
    } else if (!EvictOne()) {
      return false;
    }
  }
  return true;
}

// Keeps the computed tokens that the sequence still begins with. Its last token is computed again,
// because its logits are wanted.
bool DraftModel::Prepare(Want& want) {
  Text& text = *want.text;
  text.last_use_ = calls_;
  const auto length = static_cast<int64_t>(want.tokens.size());
  TANDEM_CHECK(length > 0 && want.n > 0);
  if (length + want.n > model_->config().max_context_len) return false;
  const size_t most = std::min(text.tokens_.size(), want.tokens.size() - 1);
  const auto end = text.tokens_.begin() + static_cast<std::ptrdiff_t>(most);
  const auto same = std::mismatch(text.tokens_.begin(), end, want.tokens.begin()).first;
  text.tokens_.erase(same, text.tokens_.end());
  const auto is_unknown = [&](TokenId token) { return token >= draft_vocab_size_; };
  if (std::any_of(want.tokens.begin() + static_cast<std::ptrdiff_t>(text.tokens_.size()),
                  want.tokens.end(), is_unknown)) {
    return false;
  }
  return Reserve(text, length + want.n);
}

TokenId DraftModel::TokenAt(const Want& want, int64_t position) const {
  const auto length = static_cast<int64_t>(want.tokens.size());
  return position < length ? want.tokens[static_cast<size_t>(position)]
                           : want.draft[static_cast<size_t>(position - length)];
}

int64_t DraftModel::Draft(std::span<Want> wants) {
  ++calls_;
  rows_.clear();
  int64_t budget = kCatchUpRows;
  for (Want& want : wants) {
    want.draft.clear();
    if (!Prepare(want)) continue;
    want.draft.reserve(static_cast<size_t>(want.n));
    const auto left =
        static_cast<int64_t>(want.tokens.size()) - static_cast<int64_t>(want.text->tokens_.size());
    const int64_t n_rows = std::min(left, budget);
    if (n_rows == 0) continue;
    budget -= n_rows;
    rows_.push_back({&want, n_rows, n_rows == left});
  }
  int64_t passes = 0;
  while (!rows_.empty()) {
    Forward();
    ++passes;
    std::erase_if(rows_, [](const Rows& rows) {
      const Want& want = *rows.want;
      return !rows.draws || static_cast<int64_t>(want.draft.size()) == want.n;
    });
    for (Rows& rows : rows_) rows.n_rows = 1;
  }
  return passes;
}

void DraftModel::Forward() {
  step_tokens_.clear();
  positions_.clear();
  slices_.clear();
  logit_rows_.clear();
  for (const Rows& rows : rows_) {
    const Text& text = *rows.want->text;
    const auto first = static_cast<int64_t>(text.tokens_.size());
    slices_.push_back({.first_row = static_cast<int64_t>(step_tokens_.size()),
                       .n_rows = rows.n_rows,
                       .first_position = first,
                       .blocks = text.blocks_});
    for (int64_t p = first; p < first + rows.n_rows; ++p) {
      step_tokens_.push_back(TokenAt(*rows.want, p));
      positions_.push_back(static_cast<int32_t>(p));
    }
    if (rows.draws) logit_rows_.push_back(static_cast<int32_t>(step_tokens_.size() - 1));
  }
  const std::span<const float> logits = runner_.Forward({.tokens = step_tokens_,
                                                         .positions = positions_,
                                                         .slices = slices_,
                                                         .logit_rows = logit_rows_},
                                                        kv_);
  const auto vocab = static_cast<size_t>(draft_vocab_size_);
  size_t next_row = 0;
  auto computed = step_tokens_.begin();
  for (Rows& rows : rows_) {
    Text& text = *rows.want->text;
    text.tokens_.insert(text.tokens_.end(), computed, computed + rows.n_rows);
    computed += rows.n_rows;
    if (!rows.draws) continue;
    const TokenId token = Draw(*rows.want, logits.subspan(next_row++ * vocab, vocab));
    // The model cannot read a token that it does not know.
    rows.draws = token >= 0 && token < draft_vocab_size_;
    if (rows.draws) rows.want->draft.push_back(token);
  }
}

TokenId DraftModel::Draw(const Want& want, std::span<const float> logits) {
  std::span<const float> row = logits;
  if (vocab_size_ <= draft_vocab_size_) {
    row = logits.first(static_cast<size_t>(vocab_size_));
  } else {
    padded_.assign(logits.begin(), logits.end());
    padded_.resize(static_cast<size_t>(vocab_size_), -std::numeric_limits<float>::infinity());
    row = padded_;
  }
  const auto position = static_cast<int64_t>(want.tokens.size() + want.draft.size());
  return want.sampler->Sample(row, position, {}, sampling_);
}

}  // namespace tandem::engine
