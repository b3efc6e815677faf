#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/ids.h"

namespace tandem::engine {

// Token strings by id and ids by string. One arena holds the strings; a look-up touches two cache
// lines. Immutable after construction; any thread.
class TokenTable {
 public:
  // Ids are in [0, id_limit). Memory is a few bytes per id, which the caller must bound.
  TokenTable(size_t expected_tokens, TokenId id_limit);

  // Returns false when the string or the id exists already.
  bool Insert(std::string_view bytes, TokenId id);

  TokenId Find(std::string_view bytes) const;  // -1 when absent
  std::string_view String(TokenId id) const;   // empty for an id without a string
  bool Has(TokenId id) const;
  TokenId id_limit() const { return static_cast<TokenId>(spans_.size()); }
  size_t longest() const { return longest_; }  // bytes

 private:
  struct Span {
    uint32_t begin = 0;
    uint32_t size = kAbsent;
  };
  struct Slot {
    uint32_t hash = 0;
    TokenId id = -1;
  };
  static constexpr uint32_t kAbsent = UINT32_MAX;

  void Rehash(size_t slots);

  std::string arena_;
  std::vector<Span> spans_;  // by id
  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
  size_t used_ = 0;
  size_t longest_ = 0;
};

// Maps pairs of tokens to their merged token.
class PairTable {
 public:
  struct Merge {
    uint32_t rank = kNoRank;  // smaller ranks merge first
    TokenId merged = -1;
  };
  static constexpr uint32_t kNoRank = UINT32_MAX;

  explicit PairTable(size_t expected_pairs);

  void Set(TokenId left, TokenId right, Merge merge);  // a later rule replaces an earlier one
  Merge Find(TokenId left, TokenId right) const;
  // Removes the rules of pairs that merge into one of these ids.
  void RemoveResults(const std::vector<TokenId>& merged);

 private:
  struct Slot {
    uint64_t key = kFree;
    Merge merge;
  };
  static constexpr uint64_t kFree = UINT64_MAX;  // never a pair of ids: both would be -1

  size_t Probe(uint64_t key) const;

  std::vector<Slot> slots_;  // sized at construction: at most half full
  size_t used_ = 0;
};

}  // namespace tandem::engine
