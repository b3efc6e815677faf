#include "engine/tokenizer/models/word_models.h"

#include <algorithm>

#include "engine/base/check.h"

namespace tandem::engine {
namespace {

std::vector<bool> Marked(const TokenTable& tokens, const std::vector<TokenId>& ids) {
  std::vector<bool> marked(static_cast<size_t>(tokens.id_limit()));
  for (const TokenId id : ids) {
    if (id < tokens.id_limit()) marked[static_cast<size_t>(id)] = true;
  }
  return marked;
}

PieceTrie MakeTrie(const TokenTable& tokens, const std::vector<TokenId>& unreachable) {
  const std::vector<bool> left_out = Marked(tokens, unreachable);
  std::vector<std::pair<std::string_view, TokenId>> pieces;
  for (TokenId id = 0; id < tokens.id_limit(); ++id) {
    if (!left_out[static_cast<size_t>(id)] && !tokens.String(id).empty()) {
      pieces.emplace_back(tokens.String(id), id);
    }
  }
  return PieceTrie(std::move(pieces));
}

// Counts characters; in invalid UTF-8 the bytes that are not continuation bytes.
size_t CountCharacters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

}  // namespace

WordPieceModel::WordPieceModel(WordPieceOptions options, TokenTable tokens,
                               const std::vector<TokenId>& unreachable)
    : TokenModel(std::move(tokens)),
      options_(std::move(options)),
      trie_(MakeTrie(tokens_, unreachable)),
      continuing_(trie_.Descend(PieceTrie::kRoot, options_.continuing_prefix)) {
  TANDEM_CHECK(options_.unk >= 0);
}

void WordPieceModel::Encode(std::string_view piece, Scratch&, std::vector<TokenId>& out) const {
  const size_t begin_of_word = out.size();
  const auto give_up = [&] {
    out.resize(begin_of_word);
    out.push_back(options_.unk);
  };
  if (CountCharacters(piece) > options_.max_word_characters) return give_up();
  for (size_t at = 0; at < piece.size();) {
    PieceTrie::Node node = at == 0 ? PieceTrie::kRoot : continuing_;
    TokenId longest = -1;
    size_t end = at;
    for (size_t i = at; i < piece.size() && node != PieceTrie::kNone; ++i) {
      node = trie_.Child(node, piece[i]);
      if (node == PieceTrie::kNone || trie_.TokenAt(node) < 0) continue;
      longest = trie_.TokenAt(node);
      end = i + 1;
    }
    if (longest < 0) return give_up();
    out.push_back(longest);
    at = end;
  }
}

WordLevelModel::WordLevelModel(std::optional<TokenId> unk, TokenTable tokens,
                               const std::vector<TokenId>& unreachable)
    : TokenModel(std::move(tokens)), unk_(unk), unreachable_(Marked(tokens_, unreachable)) {}

void WordLevelModel::Encode(std::string_view piece, Scratch&, std::vector<TokenId>& out) const {
  const TokenId id = piece.size() <= tokens_.longest() ? tokens_.Find(piece) : -1;
  if (id >= 0 && !unreachable_[static_cast<size_t>(id)]) {
    out.push_back(id);
  } else if (unk_) {
    out.push_back(*unk_);
  } else {
    throw Error(
        ErrorCode::kInvalidArgument,
        "the text has a word that the vocabulary lacks, and the vocabulary has no unknown token");
  }
}

}  // namespace tandem::engine
