#include "engine/kv/prefix_index.h"

#include <algorithm>
#include <cstring>

#include "engine/base/check.h"
#include "engine/base/out_of_memory.h"
#include "engine/kv/block_pool.h"

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

PrefixIndex::PrefixIndex(Sha256Digest salt) : salt_(salt) {}

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

size_t PrefixIndex::DigestHash::operator()(const Sha256Digest& digest) const {
  size_t hash;  // the digest is uniform, so any of its bytes work
  std::memcpy(&hash, digest.data(), sizeof(hash));
  return hash;
}

std::vector<BlockId> PrefixIndex::Match(std::span<const TokenId> tokens,
                                        std::string_view variant) const {
  std::vector<BlockId> blocks;
  if (tokens.empty()) return blocks;
  // One token stays uncached, because the caller needs its logits.
  const size_t n_blocks = (tokens.size() - 1) / static_cast<size_t>(kTokensPerBlock);
  Sha256Digest key = Root(variant);
  for (size_t i = 0; i < n_blocks; ++i) {
    key = ChainKey(key, BlockTokens(tokens, i));
    const auto found = block_of_.find(key);
    if (found == block_of_.end()) break;
    blocks.push_back(found->second);
  }
  return blocks;
}

std::vector<BlockId> PrefixIndex::Insert(std::span<const TokenId> tokens,
                                         std::span<const BlockId> blocks,
                                         std::string_view variant) {
  TANDEM_CHECK(blocks.size() <= tokens.size() / static_cast<size_t>(kTokensPerBlock));
  std::vector<BlockId> indexed;
  Sha256Digest key = Root(variant);
  // A growing sequence inserts repeatedly. Its chain continues from the last known block, so only
  // new blocks cost time. That block is checked again below.
  size_t first = blocks.size();
  while (first > 0 && !key_of_.contains(blocks[first - 1])) --first;
  first -= first > 0 ? 1 : 0;
  if (first > 0) {
    const auto before = key_of_.find(blocks[first - 1]);
    if (before != key_of_.end()) {
      key = before->second;
    } else {
      first = 0;
    }
  }
  for (size_t i = first; i < blocks.size(); ++i) {
    key = ChainKey(key, BlockTokens(tokens, i));
    const auto known = key_of_.find(blocks[i]);
    if (known != key_of_.end()) {
      // The caller must Forget an indexed block before it reuses the block; otherwise a match would
      // return wrong keys.
      TANDEM_CHECK(known->second == key);
      continue;
    }
    // An entry in only one of the maps would later return the keys of another text.
    if (!HasMemoryFor([&] { indexed.push_back(blocks[i]); })) break;
    bool is_new = false;
    const bool has_both = HasMemoryFor([&] {
      is_new = block_of_.try_emplace(key, blocks[i]).second;
      if (is_new) key_of_.emplace(blocks[i], key);
    });
    if (!has_both && is_new) block_of_.erase(key);
    if (!has_both || !is_new) indexed.pop_back();
    if (!has_both) break;
  }
  return indexed;
}

void PrefixIndex::Forget(BlockId block) {
  const auto found = key_of_.find(block);
  if (found == key_of_.end()) return;
  block_of_.erase(found->second);
  key_of_.erase(found);
}

bool PrefixIndex::Contains(BlockId block) const { return key_of_.contains(block); }
int64_t PrefixIndex::size() const { return static_cast<int64_t>(block_of_.size()); }

}  // namespace tandem::engine
