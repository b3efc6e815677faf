// The part of ParameterStore that ranks share (FSDP): units and their memory.

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/base/check.h"
#include "training/step/parameters.h"
#include "training/step/unit_schedule.h"

namespace tandem::training {
namespace {

using engine::WeightKind;
using engine::WeightSpec;

constexpr int64_t kPartAlign = 4096;  // bytes: a part of a unit's weights is made of whole pages

}  // namespace

std::string_view LayerOf(std::string_view name) {
  for (size_t from = 0; from < name.size();) {
    const size_t end = std::min(name.find('.', from), name.size());
    const std::string_view part = name.substr(from, end - from);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos) {
      return name.substr(0, end);
    }
    from = end + 1;
  }
  return {};
}

void ParameterStore::MakeUnits() {
  unit_of_.assign(specs_.size(), 0);
  if (shares_weights()) unit_of_ = UnitsOf(specs_);
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (unit_of_[i] == units_.size()) units_.push_back({.first = i});
    units_.back().last = i + 1;
  }
}

void ParameterStore::ReserveWeights() {
  std::vector<int64_t> places(specs_.size(), 0);
  int64_t end = 0;
  for (Unit& unit : units_) {
    unit.weights_begin = end;
    for (size_t i = unit.first; i < unit.last; ++i) {
      if (!trained_[i]) continue;
      const WeightSpec& spec = specs_[i];
      places[i] = end;
      const int64_t bytes = spec.kind == WeightKind::kVector
                                ? parameters_[i].elements * static_cast<int64_t>(sizeof(float))
                                : engine::PanelBytes(dtype_, spec.n, spec.k);
      end += RoundUp<int64_t>(bytes, 64);
    }
    end = unit.weights_begin + RoundUp(end - unit.weights_begin, kPartAlign * shard_.size);
    unit.weights_end = end;
  }
  paged_weights_ = PagedMemory(end);
  bytes_ += end / shard_.size;
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (!trained_[i]) continue;
    std::byte* at = paged_weights_.data() + places[i];
    if (specs_[i].kind == WeightKind::kVector) {
      weights_[i].vector = reinterpret_cast<const float*>(at);
    } else {
      weights_[i].panels = {at, dtype_, specs_[i].n, specs_[i].k};
    }
  }
}

std::span<float> ParameterStore::GradientOf(const Unit& unit) {
  return flat_gradient().subspan(static_cast<size_t>(unit.begin),
                                 static_cast<size_t>(unit.elements()));
}

std::span<float> ParameterStore::OwnGradient(const Unit& unit) {
  const int64_t part = unit.elements() / shard_.size;
  return GradientOf(unit).subspan(static_cast<size_t>(shard_.rank * part),
                                  static_cast<size_t>(part));
}

std::span<std::byte> ParameterStore::WeightsOf(const Unit& unit) {
  return {paged_weights_.data() + unit.weights_begin,
          static_cast<size_t>(unit.weights_end - unit.weights_begin)};
}

namespace {

// Drops all parts of [begin, end) but one.
void DropOthers(PagedMemory& memory, int64_t begin, int64_t end, const StateShard& shard) {
  const int64_t part = (end - begin) / shard.size;
  memory.Drop(begin, begin + shard.rank * part);
  memory.Drop(begin + (shard.rank + 1) * part, end);
}

}  // namespace

void ParameterStore::DropGradientOf(const Unit& unit) {
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  DropOthers(paged_gradient_, unit.begin * kFloat, unit.end * kFloat, shard_);
}

void ParameterStore::DropWeightsOf(const Unit& unit) {
  DropOthers(paged_weights_, unit.weights_begin, unit.weights_end, shard_);
}

std::vector<double> ParameterStore::InUnits(const std::vector<double>& blocks) const {
  std::vector<double> placed;
  size_t next = 0;
  for (const Unit& unit : units_) {
    const int64_t part = unit.elements() / shard_.size;
    const size_t end = placed.size() + static_cast<size_t>(part / kNormBlock);
    for (size_t i = unit.first; i < unit.last; ++i) {
      if (!trained_[i]) continue;
      const auto [begin, last] = OwnRange(i, shard_.rank);
      for (int64_t e = begin; e < last; e += kNormBlock) placed.push_back(blocks[next++]);
    }
    TANDEM_CHECK(placed.size() <= end);
    placed.resize(end, 0.0);
  }
  TANDEM_CHECK(next == blocks.size());
  return placed;
}

bool ParameterStore::NeedsLowHalves(const Unit& unit) const {
  for (size_t i = unit.first; i < unit.last; ++i) {
    if (trained_[i] && UsesAllBits(i)) return true;
  }
  return false;
}

int64_t ParameterStore::MasterBytesOf(const Unit& unit) const {
  const size_t width = NeedsLowHalves(unit) ? sizeof(float) : engine::DTypeBytes(dtype_);
  return unit.elements() * static_cast<int64_t>(width);
}

void ParameterStore::PackMastersOf(const Unit& unit, std::span<std::byte> all) const {
  const bool has_low = NeedsLowHalves(unit);
  const auto width = static_cast<int64_t>(has_low ? sizeof(float) : engine::DTypeBytes(dtype_));
  for (size_t i = unit.first; i < unit.last; ++i) {
    const Parameter& p = parameters_[i];
    if (!trained_[i] || p.own_elements == 0) continue;
    std::byte* to = all.data() + (p.gradient_begin + p.own_begin - unit.begin) * width;
    if (!has_low) {
      std::memcpy(to, p.master.data(), p.master.size());
      continue;
    }
    const auto* high = p.master.as<engine::Bf16>();
    const auto* low = p.low.as<int16_t>();
    for (int64_t e = 0; e < p.own_elements; ++e) {
      const float joined = JoinMaster(high[e], low[e]);
      std::memcpy(to + e * width, &joined, sizeof joined);
    }
  }
}

void ParameterStore::RepackUnit(engine::OpsContext& ops, const Unit& unit,
                                std::span<const std::byte> all) {
  const bool has_low = NeedsLowHalves(unit);
  const auto width = static_cast<int64_t>(has_low ? sizeof(float) : engine::DTypeBytes(dtype_));
  std::vector<engine::Bf16> high;
  std::vector<int16_t> low;
  for (size_t i = unit.first; i < unit.last; ++i) {
    if (!trained_[i]) continue;
    const std::byte* from = all.data() + (parameters_[i].gradient_begin - unit.begin) * width;
    if (!has_low) {
      RepackWeight(ops, i, from, nullptr);
      continue;
    }
    const auto n = static_cast<size_t>(parameters_[i].elements);
    high.resize(n);
    low.resize(n);
    for (size_t e = 0; e < n; ++e) {
      float joined = 0;
      std::memcpy(&joined, from + e * sizeof joined, sizeof joined);
      SplitMaster(joined, &high[e], &low[e]);
    }
    RepackWeight(ops, i, reinterpret_cast<const std::byte*>(high.data()), low.data());
  }
}

}  // namespace tandem::training
