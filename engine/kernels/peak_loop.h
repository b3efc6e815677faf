#pragma once

#include "engine/kernels/kernels.h"
#include "engine/kernels/peak.h"

namespace tandem::engine {

// A loop of nothing but one instruction of the inner products, in registers.
struct PeakLoop {
  void (*run)();
  double operations;  // of one run
};

// The loop of a table's products (peak_x86.cc, peak_arm64.cc).
PeakLoop FindPeakLoop(const KernelTable& table, PeakKind kind);

}  // namespace tandem::engine
