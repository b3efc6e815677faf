#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/model/families/family.h"

namespace tandem::training {

// Tensor parallelism (Shoeybi et al. 2019, Megatron-LM): ranks compute the same rows, each with its
// part of the heads of attention and of the width of feed-forward layers. A rank runs the family's
// forward pass with the configuration of its part. Between, all values are whole on every rank, or
// each rank has its part of their rows.

// A rank's place on the tensor axis.
struct TensorPlace {
  int rank = 0;
  int size = 1;
  // Between the shared layers ranks divide the rows, in consecutive parts (sequence parallelism,
  // Korthikanti et al. 2022, arXiv 2205.05198).
  bool divides_rows = false;
};

// The key of a spec that gives the size of the axis.
inline const char* TensorKey(bool divides_rows) {
  return divides_rows ? "ici_tensor_sequence_parallelism" : "ici_tensor_parallelism";
}

// The elements of a whole weight [n, k] that a rank has.
struct WeightSplit {
  enum class Axis : uint8_t { kWhole, kOutputs, kInputs };

  Axis axis = Axis::kWhole;
  // With kOutputs: lengths of the runs that the rank's outputs consist of. Each is this rank's part
  // of `size` times as many consecutive outputs: one run, or several where one matrix holds several
  // projections.
  std::vector<int64_t> runs = {};
  // Every rank has the whole weight and computes a part of its gradient.
  bool sums_gradient = false;
};

struct TensorSplit {
  TensorPlace place;
  // By weight; empty when the ranks split nothing.
  std::vector<engine::WeightSpec> whole_specs;
  std::vector<WeightSplit> weights;

  bool is_split() const { return place.size > 1; }
  // The same for the weights from number `first` on.
  TensorSplit From(size_t first) const;
};

// The configuration of one of `place.size` equal parts. Throws kUnsupported naming the family and
// the part that ranks cannot share, and kInvalidArgument naming a count that the size does not
// divide.
engine::ModelConfig PartOfConfig(const engine::FamilySpec& family,
                                 const engine::ModelConfig& config, const TensorPlace& place);

// The ways in which `part` divides the weights `whole`, apart from runs. Throws kUnsupported naming
// a weight that is no equal part.
TensorSplit CompareSpecs(const std::string& family, std::vector<engine::WeightSpec> whole,
                         const std::vector<engine::WeightSpec>& part, TensorPlace place);

// "<the key>: family f: `what`", and what to use instead.
[[noreturn]] void RefuseTensorSplit(const TensorPlace& place, const std::string& family,
                                    const std::string& what);

// Calls `visit` for the consecutive elements that a rank's part [n, k] shares with the whole
// weight: the first element of either and their number.
using VisitElements = std::function<void(int64_t whole, int64_t part, int64_t count)>;
void VisitPart(const WeightSplit& split, TensorPlace place, int64_t n, int64_t k,
               const VisitElements& visit);
// Copies a rank's part [n, k] of elements of `width` bytes from the whole weight, or back.
void TakePart(const WeightSplit& split, TensorPlace place, int64_t n, int64_t k, size_t width,
              const std::byte* whole, std::byte* part);
void PlacePart(const WeightSplit& split, TensorPlace place, int64_t n, int64_t k, size_t width,
               const std::byte* part, std::byte* whole);

}  // namespace tandem::training
