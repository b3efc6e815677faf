#include "bench/step_bench.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include "bench/gemm_bench.h"
#include "bench/measure/paired.h"
#include "bench/step_sequences.h"
#include "engine/adapter/lora_adapter.h"
#include "engine/base/check.h"
#include "engine/base/thread_pool.h"
#include "engine/io/atomic_write.h"
#include "engine/kernels/kernels.h"
#include "engine/model/adapter.h"
#include "engine/model/model.h"
#include "engine/model/plan_ops.h"
#include "training/lora/lora.h"

namespace tandem::bench {
namespace {

namespace fs = std::filesystem;

struct Round {
  double peak_flops;
  double read_bytes;
  double prefill_seconds;
  double last_seconds;  // the same prompt as an embedding, by pooling
  double mean_seconds;
  double one_seconds;
  double batch_seconds;
  double adapted_seconds;  // 0: no adapters
};

// Makes adapters of all linear layers. They have equal values, but each its own memory.
std::vector<std::shared_ptr<const engine::Adapter>> MakeAdapters(
    const StepBenchOptions& options, const std::shared_ptr<const engine::Model>& model,
    engine::OpsContext& ops) {
  std::vector<std::shared_ptr<const engine::Adapter>> adapters;
  if (options.adapters == 0) return adapters;
  training::LoraOptions lora;
  lora.rank = options.adapter_rank;
  const std::vector<training::LoraTarget> targets =
      training::ChooseLoraTargets(lora, model->family(), model->config());
  const std::vector<engine::WeightSpec> base = model->family().list_weights(model->config());
  const std::vector<engine::WeightSpec> specs = training::LoraSpecs(base, targets);
  std::vector<std::vector<float>> values;
  std::vector<engine::NamedTensor> tensors;
  for (const engine::WeightSpec& spec : specs) {
    // Initialises B like A, because no matrix may be zero.
    const std::vector<float>& tensor =
        values.emplace_back(static_cast<size_t>(spec.n * spec.k), 0.01F);
    tensors.push_back({spec.name,
                       {reinterpret_cast<const std::byte*>(tensor.data()), engine::DType::kF32,
                        spec.source_shape}});
  }
  const fs::path dir = options.cache_dir / "bench-adapter";
  fs::create_directories(dir);
  engine::WriteSafetensors(dir / "adapter_model.safetensors", tensors, {{"format", "pt"}});
  engine::WriteFileAtomically(dir / "adapter_config.json",
                              training::LoraConfigOf(lora, targets, base, "random"));
  for (int64_t i = 0; i < options.adapters; ++i) {
    adapters.push_back(engine::Adapter::Load(engine::LoraAdapter::Open(dir), model, ops));
  }
  fs::remove_all(dir);
  return adapters;
}

// Cost of a token.
struct Cost {
  double layer_elements = 0;  // multiplied by each prompt token
  double weight_bytes = 0;    // read in each step of one stream
};

Cost CostOf(const engine::Model& model) {
  Cost cost;
  const std::vector<double> shares =
      engine::PlanForward(model.family(), model.config(), model.weight_specs(), model.dtype())
          .ActiveShares(model.weights().size());
  for (const engine::Weight& weight : model.weights()) {
    const double share = shares[static_cast<size_t>(weight.index)];
    if (weight.spec->kind == engine::WeightKind::kVector) continue;
    const bool is_matrix = weight.spec->kind == engine::WeightKind::kMatrix;
    // The head runs for one row of a prompt, so its FLOPs do not count; nor do look-ups.
    if (is_matrix && weight.spec->name != "lm_head.weight") {
      cost.layer_elements += share * static_cast<double>(weight.spec->n * weight.spec->k);
    }
    // An untied embedding table is looked up, not read.
    if (!is_matrix && !model.config().tied_embeddings) continue;
    const engine::PanelMatrix& w = weight.panels;
    cost.weight_bytes += share * static_cast<double>(w.block == engine::BlockFormat::kNone
                                                         ? engine::PanelBytes(w.dtype, w.n, w.k)
                                                         : engine::PanelBytes(w.block, w.n, w.k));
  }
  return cost;
}

class StepBench {
 public:
  StepBench(const std::shared_ptr<const engine::Model>& model, engine::OpsContext& ops,
            const StepBenchOptions& options)
      : options_(options),
        adapters_(MakeAdapters(options, model, ops)),
        n_threads_(ops.pool().n_threads()),
        peak_(model->dtype() == engine::DType::kF32         ? &Roof::f32_flops
              : options.block == engine::BlockFormat::kNone ? &Roof::bf16_flops
                                                            : &Roof::int8_ops),
        hidden_dim_(model->config().hidden_dim),
        state_floats_(engine::ModelRunner::StateFloats(*model)),
        blocks_per_sequence_(
            (options.prompt_tokens + options.decode_steps) / engine::kTokensPerBlock + 2),
        kv_(engine::ModelRunner::KvShape(*model, blocks_per_sequence_ * (options.batch + 1))),
        runner_(model, ops, std::max(options.prompt_tokens, options.batch * 16), options.batch) {}

  Round Run() {
    Round round{};
    const Roof before = MeasureRoof(n_threads_, 0.3);
    const int64_t n = options_.prompt_tokens;
    round.prefill_seconds = One().Step(n);
    round.last_seconds = One().Step(n, 1);
    round.mean_seconds = One().Step(n, n);
    round.one_seconds = Decode(1, {});
    const Roof after = MeasureRoof(n_threads_, 0.3);
    round.batch_seconds = Decode(options_.batch, {});
    if (!adapters_.empty()) round.adapted_seconds = Decode(options_.batch, adapters_);
    round.peak_flops = (before.*peak_ + after.*peak_) / 2;
    round.read_bytes = (before.read_bytes + after.read_bytes) / 2;
    return round;
  }

 private:
  Sequences One() { return {runner_, kv_, hidden_dim_, state_floats_, 1, blocks_per_sequence_}; }

  // Returns seconds per step.
  double Decode(int64_t count,
                const std::vector<std::shared_ptr<const engine::Adapter>>& adapters) {
    Sequences sequences(runner_, kv_, hidden_dim_, state_floats_, count, blocks_per_sequence_,
                        adapters);
    sequences.Step(16);  // short context: one stream's roof counts only weights
    double seconds = 0;
    for (int64_t s = 0; s < options_.decode_steps; ++s) seconds += sequences.Step(1);
    return seconds / static_cast<double>(options_.decode_steps);
  }

  const StepBenchOptions& options_;
  const std::vector<std::shared_ptr<const engine::Adapter>> adapters_;
  const int n_threads_;
  const double Roof::*const peak_;
  const int64_t hidden_dim_;
  const int64_t state_floats_;
  const int64_t blocks_per_sequence_;
  engine::KvCache kv_;
  engine::ModelRunner runner_;
};

void Report(std::ostream& out, const std::vector<Round>& rounds, const Cost& cost,
            const StepBenchOptions& options) {
  const auto median = [&](auto figure) {
    std::vector<double> values;
    values.reserve(rounds.size());
    for (const Round& round : rounds) values.push_back(figure(round));
    return Median(values);
  };
  const double prompt = static_cast<double>(options.prompt_tokens);
  const double flops = 2 * prompt * cost.layer_elements;
  char line[256];
  std::snprintf(
      line, sizeof line,
      "prefill %lld: %.1f tokens/s, %.0f GFLOP/s of the layers = %.1f %% of the peak\n",
      static_cast<long long>(options.prompt_tokens),
      median([&](const Round& r) { return prompt / r.prefill_seconds; }),
      median([&](const Round& r) { return flops / r.prefill_seconds / 1e9; }),
      median([&](const Round& r) { return 100 * flops / r.prefill_seconds / r.peak_flops; }));
  out << line;
  std::snprintf(
      line, sizeof line,
      "embeddings of %lld: %.3f x the speed of prefill by the last state, %.3f x by the mean\n",
      static_cast<long long>(options.prompt_tokens),
      median([](const Round& r) { return r.prefill_seconds / r.last_seconds; }),
      median([](const Round& r) { return r.prefill_seconds / r.mean_seconds; }));
  out << line;
  std::snprintf(line, sizeof line,
                "one stream: %.1f tokens/s, %.1f GB/s of weights = %.1f %% of the read loop\n",
                median([&](const Round& r) { return 1 / r.one_seconds; }),
                median([&](const Round& r) { return cost.weight_bytes / r.one_seconds / 1e9; }),
                median([&](const Round& r) {
                  return 100 * cost.weight_bytes / r.one_seconds / r.read_bytes;
                }));
  out << line;
  std::snprintf(line, sizeof line, "%lld sequences: %.1f tokens/s = %.2f x one stream\n",
                static_cast<long long>(options.batch), median([&](const Round& r) {
                  return static_cast<double>(options.batch) / r.batch_seconds;
                }),
                median([&](const Round& r) {
                  return static_cast<double>(options.batch) * r.one_seconds / r.batch_seconds;
                }));
  out << line;
  if (options.adapters == 0) return;
  std::snprintf(line, sizeof line,
                "%lld adapters of rank %lld in that batch: %.2f x the step of the base alone\n",
                static_cast<long long>(options.adapters),
                static_cast<long long>(options.adapter_rank),
                median([&](const Round& r) { return r.adapted_seconds / r.batch_seconds; }));
  out << line;
}

}  // namespace

int RunStepBench(std::ostream& out, const StepBenchOptions& options) {
  ThreadPool pool(options.threads);
  engine::OpsContext ops(engine::Kernels(), pool);
  const auto model = engine::Model::Load(
      engine::ModelDir::Open(ModelOrRandom(options.model, options.cache_dir, out)),
      {.block = options.block, .cache_dir = options.cache_dir}, ops);
  StepBench bench(model, ops, options);
  bench.Run();  // faults pages in
  std::vector<Round> rounds;
  rounds.reserve(static_cast<size_t>(options.rounds));
  for (int i = 0; i < options.rounds; ++i) rounds.push_back(bench.Run());

  char line[256];
  std::snprintf(line, sizeof line, "%s, %s, %d threads, %s; medians of %d rounds\n",
                model->config().family.c_str(), model->weights_type().c_str(), pool.n_threads(),
                std::string(ops.kernels().key).c_str(), options.rounds);
  out << line;
  Report(out, rounds, CostOf(*model), options);
  return 0;
}

}  // namespace tandem::bench
