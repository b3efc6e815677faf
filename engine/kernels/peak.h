#pragma once

#include "engine/base/thread_pool.h"

namespace tandem::engine {

// What the kernels' inner products are made of.
enum class PeakKind {
  kF32,    // fused multiply-adds
  kBf16,   // bf16 products in the way of the table in use
  kBytes,  // products of bytes, likewise
};

// Operations per second that this machine reaches in registers on all threads of the pool, for the
// kernel table in use: a roof, that no product can pass. Takes about `seconds`.
double PeakRate(ThreadPool& pool, PeakKind kind, double seconds);

}  // namespace tandem::engine
