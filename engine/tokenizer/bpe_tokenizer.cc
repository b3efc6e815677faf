#include "engine/tokenizer/bpe_tokenizer.h"

#include "engine/base/check.h"

namespace tandem::engine {
namespace {

// U+2581, which stands for the space in Llama-style vocabularies.
constexpr std::string_view kMetaspace = "\xE2\x96\x81";

// Llama-style tokenizers merge over the whole text. Where no token holds a metaspace behind another
// character, no merge can join what stands on the two sides of such a place, so the text may be cut
// there: the result is the same, and the work is linear.
bool CanSplitAtMetaspace(const BpeModel& model) {
  if (model.options().byte_level || model.options().ignore_merges) return false;
  if (model.tokens().Find(kMetaspace) < 0) return false;  // could fuse with unknown characters
  for (TokenId id = 0; id < model.tokens().id_limit(); ++id) {
    const std::string_view token = model.tokens().String(id);
    for (size_t at = token.find(kMetaspace, 1); at != std::string_view::npos;
         at = token.find(kMetaspace, at + 1)) {
      if (!token.substr(0, at).ends_with(kMetaspace)) return false;
    }
  }
  return true;
}

std::string ReplaceAll(std::string_view text, const ReplaceText& rule) {
  std::string out;
  out.reserve(text.size());
  size_t done = 0;
  for (size_t at = text.find(rule.from); at != std::string_view::npos;
       at = text.find(rule.from, done)) {
    out.append(text.substr(done, at - done)).append(rule.to);
    done = at + rule.from.size();
  }
  return out.append(text.substr(done));
}

}  // namespace

struct BpeTokenizer::Run {
  const Matchers& matchers;
  BpeModel::Scratch scratch;
  std::vector<TokenId> out;
};

BpeTokenizer::BpeTokenizer(BpeTokenizerParts parts)
    : model_(std::move(parts.model)),
      normalizer_(std::move(parts.normalizer)),
      pretokenizer_(std::move(parts.pretokenizer)),
      parse_special_(MakeMatchers(parts.added_tokens, /*with_control=*/true)),
      plain_text_(MakeMatchers(parts.added_tokens, /*with_control=*/false)),
      is_special_(parts.texts.size()),
      adds_leading_space_(parts.strips_leading_space || pretokenizer_.adds_prefix_space()),
      splits_at_metaspace_(CanSplitAtMetaspace(model_)) {
  text_begin_.reserve(parts.texts.size() + 1);
  for (const std::string& text : parts.texts) {
    text_begin_.push_back(static_cast<uint32_t>(text_arena_.size()));
    text_arena_ += text;
    TANDEM_CHECK(text_arena_.size() < UINT32_MAX);
  }
  text_begin_.push_back(static_cast<uint32_t>(text_arena_.size()));
  for (const AddedToken& token : parts.added_tokens) {
    TANDEM_CHECK(token.id >= 0 && token.id < vocab_size());
    added_ids_.emplace(token.content, token.id);
    if (token.special) is_special_[static_cast<size_t>(token.id)] = true;
  }
}

BpeTokenizer::Matchers BpeTokenizer::MakeMatchers(const std::vector<AddedToken>& tokens,
                                                  bool with_control) const {
  std::vector<AddedToken> raw, normalized;
  for (const AddedToken& token : tokens) {
    if (token.is_control() && !with_control) continue;
    AddedToken copy = token;
    // Looked for in the normalised text, so spelled the way normalising would.
    if (token.normalized) copy.content = Normalized(token.content, /*at_start=*/true);
    if (!copy.content.empty()) (token.normalized ? normalized : raw).push_back(std::move(copy));
  }
  return {AddedTokenMatcher(raw), AddedTokenMatcher(normalized)};
}

std::vector<TokenId> BpeTokenizer::Encode(std::string_view text, SpecialTokens special) const {
  Run run{special == SpecialTokens::kParseSpecial ? parse_special_ : plain_text_, {}, {}};
  run.out.reserve(text.size() / 4 + 8);
  run.matchers.raw.Split(
      text, [&](std::string_view ordinary) { EncodeText(ordinary, run); },
      [&](TokenId id) { run.out.push_back(id); });
  return std::move(run.out);
}

void BpeTokenizer::EncodeText(std::string_view text, Run& run) const {
  bool at_start = true;
  ForEachUtf8Stretch(text, [&](std::string_view stretch, bool valid) {
    // Patterns and normal forms speak of characters; bytes that are none are a piece of their own.
    if (!valid) {
      model_.Encode(stretch, run.scratch, run.out);
    } else {
      std::string changed;
      if (!normalizer_.empty()) stretch = changed = Normalized(stretch, at_start);
      bool first = at_start;
      run.matchers.normalized.Split(
          stretch,
          [&](std::string_view ordinary) {
            EncodePieces(ordinary, first, run);
            first = true;
          },
          [&](TokenId id) {
            run.out.push_back(id);
            first = true;
          });
    }
    at_start = false;
  });
}

void BpeTokenizer::EncodePieces(std::string_view text, bool at_start, Run& run) const {
  if (pretokenizer_.is_gpt2()) {
    ForEachGpt2Piece(text,
                     [&](std::string_view piece) { model_.Encode(piece, run.scratch, run.out); });
  } else {
    pretokenizer_.ForEachPiece(text, at_start,
                               [&](std::string_view piece) { EncodePiece(piece, run); });
  }
}

void BpeTokenizer::EncodePiece(std::string_view piece, Run& run) const {
  if (splits_at_metaspace_) {
    size_t begin = 0;
    for (size_t at = piece.find(kMetaspace, 1); at != std::string_view::npos;
         at = piece.find(kMetaspace, at + 1)) {
      if (piece.substr(0, at).ends_with(kMetaspace)) continue;
      model_.Encode(piece.substr(begin, at - begin), run.scratch, run.out);
      begin = at;
    }
    piece.remove_prefix(begin);
  }
  model_.Encode(piece, run.scratch, run.out);
}

std::string BpeTokenizer::Normalized(std::string_view text, bool at_start) const {
  std::string now(text);
  for (const NormalizerStep& step : normalizer_) {
    if (const auto* form = std::get_if<NormalForm>(&step)) {
      now = Normalize(*form, now);
    } else if (const auto* prepend = std::get_if<PrependText>(&step)) {
      if (at_start && !now.empty()) now.insert(0, prepend->text);
    } else {
      now = ReplaceAll(now, std::get<ReplaceText>(step));
    }
  }
  return now;
}

std::string_view BpeTokenizer::TokenBytes(TokenId id) const {
  if (id < 0 || id >= vocab_size()) return {};
  const auto i = static_cast<size_t>(id);
  return std::string_view(text_arena_).substr(text_begin_[i], text_begin_[i + 1] - text_begin_[i]);
}

bool BpeTokenizer::IsSpecial(TokenId id) const {
  return id >= 0 && id < vocab_size() && is_special_[static_cast<size_t>(id)];
}

std::optional<TokenId> BpeTokenizer::FindToken(std::string_view spelling) const {
  if (const auto it = added_ids_.find(std::string(spelling)); it != added_ids_.end()) {
    return it->second;
  }
  TokenId id = model_.tokens().Find(spelling);
  if (id < 0 && model_.options().byte_level) {
    if (const auto bytes = BytesOfSpelling(spelling)) id = model_.tokens().Find(*bytes);
  } else if (id < 0) {
    id = model_.tokens().Find(ReplaceAll(spelling, {" ", std::string(kMetaspace)}));
  }
  if (id < 0) return std::nullopt;
  return id;
}

}  // namespace tandem::engine
