#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engine/base/ids.h"

namespace tandem::engine {

// Finding the best of a vocabulary without sorting it. "Better" means a greater value or, at equal
// values, a lower id: a strict order, so every selection is unique. NaN and -inf are never
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

// The k-th best entry, in one pass over the values; the worst finite one when there are fewer.
// `buffer` is scratch. REQUIRES: k >= 1.
Candidate KthBest(std::span<const float> values, int64_t k, std::vector<Candidate>& buffer);

// All entries that are `last` or better, and whose value is at least `at_least`, in order of id.
void Gather(std::span<const float> values, const Candidate& last, float at_least,
            std::vector<Candidate>& out);

// A `last` that excludes nothing.
inline constexpr Candidate kNoCut{-std::numeric_limits<float>::infinity(),
                                  std::numeric_limits<TokenId>::max()};

}  // namespace tandem::engine
