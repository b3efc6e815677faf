#include "training/run/sample.h"

#include <algorithm>
#include <numeric>

#include "engine/kv/state_cache.h"
#include "engine/sampling/sampler.h"

namespace tandem::training {
engine::SamplingParams SamplingOf(const SampleSection& section) {
  using Strategy = SampleStrategy;
  const Strategy strategy = section.strategy;
  engine::SamplingParams params;
  params.seed = section.seed;
  params.temperature = strategy == Strategy::kGreedy ? 0 : static_cast<float>(section.temperature);
  if (strategy == Strategy::kComposite || strategy == Strategy::kTopK) {
    params.top_k = static_cast<int32_t>(section.top_k);
  }
  if (strategy == Strategy::kComposite || strategy == Strategy::kNucleus) {
    params.top_p = static_cast<float>(section.top_p);
  }
  return params;
}

std::vector<TokenId> Generate(const std::shared_ptr<const engine::Model>& model,
                              engine::OpsContext& ops, const std::vector<TokenId>& prompt,
                              const SampleSection& options, const engine::Adapter* adapter) {
  const engine::ModelConfig& config = model->config();
  const auto prompt_length = static_cast<int64_t>(prompt.size());
  const int64_t length = std::min(config.max_context_len, prompt_length + options.max_tokens);
  if (prompt.empty() || length <= prompt_length) return {};

  const int64_t n_blocks = (length + engine::kTokensPerBlock - 1) / engine::kTokensPerBlock;
  engine::KvCache kv(engine::ModelRunner::KvShape(*model, n_blocks));
  engine::StateCache states(engine::ModelRunner::StateFloats(*model), 1);
  const engine::SliceState state{.state = states.At({})};
  engine::ModelRunner runner(model, ops, prompt_length, 1);
  std::vector<BlockId> blocks;
  for (int64_t b = 0; b < n_blocks; ++b) blocks.push_back(BlockId{static_cast<uint32_t>(b)});

  const engine::Sampler sampler(SamplingOf(options), 0, prompt);
  engine::SamplerScratch scratch;
  std::vector<TokenId> generated;
  std::vector<TokenId> tokens = prompt;
  int64_t position = 0;
  while (position + static_cast<int64_t>(tokens.size()) <= length) {
    const auto n = static_cast<int64_t>(tokens.size());
    std::vector<int32_t> positions(tokens.size());
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(position));
    const std::vector<engine::AttentionSlice> slices = {
        {.first_row = 0, .n_rows = n, .first_position = position, .blocks = blocks}};
    const std::vector<int32_t> logit_rows = {static_cast<int32_t>(n - 1)};
    const engine::BatchView batch{tokens,        positions, slices,     logit_rows,
                                  {&adapter, 1}, {},        {&state, 1}};
    position += n;
    const TokenId next = sampler.Sample(runner.Forward(batch, kv), position, {}, scratch);
    if (next < 0) break;  // every logit is NaN
    const auto& eos = config.eos_tokens;
    if (std::find(eos.begin(), eos.end(), next) != eos.end()) break;
    generated.push_back(next);
    tokens = {next};
  }
  return generated;
}

}  // namespace tandem::training
