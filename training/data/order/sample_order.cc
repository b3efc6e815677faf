#include "training/data/order/sample_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "training/data/order/grain_permutation.h"
#include "training/data/order/permutation.h"

namespace tandem::training {
namespace {

// Apart from the orders of epochs, which use the seed itself.
constexpr uint64_t kMixtureStream = 0x6d697874757265ull;

// The number's place among the n samples of its epoch.
int64_t PlaceIn(const SampleOrder& order, int64_t n, int64_t number) {
  const int64_t within = number % n;
  if (!order.shuffle) return within;
  const uint64_t seed = order.seed + static_cast<uint64_t>(number / n);
  if (order.kind == OrderKind::kGrain) return GrainPermute(static_cast<uint32_t>(seed), n, within);
  if (order.window <= 0 || order.window >= n) return Permute(seed, n, within);
  const int64_t window = within / order.window;
  const int64_t begin = window * order.window;
  return begin + Permute(HashCounter(seed, static_cast<uint64_t>(window)),
                         std::min(order.window, n - begin), within - begin);
}

}  // namespace

std::vector<MixturePart> MixtureOf(const std::vector<int64_t>& sizes,
                                   const std::vector<double>& weights) {
  TANDEM_CHECK(!sizes.empty() && sizes.size() == weights.size());
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<MixturePart> parts;
  std::vector<std::pair<double, size_t>> remainders;
  int64_t first = 0;
  int64_t left = kMixtureCycle;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const double slots = weights[i] / sum * kMixtureCycle;
    if (!std::isfinite(slots) || !(weights[i] > 0) || slots < 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  "data.mixture_weights: weight " + std::to_string(i + 1) +
                      " must be positive and at least 1/" + std::to_string(kMixtureCycle) +
                      " of the sum of all weights");
    }
    const auto whole = static_cast<int64_t>(slots);
    parts.push_back({first, sizes[i], whole});
    remainders.emplace_back(static_cast<double>(whole) - slots, i);  // the largest first
    first += sizes[i];
    left -= whole;
  }
  std::sort(remainders.begin(), remainders.end());
  for (size_t i = 0; left > 0; ++i, --left) ++parts[remainders[i].second].slots;
  return parts;
}

int64_t SampleOrder::IndexOf(int64_t number) const {
  TANDEM_CHECK(n > 0 && number >= 0);
  if (mixture.empty()) return PlaceIn(*this, n, number);
  const int64_t cycle = number / kMixtureCycle;
  int64_t slot = Permute(seed + kMixtureStream + static_cast<uint64_t>(cycle), kMixtureCycle,
                         number % kMixtureCycle);
  for (const MixturePart& part : mixture) {
    if (slot < part.slots) {
      return part.first + PlaceIn(*this, part.n, cycle * part.slots + slot);
    }
    slot -= part.slots;
  }
  TANDEM_CHECK(false);
  return 0;
}

}  // namespace tandem::training
