#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "engine/base/thread_pool.h"
#include "engine/kernels/kernels.h"
#include "engine/ops/ops_context.h"

namespace tandem::training {

using Doubles = std::vector<double>;
using Floats = std::vector<float>;

inline Floats RandomFloats(int64_t n, uint64_t seed, float scale = 1) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal(0, scale);
  Floats out(static_cast<size_t>(n));
  for (float& x : out) x = normal(rng);
  return out;
}

inline Doubles Widen(const Floats& x) { return {x.begin(), x.end()}; }

// The gradient of `loss` at x by central differences in f64: the oracle of every backward pass.
inline Doubles NumericGradient(const std::function<double(const Doubles&)>& loss, Doubles x) {
  constexpr double kStep = 1e-5;
  Doubles gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + kStep;
    const double up = loss(x);
    x[i] = at - kStep;
    const double down = loss(x);
    x[i] = at;
    gradient[i] = (up - down) / (2 * kStep);
  }
  return gradient;
}

// The L2 norm of the difference over the L2 norm of the expectation.
inline double RelativeError(const Floats& got, const Doubles& want) {
  double difference = 0;
  double size = 1e-30;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  return std::sqrt(difference / size);
}

// Runs a test body with every table that this CPU supports, on two workers.
inline void OnEveryTable(const std::function<void(engine::OpsContext&)>& body) {
  ThreadPool pool(2);
  for (const engine::KernelTable* table : engine::RunnableKernelTables()) {
    SCOPED_TRACE(table->key);
    engine::OpsContext ops(*table, pool);
    body(ops);
  }
}

}  // namespace tandem::training
