#include "bench/step_bench.h"

#include <chrono>
#include <cstdio>
#include <numeric>
#include <ostream>
#include <vector>

#include "bench/gemm_bench.h"
#include "bench/paired.h"
#include "engine/base/check.h"
#include "engine/base/thread_pool.h"
#include "engine/kernels/kernels.h"
#include "engine/model/model.h"
#include "engine/model/random_model.h"

namespace tandem::bench {
namespace {

namespace fs = std::filesystem;
using engine::AttentionSlice;

double Since(std::chrono::steady_clock::time_point from) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
}

// Sequences of equal length in consecutive blocks, stepped by hand.
class Sequences {
 public:
  Sequences(engine::ModelRunner& runner, engine::KvCache& kv, int64_t count,
            int64_t blocks_per_sequence)
      : runner_(runner), kv_(kv), blocks_(static_cast<size_t>(count)) {
    uint32_t next = 0;
    for (auto& blocks : blocks_) {
      for (int64_t b = 0; b < blocks_per_sequence; ++b) blocks.push_back(BlockId{next++});
    }
  }

  // Computes `rows` more tokens of each sequence; returns the seconds it took.
  double Step(int64_t rows) {
    const int64_t n = static_cast<int64_t>(blocks_.size());
    std::vector<TokenId> tokens;
    std::vector<int32_t> positions;
    std::vector<AttentionSlice> slices;
    std::vector<int32_t> logit_rows;
    for (int64_t s = 0; s < n; ++s) {
      slices.push_back({.first_row = s * rows,
                        .n_rows = rows,
                        .first_position = length_,
                        .blocks = blocks_[static_cast<size_t>(s)]});
      for (int64_t r = 0; r < rows; ++r) {
        tokens.push_back(static_cast<TokenId>((7 * s + 31 * (length_ + r)) % 1000 + 1));
        positions.push_back(static_cast<int32_t>(length_ + r));
      }
      logit_rows.push_back(static_cast<int32_t>((s + 1) * rows - 1));
    }
    const auto from = std::chrono::steady_clock::now();
    runner_.Forward({tokens, positions, slices, logit_rows}, kv_);
    length_ += rows;
    return Since(from);
  }

 private:
  engine::ModelRunner& runner_;
  engine::KvCache& kv_;
  std::vector<std::vector<BlockId>> blocks_;
  int64_t length_ = 0;
};

struct Round {
  double peak_flops;
  double read_bytes;
  double prefill_seconds;
  double one_seconds;
  double batch_seconds;
};

}  // namespace

int RunStepBench(std::ostream& out, const StepBenchOptions& options) {
  ThreadPool pool(options.threads);
  engine::OpsContext ops(engine::Kernels(), pool);
  fs::path dir = options.model;
  if (dir.empty()) {
    TANDEM_CHECK(!options.cache_dir.empty());
    dir = options.cache_dir / "random-llama-1b";
    if (!fs::exists(dir)) {
      out << "writing a random model of the Llama-3.2-1B shape to " << dir.string() << "\n"
          << std::flush;
      fs::create_directories(options.cache_dir);
      engine::WriteRandomModel({.config = engine::Llama1BConfig()}, dir);
    }
  }
  const auto model = engine::Model::Load(
      engine::ModelDir::Open(dir), {.block = options.block, .cache_dir = options.cache_dir}, ops);
  const int64_t blocks_per_sequence =
      (options.prompt_tokens + options.decode_steps) / engine::kKvBlockTokens + 2;
  engine::KvCache kv(
      engine::ModelRunner::KvShape(*model, blocks_per_sequence * (options.batch + 1)));
  engine::ModelRunner runner(model, ops, std::max(options.prompt_tokens, options.batch * 16),
                             options.batch);

  // The head runs for one row of a prompt: its FLOPs do not count, nor do look-ups.
  double layer_elements = 0;
  double weight_bytes = 0;
  for (const engine::Weight& weight : model->weights()) {
    if (weight.spec->kind == engine::WeightKind::kVector) continue;
    const auto elements = static_cast<double>(weight.spec->n * weight.spec->k);
    const bool is_head = weight.spec->name == "lm_head.weight";
    if (weight.spec->kind == engine::WeightKind::kMatrix && !is_head) layer_elements += elements;
    // An untied embedding table is looked up, not read.
    if (weight.spec->kind == engine::WeightKind::kMatrix || model->config().tied_embeddings) {
      const engine::PanelMatrix& w = weight.panels;
      weight_bytes += static_cast<double>(w.block == engine::BlockFormat::kNone
                                              ? engine::PanelBytes(w.dtype, w.n, w.k)
                                              : engine::PanelBytes(w.block, w.n, w.k));
    }
  }

  std::vector<Round> rounds;
  for (int i = 0; i < options.rounds + 1; ++i) {
    Round round{};
    const Roof before = MeasureRoof(pool.n_threads(), 0.3);
    round.prefill_seconds =
        Sequences(runner, kv, 1, blocks_per_sequence).Step(options.prompt_tokens);
    const auto decode = [&](int64_t count) {
      Sequences sequences(runner, kv, count, blocks_per_sequence);
      sequences.Step(16);  // a short context, as one stream's roof is the weights alone
      double seconds = 0;
      for (int64_t s = 0; s < options.decode_steps; ++s) seconds += sequences.Step(1);
      return seconds / static_cast<double>(options.decode_steps);
    };
    round.one_seconds = decode(1);
    const Roof after = MeasureRoof(pool.n_threads(), 0.3);
    round.batch_seconds = decode(options.batch);
    const double Roof::*peak = model->dtype() == engine::DType::kF32         ? &Roof::f32_flops
                               : options.block == engine::BlockFormat::kNone ? &Roof::bf16_flops
                                                                             : &Roof::int8_ops;
    round.peak_flops = (before.*peak + after.*peak) / 2;
    round.read_bytes = (before.read_bytes + after.read_bytes) / 2;
    if (i > 0) rounds.push_back(round);  // the first round faults pages in
  }

  const auto median = [&](auto figure) {
    std::vector<double> values;
    values.reserve(rounds.size());
    for (const Round& round : rounds) values.push_back(figure(round));
    return Median(values);
  };
  const double prompt = static_cast<double>(options.prompt_tokens);
  const double flops = 2 * prompt * layer_elements;
  char line[256];
  std::snprintf(line, sizeof line, "%s, %s, %d threads, %s; medians of %d rounds\n",
                model->config().family.c_str(), model->weights_type().c_str(), pool.n_threads(),
                std::string(ops.kernels().key).c_str(), options.rounds);
  out << line;
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
      "one stream: %.1f tokens/s, %.1f GB/s of weights = %.1f %% of the read loop\n",
      median([&](const Round& r) { return 1 / r.one_seconds; }),
      median([&](const Round& r) { return weight_bytes / r.one_seconds / 1e9; }),
      median([&](const Round& r) { return 100 * weight_bytes / r.one_seconds / r.read_bytes; }));
  out << line;
  std::snprintf(line, sizeof line, "%lld sequences: %.1f tokens/s = %.2f x one stream\n",
                static_cast<long long>(options.batch), median([&](const Round& r) {
                  return static_cast<double>(options.batch) / r.batch_seconds;
                }),
                median([&](const Round& r) {
                  return static_cast<double>(options.batch) * r.one_seconds / r.batch_seconds;
                }));
  out << line;
  return 0;
}

}  // namespace tandem::bench
