#include "training/setup/exported_tensors.h"

#include <cstring>

#include "engine/model/find_weight.h"

namespace tandem::training {
namespace {

// Copies a weight [n, k] into its place in a stacked tensor of `shape`.
void PlaceMember(const engine::WeightSpec& spec, const engine::StoredPart& part,
                 const std::vector<int64_t>& shape, size_t width,
                 const std::vector<std::byte>& from, std::vector<std::byte>* into) {
  const bool has_slices = part.index >= 0;
  const bool is_vector = spec.kind == engine::WeightKind::kVector;
  const int64_t rows = shape[(has_slices ? 1u : 0u) + (part.transposed && !is_vector ? 1u : 0u)];
  const int64_t slice = (has_slices ? part.index : 0) * rows * spec.k;
  for (int64_t i = 0; i < spec.n; ++i) {
    const int64_t row = part.first_row + i * part.row_step;
    for (int64_t c = 0; c < spec.k; ++c) {
      const int64_t to = slice + (part.transposed ? c * rows + row : row * spec.k + c);
      std::memcpy(into->data() + static_cast<size_t>(to) * width,
                  from.data() + static_cast<size_t>(i * spec.k + c) * width, width);
    }
  }
}

}  // namespace

std::vector<engine::NamedTensor> ExportedTensors(const ParameterStore& parameters,
                                                 std::vector<std::vector<std::byte>>* bytes) {
  const std::vector<engine::WeightSpec>& specs = parameters.specs();
  const size_t width = engine::DTypeBytes(parameters.dtype());
  const auto stacked = engine::StackedTensorsOf(specs, true);
  std::vector<engine::NamedTensor> tensors;
  bytes->clear();
  bytes->reserve(specs.size() + stacked.size());
  std::vector<bool> is_member(specs.size(), false);
  for (const auto& [name, tensor] : stacked) {
    for (const engine::StackedTensor::Member& member : tensor.members) {
      is_member[member.spec] = true;
    }
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    if (is_member[i]) continue;
    bytes->push_back(parameters.ExportSource(i));
    tensors.push_back(
        {specs[i].name, {bytes->back().data(), parameters.dtype(), specs[i].source_shape}});
  }
  for (const auto& [name, tensor] : stacked) {
    engine::ConstTensorView view{nullptr, parameters.dtype(), tensor.shape};
    std::vector<std::byte>& whole =
        bytes->emplace_back(static_cast<size_t>(view.elements()) * width);
    for (const engine::StackedTensor::Member& member : tensor.members) {
      PlaceMember(specs[member.spec], member.part, tensor.shape, width,
                  parameters.ExportSource(member.spec), &whole);
    }
    view.data = whole.data();
    tensors.push_back({name, view});
  }
  return tensors;
}

}  // namespace tandem::training
