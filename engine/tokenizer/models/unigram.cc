#include "engine/tokenizer/models/unigram.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/tokenizer/text/unicode.h"

namespace tandem::engine {
namespace {

constexpr TokenId kUnknown = -1;

PieceTrie MakeTrie(const TokenTable& tokens, const std::vector<bool>& reachable) {
  std::vector<std::pair<std::string_view, TokenId>> pieces;
  for (TokenId id = 0; id < tokens.id_limit(); ++id) {
    if (reachable[static_cast<size_t>(id)]) pieces.emplace_back(tokens.String(id), id);
  }
  return PieceTrie(std::move(pieces));
}

std::vector<bool> Reachable(const TokenTable& tokens, const std::vector<TokenId>& unreachable) {
  std::vector<bool> reachable(static_cast<size_t>(tokens.id_limit()));
  for (TokenId id = 0; id < tokens.id_limit(); ++id) {
    reachable[static_cast<size_t>(id)] = !tokens.String(id).empty();
  }
  for (const TokenId id : unreachable) {
    if (id < tokens.id_limit()) reachable[static_cast<size_t>(id)] = false;
  }
  return reachable;
}

}  // namespace

struct UnigramModel::Buffers final : Scratch {
  // The best path to a position in the text: its last token and the beginning of that token.
  struct Node {
    double score = 0;
    uint32_t begin = 0;
    TokenId token = kUnknown;
    bool reached = false;
  };
  struct Step {
    uint32_t begin;
    uint32_t end;
    TokenId token;
  };
  std::vector<Node> nodes;  // by byte; only ends of characters are used
  std::vector<Step> steps;  // the best path, last token first
};

UnigramModel::UnigramModel(UnigramOptions options, TokenTable tokens, std::vector<double> scores,
                           const std::array<TokenId, 256>& byte_tokens,
                           const std::vector<TokenId>& unreachable)
    : TokenModel(std::move(tokens)),
      options_(options),
      scores_(std::move(scores)),
      reachable_(Reachable(tokens_, unreachable)),
      byte_tokens_(byte_tokens),
      trie_(MakeTrie(tokens_, reachable_)) {
  TANDEM_CHECK(scores_.size() == static_cast<size_t>(tokens_.id_limit()));
}

std::unique_ptr<TokenModel::Scratch> UnigramModel::MakeScratch() const {
  return std::make_unique<Buffers>();
}

void UnigramModel::FindBestPath(std::string_view piece, Buffers& buffers) const {
  std::vector<Buffers::Node>& nodes = buffers.nodes;
  nodes.assign(piece.size() + 1, {});
  for (size_t at = 0; at < piece.size();) {
    const double here = nodes[at].score;
    const auto reach = [&](size_t end, TokenId token, double score) {
      Buffers::Node& node = nodes[end];
      const double sum = score + here;
      if (node.reached && !(sum > node.score)) return;
      // SentencePiece compares the double sum with the stored float.
      node.score = options_.single_precision ? static_cast<float>(sum) : sum;
      node.begin = static_cast<uint32_t>(at);
      node.token = token;
      node.reached = true;
    };
    const size_t character = NextUtf8(piece.substr(at)).size;
    bool has_character = false;
    trie_.ForEachPrefix(piece.substr(at), [&](size_t length, TokenId id) {
      reach(at + length, id, scores_[static_cast<size_t>(id)]);
      has_character |= length == character;
    });
    if (!has_character) reach(at + character, kUnknown, options_.unk_score);
    at += character;
  }
  buffers.steps.clear();
  for (size_t end = piece.size(); end > 0; end = nodes[end].begin) {
    const Buffers::Node& node = nodes[end];
    TANDEM_DCHECK(node.reached && node.begin < end);
    buffers.steps.push_back({node.begin, static_cast<uint32_t>(end), node.token});
  }
}

void UnigramModel::AppendUnknown(std::string_view text, std::vector<TokenId>& out) const {
  // Several unknown characters may together spell a token of low score.
  if (text.size() <= tokens_.longest()) {
    const TokenId id = tokens_.Find(text);
    if (id >= 0 && reachable_[static_cast<size_t>(id)] && !options_.single_precision) {
      out.push_back(id);
      return;
    }
  }
  const auto token_of = [&](char c) { return byte_tokens_[static_cast<unsigned char>(c)]; };
  if (options_.byte_fallback &&
      std::all_of(text.begin(), text.end(), [&](char c) { return token_of(c) >= 0; })) {
    for (const char c : text) out.push_back(token_of(c));
    return;
  }
  if (!options_.unk) {
    throw Error(ErrorCode::kInvalidArgument,
                "the text has a character that the vocabulary lacks, and the vocabulary has no "
                "unknown token");
  }
  out.push_back(*options_.unk);
}

void UnigramModel::Encode(std::string_view piece, Scratch& scratch,
                          std::vector<TokenId>& out) const {
  TANDEM_CHECK(piece.size() < UINT32_MAX);
  auto& buffers = static_cast<Buffers&>(scratch);
  FindBestPath(piece, buffers);
  std::vector<Buffers::Step>& steps = buffers.steps;
  for (size_t i = steps.size(); i-- > 0;) {
    if (steps[i].token != kUnknown && steps[i].token != options_.unk) {
      out.push_back(steps[i].token);
      continue;
    }
    const uint32_t begin = steps[i].begin;
    uint32_t end = steps[i].end;
    while (i > 0 && (steps[i - 1].token == kUnknown || steps[i - 1].token == options_.unk)) {
      end = steps[--i].end;
    }
    AppendUnknown(piece.substr(begin, end - begin), out);
  }
  // One huge piece must not hold its memory for the rest of the text.
  constexpr size_t kKeepNodes = 1 << 20;
  if (buffers.nodes.capacity() > kKeepNodes) {
    buffers.nodes = {};
    buffers.steps = {};
  }
}

}  // namespace tandem::engine
