#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/model/families/family.h"
#include "training/program/program.h"

namespace tandem::training {

// When the units of a model whose parameters ranks share (ParameterStore::Unit) are used. Plain
// data, which depends on its arguments alone.

// Units whose weights are present beside those in use: the present and the next one.
inline constexpr size_t kKeptUnits = 2;
// Units whose gradients are whole while they are summed.
inline constexpr size_t kMostSums = 2;

// The unit of each weight: consecutive weights of a layer, or between layers.
std::vector<size_t> UnitsOf(const std::vector<engine::WeightSpec>& specs);

// Most bytes that the units of a run take at once while all ranks' parts are present.
struct UnitNeeds {
  int64_t weights = 0;    // of the program
  int64_t gradients = 0;  // f32

  int64_t bytes() const { return weights + gradients; }
};
UnitNeeds UnitNeedsOf(const std::vector<engine::WeightSpec>& specs,
                      const std::vector<bool>& trained, engine::DType dtype);

// Positions count the program's nodes, and then its backward steps.
struct UnitSchedule {
  struct Sum {
    size_t unit = 0;
    size_t ready = 0;  // backward steps after which the unit's gradient is final
  };
  std::vector<std::vector<size_t>> uses;  // by position: units that it uses
  // By position, and one past the last: units that the positions from it on use next.
  std::vector<std::vector<size_t>> next_training;
  std::vector<std::vector<size_t>> next_forward;  // without a backward pass
  std::vector<Sum> sums;                          // in their order
};

// `unit_of` and `trained` are by weight of the parameters, the last weights of the program.
UnitSchedule MakeUnitSchedule(const Program& program, const std::vector<size_t>& unit_of,
                              const std::vector<bool>& trained);

void AddOnce(size_t unit, std::vector<size_t>* units);

}  // namespace tandem::training
