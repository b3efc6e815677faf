#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/base/ids.h"

namespace tandem::engine {

// Counts references to KV blocks; never touches their bytes. Engine thread only. A block with
// references is in use; one without is free, possibly still holding cached keys and values that
// the prefix index knows (it is then reused last, in least-recently-released order).
class BlockPool {
 public:
  explicit BlockPool(int64_t capacity_blocks);

  // A block with one reference, or nothing when all are in use (an ordinary event). When the block
  // still held cached content, `evicted` is set so that the prefix index can forget it.
  struct Allocation {
    BlockId block;
    bool evicted_cached = false;
  };
  std::optional<Allocation> TryAllocate();
  void AddRef(BlockId block);   // also revives a free cached block
  void Release(BlockId block);  // at zero references the block becomes free
  // Whether a free block keeps its content for the prefix index (set when it is indexed).
  void SetCached(BlockId block, bool cached);

  int64_t capacity_blocks() const;
  int64_t num_free() const;  // free ones, cached or not
  int32_t references(BlockId block) const;

 private:
  struct Entry {
    int32_t references = 0;
    bool cached = false;
    int32_t previous = -1;  // free list links
    int32_t next = -1;
  };
  std::vector<Entry> entries_;
  int32_t free_head_ = -1;  // allocation takes from here
  int32_t free_tail_ = -1;
  int64_t num_free_ = 0;
};

}  // namespace tandem::engine
