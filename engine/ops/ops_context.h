#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/aligned_buffer.h"
#include "engine/base/thread_pool.h"

namespace tandem::engine {

struct KernelTable;
struct TrainingKernelTable;

// The context of every op: the kernel table, the thread pool, and scratch memory of each worker.
// One per thread that runs ops (the engine thread; the trainer). Scratch grows to its largest use
// during the first steps and then stays.
class OpsContext {
 public:
  OpsContext(const KernelTable& kernels, ThreadPool& pool);

  const KernelTable& kernels() const { return *kernels_; }
  ThreadPool& pool() const { return *pool_; }

  // At least `bytes` of 64-byte aligned memory that only this worker uses until its next call.
  std::byte* WorkerScratch(int worker, size_t bytes);
  // As above, for the calling thread's op as a whole (packing buffers that workers share).
  std::byte* SharedScratch(size_t bytes);

 private:
  const KernelTable* kernels_;
  ThreadPool* pool_;
  std::vector<AlignedBuffer> worker_scratch_;
  AlignedBuffer shared_scratch_;
};

}  // namespace tandem::engine
