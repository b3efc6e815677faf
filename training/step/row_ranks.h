#pragma once

#include <vector>

#include "training/dist/collectives.h"

namespace tandem::training {

// Ranks with the same part of the matrices: each has rows of its own.
inline constexpr auto kRowRanks = Collectives::Group::kRows;

// The numbers of all row ranks in rank order; `mine` alone without ranks.
inline std::vector<double> FromAll(Collectives* ranks, std::vector<double> mine) {
  return ranks == nullptr ? mine : ranks->AllGather(mine, kRowRanks);
}

}  // namespace tandem::training
