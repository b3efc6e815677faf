#include "training/step/gradient_buckets.h"

#include <algorithm>

#include "engine/base/check.h"

namespace tandem::training {

std::vector<int32_t> WeightsOf(const Node& node) {
  std::vector<int32_t> weights = node.weights;
  const auto add = [&weights](const LoraNode& lora) {
    if (lora.a >= 0) weights.insert(weights.end(), {lora.a, lora.b});
    if (lora.magnitude >= 0) weights.push_back(lora.magnitude);
  };
  add(node.lora);
  for (const LoraNode& lora : node.experts.lora) add(lora);
  return weights;
}

std::vector<size_t> FinalSteps(const Program& program, size_t parameters) {
  TANDEM_CHECK(parameters <= program.weight_specs.size());
  const size_t first = program.weight_specs.size() - parameters;
  std::vector<size_t> steps(parameters, 0);  // the head runs before all steps
  for (size_t s = 0; s < program.backward.size(); ++s) {
    const Node& node = program.nodes[static_cast<size_t>(program.backward[s].node)];
    for (const int32_t weight : WeightsOf(node)) {
      if (static_cast<size_t>(weight) >= first) steps[static_cast<size_t>(weight) - first] = s + 1;
    }
  }
  return steps;
}

std::vector<GradientBucket> MakeGradientBuckets(const Program& program,
                                                const ParameterStore& parameters,
                                                int64_t flat_elements, int64_t bytes) {
  const std::vector<size_t> ready = FinalSteps(program, parameters.size());
  std::vector<GradientBucket> buckets;
  GradientBucket open;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto [begin, end] = parameters.FlatRange(i);
    if (begin == end) continue;
    open.end = end;
    open.ready = std::max(open.ready, ready[i]);
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
