#include "engine/kv/prefix_index.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/out_of_memory.h"

namespace tandem::engine {
namespace {

// The key of a block covers every token up to its end, through the key of the previous block.
Sha256Digest ChainKey(const Sha256Digest& previous, std::span<const TokenId> block_tokens) {
  Sha256 hash;
  hash.Update(std::as_bytes(std::span(previous)));
  hash.Update(std::as_bytes(block_tokens));
  return hash.Finish();
}

std::span<const TokenId> BlockTokens(std::span<const TokenId> tokens, size_t block_idx) {
  constexpr auto kLength = static_cast<size_t>(kTokensPerBlock);
  return tokens.subspan(block_idx * kLength, kLength);
}

}  // namespace

PrefixIndex::PrefixIndex(Sha256Digest salt, std::vector<KvWindow> windows)
    : salt_(salt), windows_(std::move(windows)), block_of_(windows_.size()) {
  TANDEM_CHECK(!windows_.empty());
}

// Two digests have another length than a digest and a block of tokens, so no chain produces this
// key.
Sha256Digest PrefixIndex::Root(std::string_view variant) const {
  if (variant.empty()) return salt_;
  Sha256 hash;
  hash.Update(std::as_bytes(std::span(salt_)));
  const Sha256Digest digest = Sha256Of(std::as_bytes(std::span(variant)));
  hash.Update(std::as_bytes(std::span(digest)));
  return hash.Finish();
}

size_t DigestHash::operator()(const Sha256Digest& digest) const {
  size_t hash;  // the digest is uniform, so any of its bytes work
  std::memcpy(&hash, digest.data(), sizeof(hash));
  return hash;
}

void PrefixIndex::Advance(std::span<const TokenId> tokens, std::string_view variant,
                          int64_t n_blocks, PrefixKey& point) const {
  TANDEM_CHECK(n_blocks >= 0 && n_blocks * kTokensPerBlock <= static_cast<int64_t>(tokens.size()));
  if (point.n_blocks < 0 || point.n_blocks > n_blocks) point = {Root(variant), 0};
  for (; point.n_blocks < n_blocks; ++point.n_blocks) {
    point.key = ChainKey(point.key, BlockTokens(tokens, static_cast<size_t>(point.n_blocks)));
  }
}

std::vector<Sha256Digest> PrefixIndex::Keys(std::span<const TokenId> tokens,
                                            std::string_view variant) const {
  std::vector<Sha256Digest> known;
  return Keys(tokens, variant, known);
}

std::vector<Sha256Digest> PrefixIndex::Keys(std::span<const TokenId> tokens,
                                            std::string_view variant,
                                            std::vector<Sha256Digest>& known) const {
  return KeysOf(
      tokens, variant,
      [&](const Sha256Digest& key, size_t table) { return block_of_[table].contains(key); }, known);
}

std::vector<Sha256Digest> PrefixIndex::KeysOf(std::span<const TokenId> tokens,
                                              std::string_view variant, const Has& has,
                                              std::vector<Sha256Digest>& known) const {
  if (tokens.empty()) return {};
  // One token stays uncached, because the caller needs its logits.
  const size_t n_blocks = (tokens.size() - 1) / static_cast<size_t>(kTokensPerBlock);
  const auto has_block = [&](const Sha256Digest& key) {
    for (size_t table = 0; table < windows_.size(); ++table) {
      if (windows_[table].keeps_all() && !has(key, table)) return false;
    }
    return true;
  };
  size_t n = 0;
  for (; n < n_blocks; ++n) {
    if (n == known.size()) {
      known.push_back(ChainKey(n == 0 ? Root(variant) : known.back(), BlockTokens(tokens, n)));
    }
    if (!has_block(known[n])) break;
  }
  return {known.begin(), known.begin() + static_cast<std::ptrdiff_t>(n)};
}

int64_t PrefixIndex::Longest(std::span<const Sha256Digest> keys) const {
  return LongestOf(
      keys, [&](const Sha256Digest& key, size_t table) { return block_of_[table].contains(key); });
}

// A missing block rules out every prefix that needs it. These are adjacent, so the search goes on
// before the block.
int64_t PrefixIndex::LongestOf(std::span<const Sha256Digest> keys, const Has& has) const {
  auto n = static_cast<int64_t>(keys.size());
  const auto missing = [&]() -> int64_t {
    for (size_t table = 0; table < windows_.size(); ++table) {
      if (windows_[table].keeps_all()) continue;  // Keys looked
      const int64_t first = FirstVisibleBlock(windows_[table], n * kTokensPerBlock);
      for (int64_t i = n - 1; i >= first; --i) {
        if (!has(keys[static_cast<size_t>(i)], table)) return i;
      }
    }
    return n;
  };
  for (int64_t next = missing(); next < n; next = missing()) n = next;
  return n;
}

PrefixIndex::Needs PrefixIndex::NeedsOf(std::span<const TokenId> tokens, std::string_view variant,
                                        const Has& is_elsewhere,
                                        std::vector<Sha256Digest>& known) const {
  const Has has = [&](const Sha256Digest& key, size_t table) {
    return block_of_[table].contains(key) || is_elsewhere(key, table);
  };
  const std::vector<Sha256Digest> keys = KeysOf(tokens, variant, has, known);
  const int64_t n = LongestOf(keys, has);
  Needs needs;
  for (int64_t i = 0; i < n; ++i) {
    const Sha256Digest& key = keys[static_cast<size_t>(i)];
    for (size_t table = 0; table < windows_.size(); ++table) {
      if (i < FirstVisibleBlock(windows_[table], n * kTokensPerBlock)) continue;
      const auto found = block_of_[table].find(key);
      if (found == block_of_[table].end()) {
        needs.lacks.push_back({key, table});
      } else {
        needs.present.push_back(found->second);
      }
    }
  }
  return needs;
}

std::optional<PrefixIndex::Lack> PrefixIndex::NameOf(BlockId block) const {
  const auto found = key_of_.find(block);
  if (found == key_of_.end()) return std::nullopt;
  return Lack{found->second.key, found->second.table};
}

std::vector<BlockTable> PrefixIndex::Blocks(std::span<const Sha256Digest> keys) const {
  const auto n = static_cast<int64_t>(keys.size());
  std::vector<BlockTable> tables(windows_.size(), BlockTable(keys.size(), kNoBlock));
  for (size_t table = 0; table < windows_.size(); ++table) {
    for (int64_t i = FirstVisibleBlock(windows_[table], n * kTokensPerBlock); i < n; ++i) {
      const auto at = static_cast<size_t>(i);
      const auto found = block_of_[table].find(keys[at]);
      TANDEM_CHECK(found != block_of_[table].end());
      tables[table][at] = found->second;
    }
  }
  return tables;
}

bool PrefixIndex::Insert(const Sha256Digest& key, size_t table, BlockId block) {
  if (const auto known = key_of_.find(block); known != key_of_.end()) {
    // The caller must Forget an indexed block before it reuses the block; otherwise a match would
    // return wrong keys.
    TANDEM_CHECK(known->second.key == key && known->second.table == table);
    return false;
  }
  // An entry in only one of the maps would later return the keys of another text.
  bool is_new = false;
  const bool has_both = HasMemoryFor([&] {
    is_new = block_of_.at(table).try_emplace(key, block).second;
    if (is_new) key_of_.emplace(block, Indexed{key, table});
  });
  if (!has_both && is_new) block_of_[table].erase(key);
  return has_both && is_new;
}

void PrefixIndex::Forget(BlockId block) {
  const auto found = key_of_.find(block);
  if (found == key_of_.end()) return;
  block_of_[found->second.table].erase(found->second.key);
  key_of_.erase(found);
}

bool PrefixIndex::Contains(BlockId block) const { return key_of_.contains(block); }
int64_t PrefixIndex::size() const { return static_cast<int64_t>(key_of_.size()); }

}  // namespace tandem::engine
