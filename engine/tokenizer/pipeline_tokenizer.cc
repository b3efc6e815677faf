#include "engine/tokenizer/pipeline_tokenizer.h"

#include "engine/base/check.h"
#include "engine/tokenizer/text/unicode.h"

namespace tandem::engine {

void TokenizerParts::Take(const Vocabulary& vocabulary) {
  added_tokens = vocabulary.added_tokens();
  spellings = vocabulary.Spellings();
  unreachable = vocabulary.unreachable();
  byte_level = vocabulary.byte_level();
}

void PipelineTokenizer::Strings::Add(std::string_view text) {
  if (begin.empty()) begin.push_back(0);
  arena += text;
  TANDEM_CHECK(arena.size() < UINT32_MAX);
  begin.push_back(static_cast<uint32_t>(arena.size()));
}

std::string_view PipelineTokenizer::Strings::At(TokenId id) const {
  const auto i = static_cast<size_t>(id);
  return std::string_view(arena).substr(begin[i], begin[i + 1] - begin[i]);
}

struct PipelineTokenizer::Run {
  std::string_view text;
  std::span<const TextRange> client;  // of `text`
  std::unique_ptr<TokenModel::Scratch> scratch;
  std::vector<TokenId> out;
};

PipelineTokenizer::PipelineTokenizer(TokenizerParts parts)
    : model_(std::move(parts.model)),
      normalizer_(std::move(parts.normalizer)),
      pretokenizer_(std::move(parts.pretokenizer)),
      decoder_(std::move(parts.decoder)),
      normalizes_added_tokens_(parts.normalizes_added_tokens),
      byte_level_(parts.byte_level),
      spells_bytes_(parts.spells_bytes),
      added_tokens_(MakeMatchers(parts.added_tokens)),
      names_(std::move(parts.unreachable)),
      is_special_(parts.spellings.size()),
      adds_leading_space_(parts.strips_leading_space || pretokenizer_.adds_prefix_space()) {
  std::vector<bool> is_added(parts.spellings.size());
  for (const AddedToken& token : parts.added_tokens) {
    TANDEM_CHECK(token.id >= 0 && token.id < vocab_size());
    names_.emplace(token.content, token.id);
    is_added[static_cast<size_t>(token.id)] = byte_level_ || token.special;
    if (token.special) is_special_[static_cast<size_t>(token.id)] = true;
  }
  const bool looks_at_places = decoder_.first_differs || decoder_.last_differs;
  for (size_t i = 0; i < parts.spellings.size(); ++i) {
    const std::string& spelling = parts.spellings[i];
    texts_.Add(spelling.empty() || is_added[i] ? spelling : decoder_.TextOf(spelling, {}));
    if (looks_at_places) spellings_.Add(spelling);
  }
}

PipelineTokenizer::Matchers PipelineTokenizer::MakeMatchers(
    const std::vector<AddedToken>& tokens) const {
  std::vector<AddedToken> raw, normalized;
  for (const AddedToken& token : tokens) {
    AddedToken copy = token;
    // Searched in normalised text, so its spelling must be normalised too.
    if (token.normalized && normalizes_added_tokens_) {
      copy.content = normalizer_.Apply(token.content, /*at_start=*/true).text;
    }
    if (!copy.content.empty()) (token.normalized ? normalized : raw).push_back(std::move(copy));
  }
  return {AddedTokenMatcher(raw), AddedTokenMatcher(normalized)};
}

std::vector<TokenId> PipelineTokenizer::EncodeMixed(std::string_view text,
                                                    std::span<const TextRange> client) const {
  Run run{text, client, model_->MakeScratch(), {}};
  run.out.reserve(text.size() / 4 + 8);
  added_tokens_.raw.Split(
      text, client, [&](std::string_view ordinary) { EncodeText(ordinary, run); },
      [&](TokenId id) { run.out.push_back(id); });
  return std::move(run.out);
}

NormalizedText PipelineTokenizer::Normalized(std::string_view text, bool at_start,
                                             std::vector<TextRange> client) const {
  // A text of one origin needs no tracking of ranges.
  if (client.size() == 1 && client[0] == TextRange(0, text.size())) {
    NormalizedText normalized = normalizer_.Apply(text, at_start);
    if (!normalized.text.empty()) normalized.client = {{0, normalized.text.size()}};
    return normalized;
  }
  return normalizer_.Apply(text, at_start, std::move(client));
}

// REQUIRES: `text` is a part of run.text.
void PipelineTokenizer::EncodeText(std::string_view text, Run& run) const {
  const bool at_origin = text.data() == run.text.data();
  bool at_start = true;
  ForEachUtf8Stretch(text, [&](std::string_view stretch, bool valid) {
    // Patterns and normal forms need characters, so invalid bytes are a piece of their own.
    if (!valid) {
      std::string spelled;
      if (spells_bytes_) AppendByteSpelling(stretch, spelled);
      model_->Encode(spells_bytes_ ? spelled : stretch, *run.scratch, run.out);
    } else {
      std::vector<TextRange> client;
      if (added_tokens_.normalized.has_control()) {
        const auto begin = static_cast<size_t>(stretch.data() - run.text.data());
        client = RangesWithin(run.client, begin, begin + stretch.size());
      }
      NormalizedText changed;
      if (!normalizer_.empty()) {
        changed = Normalized(stretch, at_start, std::move(client));
        stretch = changed.text;
        client = std::move(changed.client);
      }
      PieceOfText next{{}, at_start, at_start && at_origin && !changed.front_removed};
      added_tokens_.normalized.Split(
          stretch, client,
          [&](std::string_view ordinary) {
            next.text = ordinary;
            EncodePieces(next, run);
            next = {{}, true, false};
          },
          [&](TokenId id) {
            run.out.push_back(id);
            next = {{}, true, false};
          });
    }
    at_start = false;
  });
}

void PipelineTokenizer::EncodePieces(const PieceOfText& text, Run& run) const {
  if (pretokenizer_.is_gpt2()) {
    ForEachGpt2Piece(text.text,
                     [&](std::string_view piece) { model_->Encode(piece, *run.scratch, run.out); });
  } else {
    pretokenizer_.ForEachPiece(text, [&](std::string_view piece) { EncodePiece(piece, run); });
  }
}

void PipelineTokenizer::EncodePiece(std::string_view piece, Run& run) const {
  if (model_->may_cut_at_metaspace()) {
    size_t begin = 0;
    for (size_t at = piece.find(kMetaspace, 1); at != std::string_view::npos;
         at = piece.find(kMetaspace, at + 1)) {
      if (piece.substr(0, at).ends_with(kMetaspace)) continue;
      model_->Encode(piece.substr(begin, at - begin), *run.scratch, run.out);
      begin = at;
    }
    piece.remove_prefix(begin);
  }
  model_->Encode(piece, *run.scratch, run.out);
}

std::string_view PipelineTokenizer::TokenBytes(TokenId id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return texts_.At(id);
}

std::optional<std::string> PipelineTokenizer::TextAt(TokenId id, TokenPlace place) const {
  if (id < 0 || id >= vocab_size()) return std::nullopt;
  const bool looks_at_places = !spellings_.begin.empty();
  const std::string_view spelling = looks_at_places ? spellings_.At(id) : texts_.At(id);
  if (spelling.empty()) return std::nullopt;
  return looks_at_places ? decoder_.TextOf(spelling, place) : std::string(spelling);
}

bool PipelineTokenizer::IsSpecial(TokenId id) const {
  return id >= 0 && id < vocab_size() && is_special_[static_cast<size_t>(id)];
}

std::optional<TokenId> PipelineTokenizer::FindToken(std::string_view spelling) const {
  if (const auto it = names_.find(std::string(spelling)); it != names_.end()) return it->second;
  const TokenTable& tokens = model_->tokens();
  TokenId id = tokens.Find(spelling);
  if (id < 0 && byte_level_) {
    if (const auto bytes = BytesOfSpelling(spelling)) id = tokens.Find(*bytes);
  } else if (id < 0 && spells_bytes_) {
    std::string spelled;
    AppendByteSpelling(spelling, spelled);
    id = tokens.Find(spelled);
  } else if (id < 0) {
    std::string spelled;
    for (const char c : spelling) {
      if (c == ' ') {
        spelled += kMetaspace;
      } else {
        spelled.push_back(c);
      }
    }
    id = tokens.Find(spelled);
  }
  // Symbols that only merges use are not tokens.
  if (id < 0 || id >= vocab_size()) return std::nullopt;
  return id;
}

}  // namespace tandem::engine
