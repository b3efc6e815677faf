#pragma once

#include <cstdint>
#include <vector>

namespace tandem::training {

enum class OrderKind {
  kPermuted,  // Permute
  kGrain,     // GrainPermute: the order of MaxText's Grain pipelines
};

// Consecutive samples of the corpus that a mixture draws from.
struct MixturePart {
  int64_t first = 0;
  int64_t n = 0;
  int64_t slots = 0;  // of kMixtureCycle
};
// Every so many draws, each part has been drawn exactly as often as it has slots.
constexpr int64_t kMixtureCycle = 10000;

// Slots for parts of these sizes: weights over their sum, rounded by largest remainders. Throws
// kInvalidArgument for a weight that is not positive, not finite, or below 1 / kMixtureCycle of the
// sum.
std::vector<MixturePart> MixtureOf(const std::vector<int64_t>& sizes,
                                   const std::vector<double>& weights);

// The order in which a run reads n samples. A function of the sample's number only, so that a
// resumed run replays nothing.
struct SampleOrder {
  int64_t n = 0;
  bool shuffle = true;
  OrderKind kind = OrderKind::kPermuted;
  uint64_t seed = 0;
  // Shuffles within windows of this many consecutive samples only; 0: the whole epoch at once.
  int64_t window = 0;
  std::vector<MixturePart> mixture = {};  // empty: one set

  // Index of the sample with this number, counted over all epochs. Every epoch has a new order.
  // Each part of a mixture has epochs of its own.
  int64_t IndexOf(int64_t number) const;
};

}  // namespace tandem::training
