#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/base/ids.h"
#include "engine/io/sha256.h"
#include "engine/kv/block_table.h"
#include "engine/kv/kv_window.h"

namespace tandem::engine {

struct DigestHash {
  size_t operator()(const Sha256Digest& digest) const;
};

// A point in a chain of block keys: the key of the prefix of `n_blocks` full blocks.
struct PrefixKey {
  Sha256Digest key{};
  int64_t n_blocks = -1;  // -1: no point yet
};

// Maps token prefixes to the full blocks that hold their keys and values. The key of block i is
// SHA-256(key of block i-1, tokens of block i). The chain begins with a salt that names model
// bytes, KV dtype and ISA key, joined with a variant. The variant names the adapter that computed
// the keys and values and the tenant that requested them; other variants never match its blocks.
// A key has one block per table of a sequence, all from one pool. A prefix needs every block of a
// table without window, and of a table with one those that the next token sees. Forgetting a block
// in the middle of a chain leaves its followers indexed; their content stays valid. Engine thread
// only.
class PrefixIndex {
 public:
  // `windows`: by table, as in KvCache::Shape.
  explicit PrefixIndex(Sha256Digest salt, std::vector<KvWindow> windows = {KvWindow{}});

  // Keys of the full blocks of `tokens` that a match may contain, leaving at least one token to
  // compute.
  std::vector<Sha256Digest> Keys(std::span<const TokenId> tokens, std::string_view variant) const;
  // The same. `known` has keys of the first blocks of these tokens and gets those that are computed
  // now, so that a prompt that waits is hashed once.
  std::vector<Sha256Digest> Keys(std::span<const TokenId> tokens, std::string_view variant,
                                 std::vector<Sha256Digest>& known) const;
  // A block of a prefix that is not in the index.
  struct Lack {
    Sha256Digest key;
    size_t table;
  };
  // The blocks of the longest match of blocks that are in the index or elsewhere.
  struct Needs {
    std::vector<Lack> lacks;       // to add, in order
    std::vector<BlockId> present;  // in the index; adding the others must not reuse them
  };
  // `known`: as in Keys.
  Needs NeedsOf(std::span<const TokenId> tokens, std::string_view variant,
                const std::function<bool(const Sha256Digest& key, size_t table)>& is_elsewhere,
                std::vector<Sha256Digest>& known) const;
  // The most first keys whose prefix has all blocks that it needs.
  int64_t Longest(std::span<const Sha256Digest> keys) const;
  // The blocks of that prefix, by table; those that it does not need are kNoBlock. Takes no
  // references. REQUIRES: it has them.
  std::vector<BlockTable> Blocks(std::span<const Sha256Digest> keys) const;

  // Moves `point` along the chain of `tokens` to the key of its first `n_blocks` blocks; begins
  // anew when it lies beyond. REQUIRES: `point` has no key yet or belongs to these tokens.
  void Advance(std::span<const TokenId> tokens, std::string_view variant, int64_t n_blocks,
               PrefixKey& point) const;

  // Records that `block` holds the last block of this key's prefix in `table`. Returns whether the
  // block is newly indexed, for BlockPool::SetCached. A prefix already indexed under another block
  // keeps that block. When memory runs out it indexes nothing and does not fail.
  bool Insert(const Sha256Digest& key, size_t table, BlockId block);
  // Call before the block's content is overwritten. Ignores unknown blocks.
  void Forget(BlockId block);

  bool Contains(BlockId block) const;
  // The block's prefix and table; nullopt: not in the index.
  std::optional<Lack> NameOf(BlockId block) const;
  int64_t size() const;

 private:
  using Has = std::function<bool(const Sha256Digest& key, size_t table)>;
  Sha256Digest Root(std::string_view variant) const;
  std::vector<Sha256Digest> KeysOf(std::span<const TokenId> tokens, std::string_view variant,
                                   const Has& has, std::vector<Sha256Digest>& known) const;
  int64_t LongestOf(std::span<const Sha256Digest> keys, const Has& has) const;

  struct Indexed {
    Sha256Digest key;
    size_t table;
  };
  using BlockMap = std::unordered_map<Sha256Digest, BlockId, DigestHash>;

  Sha256Digest salt_;
  std::vector<KvWindow> windows_;
  std::vector<BlockMap> block_of_;  // by table
  std::unordered_map<BlockId, Indexed> key_of_;
};

}  // namespace tandem::engine
