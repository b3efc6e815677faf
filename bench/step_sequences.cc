#include "bench/step_sequences.h"

#include <chrono>
#include <ostream>

#include "bench/models/random_model.h"
#include "bench/step_bench.h"
#include "engine/base/check.h"

namespace tandem::bench {

namespace fs = std::filesystem;
using engine::AttentionSlice;

Sequences::Sequences(engine::ModelRunner& runner, engine::KvCache& kv, int64_t hidden_dim,
                     int64_t state_floats, int64_t count, int64_t blocks_per_sequence,
                     const std::vector<std::shared_ptr<const engine::Adapter>>& adapters)
    : runner_(runner),
      kv_(kv),
      sum_(static_cast<size_t>(hidden_dim)),
      blocks_(static_cast<size_t>(count)),
      states_(state_floats, count) {
  for (uint32_t s = 0; s < count; ++s) slice_states_.push_back({.state = states_.At({s})});
  for (size_t s = 0; s < blocks_.size() && !adapters.empty(); ++s) {
    adapters_.push_back(adapters[s * adapters.size() / blocks_.size()].get());
  }
  uint32_t next = 0;
  for (auto& blocks : blocks_) {
    for (int64_t b = 0; b < blocks_per_sequence; ++b) blocks.push_back(BlockId{next++});
  }
}

double Sequences::Step(int64_t rows, int64_t pooled) {
  const int64_t n = static_cast<int64_t>(blocks_.size());
  std::vector<TokenId> tokens;
  std::vector<int32_t> positions;
  std::vector<AttentionSlice> slices;
  std::vector<int32_t> logit_rows;
  std::vector<engine::HiddenSum> sums;
  for (int64_t s = 0; s < n; ++s) {
    slices.push_back({.first_row = s * rows,
                      .n_rows = rows,
                      .first_position = length_,
                      .blocks = blocks_[static_cast<size_t>(s)]});
    for (int64_t r = 0; r < rows; ++r) {
      tokens.push_back(static_cast<TokenId>((7 * s + 31 * (length_ + r)) % 1000 + 1));
      positions.push_back(static_cast<int32_t>(length_ + r));
    }
    if (pooled > 0) {
      sums.push_back({.first_row = (s + 1) * rows - pooled, .n_rows = pooled, .sum = sum_});
    } else {
      logit_rows.push_back(static_cast<int32_t>((s + 1) * rows - 1));
    }
  }
  const auto from = std::chrono::steady_clock::now();
  runner_.Forward({.tokens = tokens,
                   .positions = positions,
                   .slices = slices,
                   .logit_rows = logit_rows,
                   .adapters = adapters_,
                   .hidden_sums = sums,
                   .states = slice_states_},
                  kv_);
  length_ += rows;
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
}

fs::path ModelOrRandom(const fs::path& model, const fs::path& cache_dir, std::ostream& out) {
  if (!model.empty()) return model;
  TANDEM_CHECK(!cache_dir.empty());
  fs::path dir = cache_dir / "random-llama-1b";
  if (!fs::exists(dir)) {
    out << "writing a random model of the " << StepBenchOptions::kRandomShape << " shape to "
        << dir.string() << "\n"
        << std::flush;
    fs::create_directories(cache_dir);
    WriteRandomModel({.config = Llama1BConfig()}, dir);
  }
  return dir;
}

}  // namespace tandem::bench
