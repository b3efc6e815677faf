#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace tandem::training {

// What the ranks of the tensor axis do together while they run a program (tensor_split.h). All of
// them call the same functions in the same order and with the same sizes.
struct TensorExchange {
  // Every element becomes the sum of the ranks' elements.
  std::function<void(std::span<float>)> sum;
  // `values` has one equal part per rank. The rank's own part becomes the sum; the others become
  // unspecified.
  std::function<void(std::span<float>)> sum_parts;
  // `all` gets the parts of all ranks, in rank order. `mine` may be the rank's part of it.
  std::function<void(std::span<const std::byte> mine, std::span<std::byte> all)> gather;
};

}  // namespace tandem::training
