#include "engine/ops/ops_context.h"

namespace tandem::engine {

OpsContext::OpsContext(const KernelTable& kernels, ThreadPool& pool)
    : kernels_(&kernels), pool_(&pool), worker_scratch_(static_cast<size_t>(pool.n_threads())) {}

std::byte* OpsContext::WorkerScratch(int worker, size_t bytes) {
  AlignedBuffer& scratch = worker_scratch_[static_cast<size_t>(worker)];
  if (scratch.size() < bytes) {
    scratch = AlignedBuffer();  // free the old buffer first: both need not fit
    scratch = AlignedBuffer(bytes);
  }
  return scratch.data();
}

std::byte* OpsContext::SharedScratch(size_t bytes) {
  if (shared_scratch_.size() < bytes) {
    shared_scratch_ = AlignedBuffer();
    shared_scratch_ = AlignedBuffer(bytes);
  }
  return shared_scratch_.data();
}

}  // namespace tandem::engine
