#pragma once

#include <cstdint>

#include "engine/base/aligned_buffer.h"
#include "engine/base/ids.h"
#include "engine/tensor/dtype.h"

namespace tandem::engine {

// The bytes of the KV cache: [layer][keys | values][block][kv_head][block bytes]. Initially zero
// (an untouched page costs nothing). Only the engine thread's step writes them.
class KvCache {
 public:
  struct Shape {
    int64_t n_layers = 0;
    int64_t n_kv_heads = 0;
    int64_t head_block_bytes = 0;  // engine/ops/attention.h: KvHeadBlockBytes
    int64_t n_blocks = 0;
  };
  explicit KvCache(const Shape& shape);

  const Shape& shape() const { return shape_; }
  std::byte* keys(int64_t layer);
  std::byte* values(int64_t layer);
  int64_t block_stride_bytes() const { return shape_.n_kv_heads * shape_.head_block_bytes; }
  int64_t bytes() const;

  // Zeroes every block and returns the memory to the system until blocks are written again.
  void Discard() { bytes_.Discard(); }

  // Copies one block in every layer. Requests with n > 1 copy the last partial block.
  void CopyBlock(BlockId from, BlockId to);

 private:
  Shape shape_;
  AlignedBuffer bytes_;
};

}  // namespace tandem::engine
