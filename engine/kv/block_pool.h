#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/base/ids.h"
#include "engine/tensor/kv_block.h"

namespace tandem::engine {

// Counts references to KV blocks; never touches their bytes. Engine thread only. A block with
// references is in use. A block without references is free, but may hold cached keys and values
// that the prefix index knows. Free cached blocks are reused last, in least-recently-released
// order.
class BlockPool {
 public:
  // Blocks [first, first + n).
  struct Range {
    int64_t first = 0;
    int64_t n = 0;
  };

  explicit BlockPool(int64_t capacity_blocks);

  // A block with one reference, or nullopt when all are in use (an ordinary event).
  // `evicted_cached` is set when the block still held cached content, so that the prefix index can
  // forget it.
  struct Allocation {
    BlockId block;
    bool evicted_cached = false;
  };
  std::optional<Allocation> TryAllocate();
  void AddRef(BlockId block);  // also revives a free cached block
  // At zero references the block becomes free. Release a sequence's blocks from last to first:
  // cached blocks are then reused from the tail, and a prefix that others may match survives
  // longest.
  void Release(BlockId block);
  // Whether a free block keeps its content for the prefix index; set when the index adds it.
  void SetCached(BlockId block, bool cached);

  // Counts intervals of time, so that Idle needs no clock.
  void Age() { ++age_; }
  // Free blocks whose bytes may still take memory, and that were released at least `ages` calls of
  // Age ago; ascending, the first `most` of them.
  std::vector<BlockId> Idle(int64_t ages, int64_t most) const;
  // Notes that the block's content is lost and its memory returned. REQUIRES: it is free, and the
  // prefix index does not have it.
  void GiveBack(BlockId block);
  // Ranges of free blocks without memory that contain these blocks, which are ascending. Longer
  // ranges than the blocks themselves: neighbours share pages of memory.
  std::vector<Range> RangesAround(const std::vector<BlockId>& blocks) const;

  int64_t capacity_blocks() const;
  int64_t num_free() const;  // cached and uncached
  int32_t references(BlockId block) const;
  bool is_cached(BlockId block) const;

 private:
  struct Entry {
    int32_t references = 0;
    bool cached = false;
    bool taken = false;        // since its memory was returned, or from the beginning
    int64_t released_age = 0;  // when the last reference went
    int32_t previous = -1;     // free list links
    int32_t next = -1;
  };
  Entry& At(BlockId block);
  const Entry& At(BlockId block) const;
  void PushFree(int32_t index);  // to the tail when cached, otherwise to the front
  void Unlink(int32_t index);

  std::vector<Entry> entries_;
  int32_t free_head_ = -1;  // allocation takes from here; cached blocks are all at the tail
  int32_t free_tail_ = -1;
  int64_t num_free_ = 0;
  int64_t age_ = 0;
};

}  // namespace tandem::engine
