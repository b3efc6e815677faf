#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "training/program/program.h"
#include "training/step/parameters.h"

namespace tandem::training {

// A consecutive part of the flat gradient.
struct GradientBucket {
  int64_t begin = 0;
  int64_t end = 0;
  size_t ready = 0;  // backward steps after which no step adds to it
};

// By weight of `parameters`, which are the last ones of the program: backward steps after which its
// gradient is final.
std::vector<size_t> FinalSteps(const Program& program, size_t parameters);
// The weights of the program that a node names: its own, then those of adapters.
std::vector<int32_t> WeightsOf(const Node& node);

// Cuts the flat gradient into buckets of at least `bytes` (the last one may have fewer), in the
// order in which the backward pass completes them. The weights of `parameters` are the last ones of
// the program. Depends on its arguments alone, so all ranks have the same buckets.
std::vector<GradientBucket> MakeGradientBuckets(const Program& program,
                                                const ParameterStore& parameters,
                                                int64_t flat_elements, int64_t bytes);

}  // namespace tandem::training
