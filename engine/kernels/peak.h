#pragma once

#include "engine/base/thread_pool.h"

namespace tandem::engine {

// The arithmetic of the kernels' inner products.
enum class PeakKind {
  kF32,    // fused multiply-adds
  kBf16,   // bf16 products as the table in use computes them
  kBytes,  // products of bytes, likewise; with AMX those of its tiles, which few rows do not use
};

// The machine's peak operations per second in registers, on all threads of the pool, for the kernel
// table in use: an upper bound for every product. Takes about `seconds`.
double PeakRate(ThreadPool& pool, PeakKind kind, double seconds);

}  // namespace tandem::engine
