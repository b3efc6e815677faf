#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <memory>
#include <vector>

#include "engine/base/ids.h"
#include "engine/kv/kv_cache.h"
#include "engine/kv/state_cache.h"
#include "engine/model/adapter.h"
#include "engine/model/model.h"

namespace tandem::bench {

// Sequences of equal length in consecutive blocks of a cache, stepped without a scheduler.
class Sequences {
 public:
  // Sequences use `adapters` in turn; none: the base alone. Borrows the runner and the cache.
  Sequences(engine::ModelRunner& runner, engine::KvCache& kv, int64_t hidden_dim,
            int64_t state_floats, int64_t count, int64_t blocks_per_sequence,
            const std::vector<std::shared_ptr<const engine::Adapter>>& adapters = {});

  // Computes `rows` more tokens of each sequence; returns seconds. The last row of each gets
  // logits; with `pooled` > 0, the hidden states of its last `pooled` rows are added up instead.
  double Step(int64_t rows, int64_t pooled = 0);

 private:
  engine::ModelRunner& runner_;
  engine::KvCache& kv_;
  std::vector<double> sum_;
  std::vector<std::vector<BlockId>> blocks_;
  std::vector<const engine::Adapter*> adapters_;  // by sequence
  engine::StateCache states_;
  std::vector<engine::SliceState> slice_states_;  // by sequence
  int64_t length_ = 0;
};

// Returns `model`; if empty, a directory of random weights of the Llama-3.2-1B shape below
// `cache_dir`, which is created once.
std::filesystem::path ModelOrRandom(const std::filesystem::path& model,
                                    const std::filesystem::path& cache_dir, std::ostream& out);

}  // namespace tandem::bench
