#include "engine/kv/kv_cache.h"

#include <cstring>

#include "engine/base/check.h"

namespace tandem::engine {
namespace {

size_t CacheBytes(const KvCache::Shape& shape) {
  TANDEM_CHECK(shape.n_layers >= 0 && shape.n_kv_heads >= 0 && shape.head_block_bytes >= 0 &&
               shape.n_blocks >= 0);
  const char* what = "KV cache size in bytes";
  int64_t bytes = CheckedMul(shape.n_kv_heads, shape.head_block_bytes, what);
  bytes = CheckedMul(bytes, shape.n_blocks, what);
  bytes = CheckedMul(bytes, shape.n_layers, what);
  return static_cast<size_t>(CheckedMul<int64_t>(bytes, 2, what));
}

}  // namespace

KvCache::KvCache(const Shape& shape) : shape_(shape), bytes_(CacheBytes(shape)) {}

std::byte* KvCache::keys(int64_t layer) {
  TANDEM_DCHECK(layer >= 0 && layer < shape_.n_layers);
  return bytes_.data() + 2 * layer * shape_.n_blocks * block_stride_bytes();
}

std::byte* KvCache::values(int64_t layer) {
  return keys(layer) + shape_.n_blocks * block_stride_bytes();
}

int64_t KvCache::bytes() const { return static_cast<int64_t>(bytes_.size()); }

void KvCache::CopyBlock(BlockId from, BlockId to) {
  TANDEM_CHECK(from.value < shape_.n_blocks && to.value < shape_.n_blocks && from != to);
  const int64_t stride = block_stride_bytes();
  for (int64_t layer = 0; layer < shape_.n_layers; ++layer) {
    for (std::byte* base : {keys(layer), values(layer)}) {
      std::memcpy(base + to.value * stride, base + from.value * stride,
                  static_cast<size_t>(stride));
    }
  }
}

}  // namespace tandem::engine
