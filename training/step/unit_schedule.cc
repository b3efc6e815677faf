#include "training/step/unit_schedule.h"

#include <algorithm>
#include <numeric>

#include "training/step/gradient_buckets.h"
#include "training/step/parameters.h"

namespace tandem::training {

void AddOnce(size_t unit, std::vector<size_t>* units) {
  if (std::find(units->begin(), units->end(), unit) == units->end()) units->push_back(unit);
}

namespace {

// The backward pass of an embedding reads no weight but B of its adapter.
bool ReadsWeights(const Node& node, bool backward) {
  return !backward || node.lora.a >= 0 ||
         (node.op != OpKind::kEmbed && node.op != OpKind::kEmbedPositions);
}

// By position, and one past the last: the first kKeptUnits units that positions from it on use.
std::vector<std::vector<size_t>> NextUnits(const std::vector<std::vector<size_t>>& uses,
                                           size_t end) {
  std::vector<std::vector<size_t>> next(end + 1);
  for (size_t p = end; p-- > 0;) {
    next[p] = uses[p];
    for (const size_t unit : next[p + 1]) {
      if (next[p].size() < kKeptUnits) AddOnce(unit, &next[p]);
    }
  }
  return next;
}

}  // namespace

std::vector<size_t> UnitsOf(const std::vector<engine::WeightSpec>& specs) {
  std::vector<size_t> units(specs.size(), 0);
  for (size_t i = 1; i < specs.size(); ++i) {
    units[i] = units[i - 1] + (LayerOf(specs[i].name) != LayerOf(specs[i - 1].name) ? 1 : 0);
  }
  return units;
}

UnitNeeds UnitNeedsOf(const std::vector<engine::WeightSpec>& specs,
                      const std::vector<bool>& trained, engine::DType dtype) {
  const std::vector<size_t> unit_of = UnitsOf(specs);
  const size_t n_units = unit_of.empty() ? 0 : unit_of.back() + 1;
  std::vector<int64_t> weights(n_units, 0);
  std::vector<int64_t> gradients(n_units, 0);
  for (size_t i = 0; i < specs.size(); ++i) {
    if (!trained[i]) continue;
    const int64_t floats = specs[i].n * specs[i].k * static_cast<int64_t>(sizeof(float));
    gradients[unit_of[i]] += floats;
    weights[unit_of[i]] += specs[i].kind == engine::WeightKind::kVector
                               ? floats
                               : engine::PanelBytes(dtype, specs[i].n, specs[i].k);
  }
  const auto largest = [](std::vector<int64_t> bytes, size_t n) {
    std::sort(bytes.rbegin(), bytes.rend());
    const auto end = bytes.begin() + static_cast<ptrdiff_t>(std::min(bytes.size(), n));
    return std::accumulate(bytes.begin(), end, int64_t{0});
  };
  return {largest(weights, kKeptUnits), largest(gradients, kMostSums + 1)};
}

UnitSchedule MakeUnitSchedule(const Program& program, const std::vector<size_t>& unit_of,
                              const std::vector<bool>& trained) {
  UnitSchedule schedule;
  const size_t first = program.weight_specs.size() - unit_of.size();
  const std::vector<size_t> final_steps = FinalSteps(program, unit_of.size());
  for (size_t i = 0; i < unit_of.size(); ++i) {
    if (!trained[i]) continue;
    if (schedule.sums.empty() || schedule.sums.back().unit != unit_of[i]) {
      schedule.sums.push_back({unit_of[i], 0});
    }
    schedule.sums.back().ready = std::max(schedule.sums.back().ready, final_steps[i]);
  }
  std::stable_sort(schedule.sums.begin(), schedule.sums.end(),
                   [](const auto& a, const auto& b) { return a.ready < b.ready; });

  const size_t n_nodes = program.nodes.size();
  schedule.uses.resize(n_nodes + program.backward.size());
  const auto add = [&](const Node& node, bool backward, std::vector<size_t>* units) {
    if (!ReadsWeights(node, backward)) return;
    for (const int32_t weight : WeightsOf(node)) {
      const auto w = static_cast<size_t>(weight);
      if (w >= first && trained[w - first]) AddOnce(unit_of[w - first], units);
    }
  };
  for (size_t n = 0; n < n_nodes; ++n) add(program.nodes[n], false, &schedule.uses[n]);
  for (size_t s = 0; s < program.backward.size(); ++s) {
    const BackwardStep& step = program.backward[s];
    add(program.nodes[static_cast<size_t>(step.node)], !step.remake, &schedule.uses[n_nodes + s]);
  }
  schedule.next_training = NextUnits(schedule.uses, schedule.uses.size());
  schedule.next_forward = NextUnits(schedule.uses, n_nodes);
  return schedule;
}

}  // namespace tandem::training
