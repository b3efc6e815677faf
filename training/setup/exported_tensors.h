#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "engine/formats/safetensors/safetensors.h"
#include "engine/model/find_weight.h"
#include "training/step/parameters.h"

namespace tandem::training {

// A tensor to export: a weight, or several in one.
struct ExportedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<engine::StackedTensor::Member> members;
  bool is_stacked = false;
  engine::DType dtype = engine::DType::kF32;

  int64_t bytes() const;
};
// All of them, in the order of a file.
std::vector<ExportedTensor> ListExported(const ParameterStore& parameters);
// The bytes of one. Calls `source` for its members in order: the weight in its source's layout.
std::vector<std::byte> BytesOf(const ParameterStore& parameters, const ExportedTensor& tensor,
                               const std::function<std::vector<std::byte>(size_t weight)>& source);

// Bytes of one of the files in which `writers` ranks write `all` bytes together: one file when they
// fit into `most`, else whole rounds of a file per writer.
int64_t SharedFileBytes(int64_t all, int64_t writers, int64_t most);

// The tensors to export, as published checkpoints have them: weights with a StoredPart are stacked
// into the larger tensor. The views borrow `bytes`.
std::vector<engine::NamedTensor> ExportedTensors(const ParameterStore& parameters,
                                                 std::vector<std::vector<std::byte>>* bytes);

}  // namespace tandem::training
