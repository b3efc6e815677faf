#include "engine/tokenizer/training/bpe_trainer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <queue>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/ids.h"
#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/pretokenizers/pretokenizer.h"
#include "engine/tokenizer/text/unicode.h"

// Every distinct piece of the corpus is stored once, as a linked list of symbols weighted by the
// piece's count. Each pair of neighbours has its count and the places where it has occurred. A step
// takes the most frequent pair, visits its places, merges those that still hold the pair, and
// adjusts the neighbours' counts. The total number of visits is bounded: a place is recorded when
// its pair appears, and a merge creates at most two pairs.
namespace tandem::engine {
namespace {

constexpr uint32_t kNoSymbol = UINT32_MAX;
constexpr int64_t kProgressEvery = 64;  // merges between two reports

struct Symbol {
  TokenId id;  // -1: merged into its left neighbour
  uint32_t previous;
  uint32_t next;
  uint32_t piece;
};

struct PairInfo {
  int64_t count = 0;
  std::vector<uint32_t> places;  // of the left symbol; visits detect stale ones
};

uint64_t PairKey(TokenId left, TokenId right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

struct Candidate {
  int64_t count;
  TokenId left;
  TokenId right;
};

class Trainer {
 public:
  Trainer(const BpeTrainerOptions& options, std::string_view corpus);

  void Train(const std::function<void(int64_t, int64_t)>& progress);
  std::string ToJson() const;

 private:
  std::string Spelling(TokenId id) const;
  TokenId AddToken(std::string bytes);
  void CountPieces(std::string_view corpus, std::unordered_map<std::string_view, int64_t>& counts);
  void LayOut(const std::unordered_map<std::string_view, int64_t>& counts);
  bool Before(const Candidate& a, const Candidate& b) const;  // a is merged later than b
  std::optional<Candidate> Best();
  void Apply(const Candidate& best);
  void Change(TokenId left, TokenId right, int64_t by, uint32_t place);

  BpeTrainerOptions options_;
  std::vector<std::string> bytes_;  // by id - number of special tokens
  std::unordered_map<std::string, TokenId> ids_;
  std::unordered_set<std::string> reserved_;  // spellings of special tokens
  std::vector<Symbol> symbols_;
  std::vector<int64_t> weights_;  // by piece
  std::unordered_map<uint64_t, PairInfo> pairs_;
  std::vector<Candidate> heap_;
  std::unordered_set<uint64_t> grown_;  // pairs whose count rose in this step
  std::vector<std::pair<TokenId, TokenId>> merges_;
};

Trainer::Trainer(const BpeTrainerOptions& options, std::string_view corpus) : options_(options) {
  const auto specials = static_cast<int64_t>(options_.special_tokens.size());
  if (options_.vocab_size < 256 + specials || options_.vocab_size > 1 << 24) {
    throw Error(ErrorCode::kInvalidArgument,
                "vocab_size must be in [" + std::to_string(256 + specials) +
                    ", 16777216] (at least 256 bytes plus the special tokens), got " +
                    std::to_string(options_.vocab_size));
  }
  for (const std::string& special : options_.special_tokens) {
    const auto bytes = BytesOfSpelling(special);
    const bool names_byte = bytes && bytes->size() == 1;
    if (special.empty() || special.size() > 1024 || names_byte ||
        ValidUtf8Prefix(special) != special.size() || !reserved_.insert(special).second) {
      throw Error(ErrorCode::kInvalidArgument,
                  "special_tokens must be distinct UTF-8 texts of 1 to 1024 bytes, none of them a "
                  "single byte's spelling");
    }
  }
  if (corpus.size() >= kNoSymbol) {
    throw Error(ErrorCode::kInvalidArgument,
                "the corpus must be under 4 GiB, got " + std::to_string(corpus.size()) + " bytes");
  }
  // Bytes in the order of their spellings, as in GPT-2's vocabulary.
  std::vector<std::pair<std::string, char>> alphabet;
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    std::string spelling;
    AppendByteSpelling(std::string_view(&byte, 1), spelling);
    alphabet.emplace_back(std::move(spelling), byte);
  }
  std::sort(alphabet.begin(), alphabet.end());
  for (const auto& letter : alphabet) AddToken(std::string(1, letter.second));

  std::unordered_map<std::string_view, int64_t> counts;
  CountPieces(corpus, counts);
  LayOut(counts);
}

TokenId Trainer::AddToken(std::string bytes) {
  const auto next = static_cast<TokenId>(options_.special_tokens.size() + bytes_.size());
  const auto [it, added] = ids_.emplace(std::move(bytes), next);
  if (added) bytes_.push_back(it->first);
  return it->second;
}

std::string Trainer::Spelling(TokenId id) const {
  std::string spelling;
  AppendByteSpelling(bytes_[static_cast<size_t>(id) - options_.special_tokens.size()], spelling);
  return spelling;
}

void Trainer::CountPieces(std::string_view corpus,
                          std::unordered_map<std::string_view, int64_t>& counts) {
  std::vector<AddedToken> specials;
  for (const std::string& special : options_.special_tokens) {
    specials.push_back({.content = special, .id = static_cast<TokenId>(specials.size())});
  }
  AddedTokenMatcher(specials).Split(
      corpus, {},
      [&](std::string_view text) {
        ForEachUtf8Stretch(text, [&](std::string_view stretch, bool valid) {
          if (!valid) {
            ++counts[stretch];
            return;
          }
          ForEachGpt2Piece(stretch, [&](std::string_view piece) { ++counts[piece]; });
        });
      },
      [](TokenId) {});
}

void Trainer::LayOut(const std::unordered_map<std::string_view, int64_t>& counts) {
  // The order of pieces does not affect the result: counts are sums, and bytes break ties.
  for (const auto& [piece, count] : counts) {
    const auto index = static_cast<uint32_t>(weights_.size());
    weights_.push_back(count);
    const auto begin = static_cast<uint32_t>(symbols_.size());
    for (size_t i = 0; i < piece.size(); ++i) {
      const auto at = begin + static_cast<uint32_t>(i);
      const TokenId id = ids_.at(std::string(1, piece[i]));
      symbols_.push_back(
          {id, i == 0 ? kNoSymbol : at - 1, i + 1 == piece.size() ? kNoSymbol : at + 1, index});
      if (i > 0) Change(symbols_[at - 1].id, id, count, at - 1);
    }
  }
}

void Trainer::Change(TokenId left, TokenId right, int64_t by, uint32_t place) {
  PairInfo& pair = pairs_[PairKey(left, right)];
  pair.count += by;
  if (by > 0) {
    pair.places.push_back(place);
    grown_.insert(PairKey(left, right));
  }
}

bool Trainer::Before(const Candidate& a, const Candidate& b) const {
  if (a.count != b.count) return a.count < b.count;
  const size_t specials = options_.special_tokens.size();
  const auto bytes = [&](TokenId id) -> const std::string& {
    return bytes_[static_cast<size_t>(id) - specials];
  };
  if (a.left != b.left) return bytes(a.left) > bytes(b.left);
  return bytes(a.right) > bytes(b.right);
}

// Returns the pair to merge next. Counts in the heap may be too high but never too low: a pair
// whose count rises is pushed again.
std::optional<Candidate> Trainer::Best() {
  const auto before = [this](const Candidate& a, const Candidate& b) { return Before(a, b); };
  for (const uint64_t key : grown_) {
    const PairInfo& pair = pairs_.at(key);
    if (pair.count < options_.min_pair_count || pair.count <= 0) continue;
    heap_.push_back({pair.count, static_cast<TokenId>(key >> 32), static_cast<TokenId>(key)});
    std::push_heap(heap_.begin(), heap_.end(), before);
  }
  grown_.clear();
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), before);
    Candidate top = heap_.back();
    heap_.pop_back();
    const auto it = pairs_.find(PairKey(top.left, top.right));
    const int64_t count = it == pairs_.end() ? 0 : it->second.count;
    if (count < options_.min_pair_count || count <= 0) continue;
    if (count == top.count) return top;
    if (count < top.count) {
      top.count = count;
      heap_.push_back(top);
      std::push_heap(heap_.begin(), heap_.end(), before);
    }
  }
  return std::nullopt;
}

void Trainer::Apply(const Candidate& best) {
  const auto node = pairs_.extract(PairKey(best.left, best.right));
  std::vector<uint32_t> places = node.mapped().places;
  const TokenId merged = static_cast<TokenId>(
      AddToken(bytes_[static_cast<size_t>(best.left) - options_.special_tokens.size()] +
               bytes_[static_cast<size_t>(best.right) - options_.special_tokens.size()]));
  merges_.emplace_back(best.left, best.right);

  // Left to right, like encoding: the order matters where places overlap, as in "aaa".
  std::sort(places.begin(), places.end());
  for (const uint32_t place : places) {
    Symbol& left = symbols_[place];
    if (left.id != best.left || left.next == kNoSymbol || symbols_[left.next].id != best.right) {
      continue;
    }
    Symbol& right = symbols_[left.next];
    const int64_t weight = weights_[left.piece];
    const uint32_t before = left.previous, after = right.next;
    if (before != kNoSymbol) Change(symbols_[before].id, left.id, -weight, before);
    if (after != kNoSymbol) Change(right.id, symbols_[after].id, -weight, after);
    left.id = merged;
    left.next = after;
    right.id = -1;
    if (after != kNoSymbol) symbols_[after].previous = place;
    if (before != kNoSymbol) Change(symbols_[before].id, merged, weight, before);
    if (after != kNoSymbol) Change(merged, symbols_[after].id, weight, place);
  }
  // Overlapping places changed the pair's own count again; no occurrence is left.
  pairs_.erase(PairKey(best.left, best.right));
  grown_.erase(PairKey(best.left, best.right));
}

void Trainer::Train(const std::function<void(int64_t, int64_t)>& progress) {
  const auto specials = static_cast<int64_t>(options_.special_tokens.size());
  const int64_t total = options_.vocab_size - specials - 256;
  const auto done = [&] { return static_cast<int64_t>(bytes_.size()) - 256; };
  const auto report = [&] {
    if (progress) progress(done(), total);
  };
  while (done() < total) {
    const std::optional<Candidate> best = Best();
    if (!best) break;
    // A token with a special token's spelling would replace it in the vocabulary.
    if (reserved_.contains(Spelling(best->left) + Spelling(best->right))) {
      pairs_.erase(PairKey(best->left, best->right));
      continue;
    }
    Apply(*best);
    if (merges_.size() % kProgressEvery == 0) report();
  }
  report();
}

std::string Trainer::ToJson() const {
  using Json = nlohmann::ordered_json;
  Json added = Json::array(), vocab = Json::object(), merges = Json::array();
  TokenId next = 0;
  for (const std::string& special : options_.special_tokens) {
    added.push_back({{"id", next},
                     {"content", special},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
    vocab.get_ref<Json::object_t&>().emplace_back(special, next++);
  }
  for (size_t i = 0; i < bytes_.size(); ++i) {
    vocab.get_ref<Json::object_t&>().emplace_back(Spelling(next), next);
    ++next;
  }
  for (const auto& [left, right] : merges_) {
    merges.push_back(Spelling(left) + " " + Spelling(right));
  }
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  const Json file = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", std::move(added)},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", byte_level},
                     {"post_processor", byte_level},
                     {"decoder", byte_level},
                     {"model",
                      {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"ignore_merges", false},
                       {"vocab", std::move(vocab)},
                       {"merges", std::move(merges)}}}};
  return file.dump(1) + "\n";
}

}  // namespace

std::string TrainBpe(
    std::string_view corpus, const BpeTrainerOptions& options,
    const std::function<void(int64_t merges_done, int64_t merges_total)>& progress) {
  Trainer trainer(options, corpus);
  trainer.Train(progress);
  return trainer.ToJson();
}

}  // namespace tandem::engine
