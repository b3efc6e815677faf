#include "bench/optimizer_bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ostream>
#include <vector>

#include "bench/gemm_bench.h"
#include "bench/measure/paired.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/thread_pool.h"
#include "engine/kernels/kernels.h"
#include "training/optim/optimizer.h"

namespace tandem::bench {
namespace {

using training::MomentState;
using training::OptimizerKind;
using training::OptimizerSpec;

struct Case {
  const char* name;
  OptimizerSpec spec;
  bool split;
};

// One tensor and its state; `bytes` is a step's memory traffic.
struct Tensor {
  Tensor(const Case& which, int64_t elements) {
    const training::MomentLayout layout =
        training::MomentsOf(which.spec, {.rows = elements, .is_matrix = true});
    const auto n = static_cast<size_t>(elements);
    const auto take = [this](size_t size) {
      return buffers.emplace_back(AlignedBuffer(size)).data();
    };
    const auto floats = [&](size_t count) {
      return reinterpret_cast<float*>(take(count * sizeof(float)));
    };
    state.elements = elements;
    if (which.split) {
      state.high = reinterpret_cast<engine::Bf16*>(take(n * sizeof(engine::Bf16)));
      state.low = reinterpret_cast<int16_t*>(take(n * sizeof(int16_t)));
    } else {
      state.master = floats(n);
    }
    const auto moment = [&](float** values, uint8_t** codes, float** scales) {
      if (layout.coded) {
        *codes = reinterpret_cast<uint8_t*>(take(n));
        *scales = floats(static_cast<size_t>(training::MomentBlocks(elements)));
      } else {
        *values = floats(n);
      }
    };
    if (layout.first) moment(&state.m, &state.m_codes, &state.m_scales);
    if (layout.second) moment(&state.v, &state.v_codes, &state.v_scales);
    float* g = floats(n);
    for (size_t i = 0; i < n; ++i) g[i] = static_cast<float>(i % 1013) * 1e-5f - 5e-3f;
    state.gradient = g;
    bytes = static_cast<double>(elements) * (4 * 2 + 4) +
            2 * static_cast<double>(training::MomentBytes(layout, elements));
  }

  std::vector<AlignedBuffer> buffers;
  training::ParameterState state;
  double bytes = 0;
};

void Measure(std::ostream& out, const OptimizerBenchOptions& options, const Case& which,
             engine::OpsContext& ops) {
  Tensor tensor(which, options.elements);
  int64_t t = 0;
  const auto step = [&] { ApplyOptimizer(ops, which.spec, 1e-3, t++, 1, {&tensor.state, 1}); };
  step();  // touches every page
  std::vector<double> rates;
  std::vector<double> shares;
  for (int round = 0; round < options.rounds; ++round) {
    double best = 0;
    for (int64_t i = 0; i < options.steps; ++i) {
      const auto from = std::chrono::steady_clock::now();
      step();
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - from;
      best = std::max(best, tensor.bytes / seconds.count());
    }
    const Roof roof = MeasureRoof(ops.pool().n_threads(), 0.3);
    rates.push_back(best);
    shares.push_back(best / roof.read_bytes);
  }
  char line[160];
  std::snprintf(line, sizeof line, "%-22s %5.1f B/element  %6.2f GB/s  %3.0f %% of the read loop\n",
                which.name, tensor.bytes / static_cast<double>(options.elements),
                Median(rates) / 1e9, 100 * Median(shares));
  out << line << std::flush;
}

}  // namespace

int RunOptimizerBench(std::ostream& out, const OptimizerBenchOptions& options) {
  ThreadPool pool(options.threads);
  engine::OpsContext ops(engine::Kernels(), pool);
  char line[160];
  std::snprintf(line, sizeof line,
                "%lld elements, %d threads, %s (medians of %d rounds, best of %lld steps each)\n",
                static_cast<long long>(options.elements), pool.n_threads(),
                std::string(ops.kernels().key).c_str(), options.rounds,
                static_cast<long long>(options.steps));
  out << line;
  const OptimizerSpec adamw;
  const OptimizerSpec eight{.state = MomentState::k8Bit};
  const OptimizerSpec sgd{.kind = OptimizerKind::kSgd, .momentum = 0.9};
  for (const Case& which : {Case{"adamw f32", adamw, false}, Case{"adamw split", adamw, true},
                            Case{"adamw split, 8bit", eight, true}, Case{"sgd split", sgd, true}}) {
    Measure(out, options, which, ops);
  }
  return 0;
}

}  // namespace tandem::bench
