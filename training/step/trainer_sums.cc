// Sums of gradients, results and norms over the ranks of a run.
#include <algorithm>
#include <array>
#include <cmath>

#include "training/step/trainer.h"

namespace tandem::training {

void Trainer::SumOverRanks(size_t n_batches) {
  const TraceSpan span(trace_, Trace::Lane::kCompute, "sum over ranks");
  if (sharded_) {
    if (options_.tree_sums && n_batches > 1) sharded_->SumReplicas();
  } else if (overlaps(n_batches)) {
    options_.ranks->Wait();
  } else if (is_sharded()) {
    options_.ranks->ReduceScatter(parameters_.flat_gradient(), kRows);
  } else {
    options_.ranks->AllReduce(parameters_.flat_gradient(), kRows);
  }
}

void Trainer::SumOverTensor() {
  const TraceSpan span(trace_, Trace::Lane::kCompute, "sum over ranks");
  const TensorSplit& tensor = parameters_.tensor();
  // Calls work(gradient, elements) for this rank's part of each such weight.
  const auto each = [&](const auto& work) {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (!tensor.weights[i].sums_gradient || !parameters_.trained()[i]) continue;
      const auto [begin, end] = parameters_.OwnRange(i, parameters_.shard().rank);
      work(parameters_.gradients()[i] + begin, static_cast<size_t>(end - begin));
    }
  };
  // Large gradients are added where they are, all others together.
  constexpr size_t kLarge = size_t{1} << 16;  // elements
  constexpr auto kGroup = Collectives::Group::kTensor;
  std::vector<float> sums;
  each([&](float* part, size_t n) {
    if (n >= kLarge) return options_.ranks->AllReduce({part, n}, kGroup);
    sums.insert(sums.end(), part, part + n);
  });
  if (sums.empty()) return;
  options_.ranks->AllReduce(sums, kGroup);
  size_t next = 0;
  each([&](float* part, size_t n) {
    if (n >= kLarge) return;
    std::copy_n(sums.begin() + static_cast<int64_t>(next), n, part);
    next += n;
  });
}

// Ranks that share parameters have neighbouring micro-batches (NextBatches of run_parts.h).
std::vector<double> Trainer::InRowOrder(std::vector<double> by_rank, size_t width) const {
  if (!sharded_) return by_rank;
  const auto fsdp = static_cast<size_t>(parameters_.shard().size);
  const auto ranks = static_cast<size_t>(options_.ranks->size_of(kRows));
  const size_t own = by_rank.size() / width / ranks;
  std::vector<double> in_order(by_rank.size());
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (size_t i = 0; i < own; ++i) {
      const size_t to = (rank / fsdp * own + i) * fsdp + rank % fsdp;
      std::copy_n(by_rank.begin() + static_cast<int64_t>((rank * own + i) * width), width,
                  in_order.begin() + static_cast<int64_t>(to * width));
    }
  }
  return in_order;
}

// Sums of squares: of the weights that all ranks of the tensor axis have, which count once, and of
// their parts of the others.
double Trainer::SplitGradientNorm() {
  std::array<double, 2> sums = {0, 0};
  const std::vector<double> blocks = SquaredBlocks(ops_, parameters_.states());
  size_t block = 0;
  for (size_t s = 0; s < parameters_.states().size(); ++s) {
    const WeightSplit& split = parameters_.tensor().weights[parameters_.weight_of_state(s)];
    const int64_t end = (parameters_.states()[s].elements + kNormBlock - 1) / kNormBlock;
    for (int64_t b = 0; b < end; ++b) {
      sums[split.axis == WeightSplit::Axis::kWhole ? 0 : 1] += blocks[block++];
    }
  }
  const auto add = [&](size_t first, Collectives::Group group) {
    const std::vector<double> all =
        options_.ranks->AllGather(std::span<const double>(sums).subspan(first), group);
    const size_t width = sums.size() - first;
    for (size_t i = first; i < sums.size(); ++i) {
      sums[i] = 0;
      for (size_t at = i - first; at < all.size(); at += width) sums[i] += all[at];
    }
  };
  if (is_sharded()) add(0, sharded_ ? Collectives::Group::kFsdp : kRows);
  add(1, Collectives::Group::kTensor);
  return std::sqrt(sums[0] + sums[1]);
}

double Trainer::GradientNorm() {
  if (is_split()) return SplitGradientNorm();
  if (!is_sharded()) return GlobalNorm(ops_, parameters_.states());
  // Every block lies in one part, so its sum has the bits of a run without shards.
  const std::vector<double> mine = parameters_.InUnits(SquaredBlocks(ops_, parameters_.states()));
  const auto group = sharded_ ? Collectives::Group::kFsdp : Collectives::Group::kAll;
  const std::vector<double> all = options_.ranks->AllGather(mine, group);
  double total = 0;
  size_t first = 0;  // block of the unit in every rank's part
  for (const ParameterStore::Unit& unit : parameters_.units()) {
    const auto blocks =
        static_cast<size_t>(unit.elements() / parameters_.shard().size / kNormBlock);
    for (size_t rank = 0; rank * mine.size() < all.size(); ++rank) {
      for (size_t b = 0; b < blocks; ++b) total += all[rank * mine.size() + first + b];
    }
    first += blocks;
  }
  return std::sqrt(total);
}

void Trainer::GatherMasters() {
  constexpr int64_t kAtOnce = int64_t{1} << 20;
  const TraceSpan span(trace_, Trace::Lane::kCompute, "gather masters");
  const int64_t part = parameters_.shard_elements();
  const auto& shard = parameters_.shard();
  std::vector<uint32_t> mine;
  std::vector<uint32_t> all;
  for (int64_t at = 0; at < part; at += kAtOnce) {
    const auto n = static_cast<size_t>(std::min(kAtOnce, part - at));
    mine.resize(n);
    all.resize(n * static_cast<size_t>(shard.size));
    parameters_.PackMasters(shard.rank * part + at, mine);
    options_.ranks->AllGather(std::as_bytes(std::span(mine)),
                              std::as_writable_bytes(std::span(all)), kRows);
    for (int rank = 0; rank < shard.size; ++rank) {
      if (rank == shard.rank) continue;
      parameters_.UnpackMasters(rank * part + at,
                                std::span(all).subspan(static_cast<size_t>(rank) * n, n));
    }
  }
}

}  // namespace tandem::training
