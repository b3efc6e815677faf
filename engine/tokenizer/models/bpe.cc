#include "engine/tokenizer/models/bpe.h"

#include <algorithm>
#include <limits>

#include "engine/base/check.h"
#include "engine/tokenizer/text/unicode.h"

// Merges one piece. The rule: among all neighbouring pairs, merge the one of least rank, the
// leftmost on a tie, until no pair has a rule. Three paths give this result:
//   - A piece that is a token, and whose own merges lead to that token, needs one look-up.
//     In running text that is nine pieces out of ten. Loading finds which tokens qualify.
//   - Short pieces scan an array for the least rank. This is quadratic, but only in
//     kShortSymbols, and faster than other methods.
//   - Long pieces keep the pairs in a heap of (rank, position) and the symbols in a linked
//     list. Entries of removed pairs stay and are recognised as stale when popped. A merge adds
//     at most two entries, so the heap gets at most 3n.
namespace tandem::engine {
namespace {

constexpr size_t kShortSymbols = 64;
constexpr uint32_t kNone = UINT32_MAX;

// Llama-style tokenizers merge over the whole text. If no token has a metaspace after another
// character, no merge crosses such a place. Cutting the text there gives the same result in linear
// time.
bool CanCutAtMetaspace(const BpeOptions& options, bool has_affixes, const TokenTable& tokens) {
  if (options.byte_level || options.ignore_merges || has_affixes) return false;
  if (tokens.Find(kMetaspace) < 0) return false;  // could fuse with unknown characters
  for (TokenId id = 0; id < tokens.id_limit(); ++id) {
    const std::string_view token = tokens.String(id);
    for (size_t at = token.find(kMetaspace, 1); at != std::string_view::npos;
         at = token.find(kMetaspace, at + 1)) {
      if (!token.substr(0, at).ends_with(kMetaspace)) return false;
    }
  }
  return true;
}

}  // namespace

BpeModel::BpeModel(BpeOptions options, TokenTable tokens, PairTable merges,
                   const std::array<TokenId, 256>& byte_tokens, const std::vector<TokenId>& control)
    : TokenModel(std::move(tokens)),
      options_(std::move(options)),
      merges_(std::move(merges)),
      byte_tokens_(byte_tokens),
      has_affixes_(!options_.continuing_prefix.empty() || !options_.word_suffix.empty()),
      whole_(static_cast<size_t>(tokens_.id_limit())),
      may_cut_at_metaspace_(CanCutAtMetaspace(options_, has_affixes_, tokens_)) {
  TANDEM_CHECK(!(options_.byte_level && has_affixes_));
  for (size_t c = 0; c < ascii_tokens_.size(); ++c) {
    const char character = static_cast<char>(c);
    ascii_tokens_[c] = tokens_.Find(std::string_view(&character, 1));
  }
  merges_.RemoveResults(control);
  Scratch scratch;
  std::vector<TokenId> merged;
  for (TokenId id = 0; id < tokens_.id_limit(); ++id) {
    if (tokens_.String(id).empty()) continue;
    // With affixes, a piece is not spelled like its token.
    if (has_affixes_ && !options_.ignore_merges) continue;
    merged.clear();
    if (!options_.ignore_merges) Merge(tokens_.String(id), scratch, merged);
    whole_[static_cast<size_t>(id)] =
        options_.ignore_merges || (merged.size() == 1 && merged[0] == id);
  }
  for (const TokenId id : control) {
    if (id < tokens_.id_limit()) whole_[static_cast<size_t>(id)] = false;
  }
}

void BpeModel::Encode(std::string_view piece, TokenModel::Scratch& buffers,
                      std::vector<TokenId>& out) const {
  auto& scratch = static_cast<Scratch&>(buffers);
  ++scratch.steps;
  if (piece.size() <= tokens_.longest()) {
    const TokenId id = tokens_.Find(piece);
    if (id >= 0 && whole_[static_cast<size_t>(id)]) {
      out.push_back(id);
      return;
    }
  }
  Merge(piece, scratch, out);
}

bool BpeModel::may_drop_text() const {
  if (options_.unk) return false;
  const bool reads_bytes = options_.byte_level || options_.byte_fallback;
  return !reads_bytes || std::any_of(byte_tokens_.begin(), byte_tokens_.end(),
                                     [](TokenId token) { return token < 0; });
}

void BpeModel::PlaceBytes(std::string_view piece, Scratch& scratch) const {
  for (const char c : piece) {
    const TokenId id = byte_tokens_[static_cast<unsigned char>(c)];
    if (id >= 0) {
      scratch.initial.push_back(id);
    } else if (options_.unk) {
      const bool fused =
          options_.fuse_unk && !scratch.initial.empty() && scratch.initial.back() == *options_.unk;
      if (!fused) scratch.initial.push_back(*options_.unk);
    }
  }
}

// Finds the token of the character piece[begin, end), with the affixes of its place.
TokenId BpeModel::FindCharacter(std::string_view piece, size_t begin, size_t end,
                                std::string& spelling) const {
  const std::string_view character = piece.substr(begin, end - begin);
  if (!has_affixes_) {
    const auto first = static_cast<unsigned char>(character[0]);
    if (first < 0x80) return ascii_tokens_[first];
    return NextUtf8(character).kind == Utf8Kind::kWhole ? tokens_.Find(character) : -1;
  }
  spelling.clear();
  if (begin > 0) spelling += options_.continuing_prefix;
  spelling += character;
  if (end == piece.size()) spelling += options_.word_suffix;
  return tokens_.Find(spelling);
}

bool BpeModel::AppendBytes(std::string_view text, std::vector<TokenId>& ids) const {
  const auto token_of = [&](char c) { return byte_tokens_[static_cast<unsigned char>(c)]; };
  if (!options_.byte_fallback ||
      std::any_of(text.begin(), text.end(), [&](char c) { return token_of(c) < 0; })) {
    return false;
  }
  for (const char c : text) ids.push_back(token_of(c));
  return true;
}

void BpeModel::PlaceCharacters(std::string_view piece, Scratch& scratch) const {
  bool after_unknown = false;
  std::string spelling;
  for (size_t i = 0; i < piece.size();) {
    const size_t end = i + NextUtf8(piece.substr(i)).size;
    const TokenId id = FindCharacter(piece, i, end, spelling);
    if (id >= 0) {
      scratch.initial.push_back(id);
      after_unknown = false;
    } else if (AppendBytes(has_affixes_ ? spelling : piece.substr(i, end - i), scratch.initial)) {
      after_unknown = false;
    } else if (options_.unk) {
      if (!(options_.fuse_unk && after_unknown)) scratch.initial.push_back(*options_.unk);
      after_unknown = true;
    }
    i = end;
  }
}

void BpeModel::ReplaceBareSymbols(size_t from, std::vector<TokenId>& out) const {
  const auto is_bare = [&](TokenId id) { return id >= options_.first_bare_symbol; };
  const auto begin = out.begin() + static_cast<std::ptrdiff_t>(from);
  if (std::none_of(begin, out.end(), is_bare)) return;
  const std::vector<TokenId> symbols(begin, out.end());
  out.resize(from);
  for (const TokenId id : symbols) {
    if (!is_bare(id)) {
      out.push_back(id);
    } else if (!AppendBytes(tokens_.String(id), out) && options_.unk) {
      const bool fused = options_.fuse_unk && out.size() > from && out.back() == *options_.unk;
      if (!fused) out.push_back(*options_.unk);
    }
  }
}

void BpeModel::Merge(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const {
  TANDEM_CHECK(piece.size() < kNone);
  scratch.initial.clear();
  if (options_.byte_level) {
    PlaceBytes(piece, scratch);
  } else {
    PlaceCharacters(piece, scratch);
  }
  scratch.steps += static_cast<int64_t>(scratch.initial.size());
  const size_t from = out.size();
  if (scratch.initial.size() <= kShortSymbols) {
    MergeShort(scratch, out);
  } else {
    MergeLong(scratch, out);
  }
  if (options_.first_bare_symbol < tokens_.id_limit()) ReplaceBareSymbols(from, out);
}

void BpeModel::MergeShort(Scratch& scratch, std::vector<TokenId>& out) const {
  std::vector<TokenId>& ids = scratch.initial;
  std::vector<PairTable::Merge>& pairs = scratch.pairs;  // pairs[i] is of ids[i] and ids[i + 1]
  pairs.clear();
  for (size_t i = 0; i + 1 < ids.size(); ++i) pairs.push_back(merges_.Find(ids[i], ids[i + 1]));
  while (!pairs.empty()) {
    size_t best = 0;
    for (size_t i = 1; i < pairs.size(); ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    scratch.steps += static_cast<int64_t>(pairs.size());
    if (pairs[best].rank == PairTable::kNoRank) break;
    const auto at = static_cast<std::ptrdiff_t>(best);
    ids[best] = pairs[best].merged;
    ids.erase(ids.begin() + at + 1);
    pairs.erase(pairs.begin() + at);
    if (best > 0) pairs[best - 1] = merges_.Find(ids[best - 1], ids[best]);
    if (best < pairs.size()) pairs[best] = merges_.Find(ids[best], ids[best + 1]);
  }
  out.insert(out.end(), ids.begin(), ids.end());
}

void BpeModel::MergeLong(Scratch& scratch, std::vector<TokenId>& out) const {
  using Symbol = Scratch::Symbol;
  const auto count = static_cast<uint32_t>(scratch.initial.size());
  std::vector<Symbol>& symbols = scratch.symbols;
  std::vector<uint64_t>& heap = scratch.heap;
  symbols.clear();
  heap.clear();
  for (uint32_t i = 0; i < count; ++i) {
    symbols.push_back({scratch.initial[i], i == 0 ? kNone : i - 1, i + 1 == count ? kNone : i + 1});
  }

  // Orders by rank, then by position. std::greater turns the standard heap into a min-heap.
  const auto entry = [](uint32_t rank, uint32_t at) { return uint64_t{rank} << 32 | at; };
  const auto pair_at = [&](uint32_t at) {
    const Symbol& left = symbols[at];
    return left.next == kNone ? PairTable::Merge{} : merges_.Find(left.id, symbols[left.next].id);
  };
  for (uint32_t i = 0; i + 1 < count; ++i) {
    const PairTable::Merge pair = pair_at(i);
    if (pair.rank != PairTable::kNoRank) heap.push_back(entry(pair.rank, i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto push = [&](uint32_t at) {
    const PairTable::Merge pair = pair_at(at);
    if (pair.rank == PairTable::kNoRank) return;
    heap.push_back(entry(pair.rank, at));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };

  while (!heap.empty()) {
    ++scratch.steps;
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto rank = static_cast<uint32_t>(heap.back() >> 32);
    const auto at = static_cast<uint32_t>(heap.back());
    heap.pop_back();
    Symbol& left = symbols[at];
    if (left.id < 0) continue;
    const PairTable::Merge pair = pair_at(at);
    // A stale entry. An equal rank here means the same pair.
    if (pair.rank != rank) continue;

    Symbol& right = symbols[left.next];
    left.id = pair.merged;
    right.id = -1;
    left.next = right.next;
    if (left.next != kNone) symbols[left.next].previous = at;
    if (left.previous != kNone) push(left.previous);
    push(at);
  }
  for (uint32_t i = 0; i != kNone; i = symbols[i].next) out.push_back(symbols[i].id);
  // One huge piece must not hold its memory for the rest of the text.
  constexpr size_t kKeepSymbols = 1 << 20;
  if (symbols.capacity() > kKeepSymbols) {
    symbols = {};
    heap = {};
    scratch.initial = {};
  }
}

}  // namespace tandem::engine
