#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engine/base/ids.h"

namespace tandem::engine {

// Finds the best entries of a vocabulary without sorting it. "Better" means a greater value or, at
// equal values, a lower id: a strict order, so every selection is unique. NaN and -inf are never
// selected.

struct Candidate {
  float value = 0;
  TokenId id = 0;
};

inline bool IsBetter(const Candidate& a, const Candidate& b) {
  return a.value != b.value ? a.value > b.value : a.id < b.id;
}

// The best entry; id -1 when there is none.
Candidate Best(std::span<const float> values);

// The result of one scan over a row: the maximum of each run of kScanRun values. Selections visit
// only runs that can contain a result, which for most rows are few. Borrows.
inline constexpr size_t kScanRun = 64;
struct ScannedRow {
  std::span<const float> values;
  std::span<const float> run_maxima;  // -inf for a run of only NaN and -inf
  Candidate best;                     // id -1 when there is none
};
ScannedRow Scan(std::span<const float> values, std::vector<float>& run_maxima);

// The k-th best entry; the worst finite one when there are fewer. `buffer` is scratch.
// REQUIRES: k >= 1.
Candidate KthBest(const ScannedRow& row, int64_t k, std::vector<Candidate>& buffer);

// All entries that are `last` or better with a value of at least `at_least`, in order of id.
void Gather(const ScannedRow& row, const Candidate& last, float at_least,
            std::vector<Candidate>& out);

// A `last` that excludes nothing.
inline constexpr Candidate kNoCut{-std::numeric_limits<float>::infinity(),
                                  std::numeric_limits<TokenId>::max()};

}  // namespace tandem::engine
