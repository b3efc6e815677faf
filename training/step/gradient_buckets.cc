#include "training/step/gradient_buckets.h"

#include <algorithm>

#include "engine/base/check.h"

namespace tandem::training {

std::vector<GradientBucket> MakeGradientBuckets(const Program& program,
                                                const ParameterStore& parameters,
                                                int64_t flat_elements, int64_t bytes) {
  const size_t n_all = program.weight_specs.size();
  TANDEM_CHECK(parameters.size() <= n_all);
  const size_t first = n_all - parameters.size();
  // By weight of the program: steps after which its gradient is final. The head runs before them.
  std::vector<size_t> ready(n_all, 0);
  for (size_t s = 0; s < program.backward.size(); ++s) {
    const Node& node = program.nodes[static_cast<size_t>(program.backward[s].node)];
    std::vector<int32_t> weights = node.weights;
    weights.insert(weights.end(), {node.lora.a, node.lora.b});
    for (const LoraNode& lora : node.experts.lora) weights.insert(weights.end(), {lora.a, lora.b});
    for (const int32_t weight : weights) {
      if (weight >= 0) ready[static_cast<size_t>(weight)] = s + 1;
    }
  }
  std::vector<GradientBucket> buckets;
  GradientBucket open;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto [begin, end] = parameters.FlatRange(i);
    if (begin == end) continue;
    open.end = end;
    open.ready = std::max(open.ready, ready[first + i]);
    if ((open.end - open.begin) * static_cast<int64_t>(sizeof(float)) < bytes) continue;
    buckets.push_back(open);
    open = {end, end, 0};
  }
  if (open.begin < open.end) buckets.push_back(open);
  TANDEM_CHECK(buckets.empty() || buckets.back().end <= flat_elements);
  std::stable_sort(buckets.begin(), buckets.end(),
                   [](const auto& a, const auto& b) { return a.ready < b.ready; });
  return buckets;
}

}  // namespace tandem::training
