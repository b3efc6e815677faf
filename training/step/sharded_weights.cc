#include "training/step/sharded_weights.h"

#include <algorithm>
#include <span>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/check.h"

namespace tandem::training {
namespace {

constexpr auto kFsdp = Collectives::Group::kFsdp;
constexpr auto kReplicas = Collectives::Group::kData;

}  // namespace

ShardedWeights::ShardedWeights(const Program& program, ParameterStore& parameters,
                               Collectives& ranks, bool overlap)
    : parameters_(parameters),
      ranks_(ranks),
      overlap_(overlap),
      n_nodes_(program.nodes.size()),
      schedule_(MakeUnitSchedule(program, UnitsOf(parameters.specs()), parameters.trained())),
      live_(parameters.units().size()) {}

void ShardedWeights::Gather(size_t unit) {
  if (live_[unit].is_live) return;
  live_[unit] = {true,
                 ranks_.StartFillFromAll(parameters_.WeightsOf(parameters_.units()[unit]), kFsdp)};
}

void ShardedWeights::Drop(size_t unit) {
  if (!live_[unit].is_live) return;
  ranks_.WaitFor(live_[unit].ticket);
  parameters_.DropWeightsOf(parameters_.units()[unit]);
  live_[unit].is_live = false;
}

void ShardedWeights::Begin(bool training) {
  training_ = training;
  next_sum_ = 0;
}

void ShardedWeights::Before(size_t first, size_t end) {
  std::vector<size_t> needed;
  for (size_t p = first; p < end; ++p) {
    for (const size_t unit : schedule_.uses[p]) AddOnce(unit, &needed);
  }
  for (const size_t unit : needed) Gather(unit);
  if (overlap_) {
    for (const size_t unit : NextAt(end)) Gather(unit);
  }
  if (needed.empty()) return;
  const TraceSpan span(trace_, Trace::Lane::kCompute, "wait for weights");
  for (const size_t unit : needed) ranks_.WaitFor(live_[unit].ticket);
}

void ShardedWeights::After(size_t first, size_t end) {
  const std::vector<size_t>& next = NextAt(end);
  for (size_t p = first; p < end; ++p) {
    for (const size_t unit : schedule_.uses[p]) {
      if (std::find(next.begin(), next.end(), unit) == next.end()) Drop(unit);
    }
  }
  // The head may run twice, so its gradient is summed after the first step.
  if (training_ && end > n_nodes_) SumGradients(end - n_nodes_);
}

void ShardedWeights::SumGradients(size_t backward_steps) {
  for (; next_sum_ < schedule_.sums.size() && schedule_.sums[next_sum_].ready <= backward_steps;
       ++next_sum_) {
    const ParameterStore::Unit& unit = parameters_.units()[schedule_.sums[next_sum_].unit];
    summing_.push_back(ranks_.StartReduceScatter(
        parameters_.GradientOf(unit), kFsdp, [this, &unit] { parameters_.DropGradientOf(unit); }));
    if (sums_replicas_) ranks_.StartAllReduce(parameters_.OwnGradient(unit), kReplicas);
  }
  const size_t most = overlap_ ? kMostSums : 0;
  if (summing_.size() <= most) return;
  const TraceSpan span(trace_, Trace::Lane::kCompute, "sum over ranks");
  for (; summing_.size() > most; summing_.pop_front()) ranks_.WaitFor(summing_.front());
}

void ShardedWeights::End() {
  if (training_) SumGradients(schedule_.uses.size());
  const TraceSpan span(trace_, Trace::Lane::kCompute, "sum over ranks");
  ranks_.Wait();
  summing_.clear();
  for (size_t unit = 0; unit < live_.size(); ++unit) Drop(unit);
}

void ShardedWeights::SumReplicas() {
  for (const ParameterStore::Unit& unit : parameters_.units()) {
    if (unit.elements() > 0) ranks_.StartAllReduce(parameters_.OwnGradient(unit), kReplicas);
  }
  ranks_.Wait();
}

void ShardedWeights::Repack(engine::OpsContext& ops,
                            const std::function<void(const ParameterStore::Unit&)>& built) {
  parameters_.Repack(ops);
  std::vector<const ParameterStore::Unit*> units;
  for (const ParameterStore::Unit& unit : parameters_.units()) {
    if (unit.elements() > 0) units.push_back(&unit);
  }
  // Masters of a unit on their way. Memory that an operation fills keeps its address when moved.
  struct Gathering {
    PagedMemory masters;
    Collectives::Ticket ticket = 0;

    std::span<std::byte> all() const {
      return {masters.data(), static_cast<size_t>(masters.size())};
    }
  };
  const auto start = [&](size_t i) {
    Gathering one;
    if (i >= units.size()) return one;
    one.masters = PagedMemory(parameters_.MasterBytesOf(*units[i]));
    parameters_.PackMastersOf(*units[i], one.all());
    one.ticket = ranks_.StartFillFromAll(one.all(), kFsdp);
    return one;
  };
  Gathering now;
  Gathering next;
  const auto repack_all = [&] {
    next = start(0);
    for (size_t i = 0; i < units.size(); ++i) {
      now = std::exchange(next, {});
      if (overlap_) next = start(i + 1);
      {
        const TraceSpan span(trace_, Trace::Lane::kCompute, "gather masters");
        ranks_.WaitFor(now.ticket);
      }
      parameters_.RepackUnit(ops, *units[i], now.all());
      built(*units[i]);
      parameters_.DropWeightsOf(*units[i]);
      if (!overlap_) next = start(i + 1);
    }
  };
  UndoOnFailure(repack_all, [this] { ranks_.Abandon(); });  // before the masters' memory goes
}

}  // namespace tandem::training
