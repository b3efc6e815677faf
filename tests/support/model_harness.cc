#include "tests/support/model_harness.h"

#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <system_error>

#include "engine/base/check.h"

namespace tandem::tests {

using engine::kTokensPerBlock;

ModelHarness::ModelHarness(const std::filesystem::path& model_dir, const Options& options)
    : pool_(options.n_threads),
      ops_(options.kernels != nullptr ? *options.kernels : engine::Kernels(), pool_),
      model_(engine::Model::Load(
          engine::ModelDir::Open(model_dir),
          {.dtype = options.dtype, .block = options.block, .cache_dir = options.cache_dir}, ops_)),
      kv_(engine::ModelRunner::KvShape(*model_, options.n_blocks)),
      state_floats_(engine::ModelRunner::StateFloats(*model_)),
      blocks_(options.n_blocks),
      runner_(model_, ops_, options.max_rows, options.max_rows) {}

std::shared_ptr<const engine::Adapter> ModelHarness::LoadAdapter(const std::filesystem::path& dir) {
  return engine::Adapter::Load(engine::LoraAdapter::Open(dir), model_, ops_);
}

std::vector<float> ModelHarness::Step(std::vector<Part> parts, Rows rows) {
  std::vector<TokenId> tokens;
  std::vector<int32_t> positions, logit_rows;
  std::vector<engine::AttentionSlice> slices;
  std::vector<const engine::Adapter*> adapters;
  std::vector<engine::SliceState> states;
  for (const Part& part : parts) {
    Sequence& sequence = *part.sequence;
    const auto n_rows = static_cast<int64_t>(part.tokens.size());
    while (static_cast<int64_t>(sequence.blocks.size()) * kTokensPerBlock <
           sequence.length + n_rows) {
      const auto allocation = blocks_.TryAllocate();
      TANDEM_CHECK(allocation.has_value());
      sequence.blocks.push_back(allocation->block);
    }
    adapters.push_back(sequence.adapter);
    // A fresh state is not zero: the first slice must not read it.
    if (sequence.length == 0) sequence.state.assign(static_cast<size_t>(state_floats_), NAN);
    states.push_back({.state = sequence.state.data()});
    slices.push_back({.first_row = static_cast<int64_t>(tokens.size()),
                      .n_rows = n_rows,
                      .first_position = sequence.length,
                      .blocks = sequence.blocks});
    for (int64_t i = 0; i < n_rows; ++i) {
      if (rows == Rows::kAll || i + 1 == n_rows) {
        logit_rows.push_back(static_cast<int32_t>(tokens.size()));
      }
      tokens.push_back(part.tokens[static_cast<size_t>(i)]);
      positions.push_back(static_cast<int32_t>(sequence.length + i));
    }
    sequence.length += n_rows;
  }
  const std::span<const float> logits = runner_.Forward({.tokens = tokens,
                                                         .positions = positions,
                                                         .slices = slices,
                                                         .logit_rows = logit_rows,
                                                         .adapters = adapters,
                                                         .states = states},
                                                        kv_);
  return {logits.begin(), logits.end()};
}

void ModelHarness::Drop(Sequence& sequence) {
  // Releases forwards, so that the next sequence gets its blocks in falling order. The code must
  // not rely on neighbouring blocks being adjacent in memory.
  for (const BlockId block : sequence.blocks) blocks_.Release(block);
  sequence = {};
}

std::vector<float> ModelHarness::Prefill(const std::vector<TokenId>& tokens, size_t chunk) {
  Sequence sequence{.adapter = adapter_.get()};
  std::vector<float> logits;
  const size_t step = chunk == 0 ? tokens.size() : chunk;
  for (size_t at = 0; at < tokens.size(); at += step) {
    const auto first = tokens.begin() + static_cast<ptrdiff_t>(at);
    const auto last = tokens.begin() + static_cast<ptrdiff_t>(std::min(at + step, tokens.size()));
    const std::vector<float> part = Step({{&sequence, {first, last}}}, Rows::kAll);
    logits.insert(logits.end(), part.begin(), part.end());
  }
  Drop(sequence);
  return logits;
}

std::vector<std::vector<TokenId>> ModelHarness::Greedy(
    const std::vector<std::vector<TokenId>>& prompts, size_t n_tokens, size_t chunk) {
  const auto vocab = static_cast<size_t>(vocab_size());
  std::vector<Sequence> sequences(prompts.size(), Sequence{.adapter = adapter_.get()});
  std::vector<std::vector<TokenId>> waiting = prompts;  // not computed yet
  std::vector<std::vector<TokenId>> out(prompts.size());
  for (;;) {
    std::vector<Part> parts;
    std::vector<size_t> who;
    for (size_t i = 0; i < prompts.size(); ++i) {
      if (out[i].size() == n_tokens) continue;
      const size_t n = chunk == 0 ? waiting[i].size() : std::min(chunk, waiting[i].size());
      const auto middle = waiting[i].begin() + static_cast<ptrdiff_t>(n);
      parts.push_back({&sequences[i], {waiting[i].begin(), middle}});
      waiting[i].erase(waiting[i].begin(), middle);
      who.push_back(i);
    }
    if (parts.empty()) break;
    const std::vector<float> logits = Step(parts, Rows::kLastOfEach);
    for (size_t k = 0; k < who.size(); ++k) {
      if (!waiting[who[k]].empty()) continue;
      const TokenId next = ArgMax(std::span(logits).subspan(k * vocab, vocab));
      out[who[k]].push_back(next);
      waiting[who[k]] = {next};
    }
  }
  for (Sequence& sequence : sequences) Drop(sequence);
  return out;
}

TokenId ArgMax(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace tandem::tests
