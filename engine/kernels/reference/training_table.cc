// Standard headers come before the region. Otherwise the linker could keep a copy of their inline
// functions that was compiled for this instruction set.
#include <cmath>

#include "engine/kernels/training_kernels.h"
#include "engine/kernels/training_tables.h"

namespace tandem::engine::reference {
namespace {

// Defined below: its body uses the files that are included next.
template <class T>
void AttentionGradient(const AttentionGradientArgs<T>& a) noexcept;

// Each file uses the files before it.
// clang-format off
#include "engine/kernels/optimizer_kernels.inc"
#include "engine/kernels/training_kernels.inc"
// clang-format on

template <class T>
void AttentionGradient(const AttentionGradientArgs<T>& a) noexcept {
  constexpr int64_t kPair = sizeof(T) == 2 ? 2 : 1;
  for (int64_t r = 0; r < a.padded_rows; ++r) {
    for (int64_t key = 0; key < a.n_keys; ++key) {
      float p = 0;
      float ds = 0;
      if (r < a.rows && key >= a.first_key[r] && key <= a.last_key[r]) {
        float s = a.scores[r * a.ld + key] * a.scale;
        float slope = a.scale;
        if (a.soft_cap > 0) {
          const float t = std::tanh(s / a.soft_cap);
          s = a.soft_cap * t;
          slope *= 1 - t * t;
        }
        p = std::exp(s - a.lse[r * a.lse_stride]);
        ds = p * (a.dp[r * a.ld + key] - a.delta[r]) * slope;
      }
      const int64_t at = key / kLanes * kLanes * a.padded_rows + r / kPair * kPair * kLanes +
                         key % kLanes * kPair + r % kPair;
      Store(p, a.p_panels + at);
      Store(ds, a.ds_panels + at);
      Store(ds, a.ds_rows + r * a.n_keys + key);
    }
  }
}

}  // namespace

constinit const TrainingKernelTable kTrainingTable = MakeTrainingTable("reference");

}  // namespace tandem::engine::reference
