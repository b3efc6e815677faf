#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/base/ids.h"
#include "engine/io/sha256.h"

namespace tandem::engine {

// Maps token prefixes to the full blocks that hold their keys and values. The key of block i is
// SHA-256(key of block i-1, tokens of block i). The chain begins with a salt that names model
// bytes, KV dtype and ISA key, joined with a variant. The variant names the adapter that computed
// the keys and values and the tenant that requested them; other variants never match its blocks.
// Forgetting a block in the middle of a chain leaves its followers indexed but unreachable until
// that prefix is inserted again; their content stays valid. Engine thread only.
class PrefixIndex {
 public:
  explicit PrefixIndex(Sha256Digest salt);

  // Blocks of the longest cached prefix of `tokens`, in full blocks, leaving at least one token to
  // compute. Takes no references.
  std::vector<BlockId> Match(std::span<const TokenId> tokens, std::string_view variant) const;

  // Records that `blocks` (all full) hold the first blocks.size() * kTokensPerBlock tokens. A
  // prefix already indexed under another block keeps that block. Returns the newly indexed blocks,
  // for BlockPool::SetCached. When memory runs out it indexes fewer blocks and does not fail.
  std::vector<BlockId> Insert(std::span<const TokenId> tokens, std::span<const BlockId> blocks,
                              std::string_view variant);
  // Call before the block's content is overwritten. Ignores unknown blocks.
  void Forget(BlockId block);

  bool Contains(BlockId block) const;
  int64_t size() const;

 private:
  Sha256Digest Root(std::string_view variant) const;

  struct DigestHash {
    size_t operator()(const Sha256Digest& digest) const;
  };
  Sha256Digest salt_;
  std::unordered_map<Sha256Digest, BlockId, DigestHash> block_of_;
  std::unordered_map<BlockId, Sha256Digest> key_of_;
};

}  // namespace tandem::engine
