#include "training/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "training/data/permutation.h"

namespace tandem::training {
namespace {

// One draw among the top k at a temperature; 0 takes the best.
TokenId Draw(std::span<const float> logits, const SampleSection& options, uint64_t counter) {
  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto better = [&](TokenId a, TokenId b) {
    const float la = logits[static_cast<size_t>(a)];
    const float lb = logits[static_cast<size_t>(b)];
    return la != lb ? la > lb : a < b;
  };
  if (options.temperature < 1e-5) return *std::min_element(ids.begin(), ids.end(), better);

  const size_t k =
      options.top_k > 0 ? std::min(ids.size(), static_cast<size_t>(options.top_k)) : ids.size();
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(k), ids.end(), better);
  std::vector<double> cumulative(k);
  double sum = 0;
  const double best = logits[static_cast<size_t>(ids[0])];
  for (size_t i = 0; i < k; ++i) {
    sum += std::exp((logits[static_cast<size_t>(ids[i])] - best) / options.temperature);
    cumulative[i] = sum;
  }
  const double u = static_cast<double>(HashCounter(options.seed, counter) >> 11) * 0x1p-53 * sum;
  const auto at = std::upper_bound(cumulative.begin(), cumulative.end(), u) - cumulative.begin();
  return ids[std::min(static_cast<size_t>(at), k - 1)];
}

}  // namespace

std::vector<TokenId> Generate(const std::shared_ptr<const engine::Model>& model,
                              engine::OpsContext& ops, const std::vector<TokenId>& prompt,
                              const SampleSection& options, const engine::Adapter* adapter) {
  const engine::ModelConfig& config = model->config();
  const auto prompt_length = static_cast<int64_t>(prompt.size());
  const int64_t length = std::min(config.max_context_len, prompt_length + options.max_tokens);
  if (prompt.empty() || length <= prompt_length) return {};

  const int64_t n_blocks = (length + engine::kKvBlockTokens - 1) / engine::kKvBlockTokens;
  engine::KvCache kv(engine::ModelRunner::KvShape(*model, n_blocks));
  engine::ModelRunner runner(model, ops, prompt_length, 1);
  std::vector<BlockId> blocks;
  for (int64_t b = 0; b < n_blocks; ++b) blocks.push_back(BlockId{static_cast<uint32_t>(b)});

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
    const engine::BatchView batch{tokens, positions, slices, logit_rows, {&adapter, 1}};
    const TokenId next =
        Draw(runner.Forward(batch, kv), options, static_cast<uint64_t>(position + n));
    position += n;
    const auto& eos = config.eos_tokens;
    if (std::find(eos.begin(), eos.end(), next) != eos.end()) break;
    generated.push_back(next);
    tokens = {next};
  }
  return generated;
}

}  // namespace tandem::training
