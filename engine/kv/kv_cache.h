#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/aligned_buffer.h"
#include "engine/base/ids.h"
#include "engine/kv/kv_window.h"
#include "engine/tensor/dtype.h"
#include "engine/tensor/kv_format.h"

namespace tandem::engine {

// The bytes of the KV cache: [area][block][area bytes]. A sequence has one table of blocks for each
// entry of Shape::windows, and each layer uses one table. A block holds the keys and values of the
// layers of one table, so the tables of all sequences share one pool of blocks. With one table,
// each layer's keys and each layer's values have an area of their own, and layers may differ in
// their sizes. Initially zero (an untouched page costs nothing). Only the engine thread's step
// writes them.
class KvCache {
 public:
  // Bytes of 16 tokens, all kv heads. A layer without keys of its own has none.
  struct Layer {
    int64_t key_bytes = 0;
    int64_t value_bytes = 0;
    size_t table = 0;
  };
  struct Shape {
    std::vector<Layer> layers;
    int64_t n_blocks = 0;
    // By table: what the queries of its layers see.
    std::vector<KvWindow> windows = {KvWindow{}};
    KvFormat format = KvFormat::kCompute;

    int64_t block_bytes() const;
  };
  explicit KvCache(const Shape& shape);

  const Shape& shape() const { return shape_; }
  // Block b of a layer's keys begins at keys(layer) + b * key_stride(layer).
  std::byte* keys(int64_t layer);
  std::byte* values(int64_t layer);
  int64_t key_stride(int64_t layer) const;
  int64_t value_stride(int64_t layer) const;
  int64_t bytes() const;

  // Zeroes every block and returns the memory to the system until blocks are written again.
  void Discard() { bytes_.Discard(); }

  // Returns memory of blocks [first, first + n) to the system until they are written again. Their
  // bytes are undefined afterwards.
  void Discard(int64_t first, int64_t n);

  // Copies one block. Requests with n > 1 copy the last partial block of each table.
  void CopyBlock(BlockId from, BlockId to);
  // The bytes of one block, area after area, out of the cache and into it. REQUIRES: block_bytes()
  // bytes.
  void ReadBlock(BlockId from, std::span<std::byte> to);
  void WriteBlock(BlockId to, std::span<const std::byte> from);

 private:
  // Where the keys or values of a layer are: in one area, from one byte of it on.
  struct Place {
    size_t area = 0;
    int64_t offset = 0;
  };
  struct Layout {
    std::vector<int64_t> areas;  // bytes of a block
    std::vector<Place> keys;     // by layer
    std::vector<Place> values;
  };
  static Layout LayOut(const Shape& shape);

  std::byte* At(const Place& place);

  Shape shape_;
  Layout layout_;
  std::vector<int64_t> begins_;  // by area: bytes of a block in the areas before it
  AlignedBuffer bytes_;
};

}  // namespace tandem::engine
