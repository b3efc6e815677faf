#include "training/setup/exported_tensors.h"

#include <algorithm>
#include <cstring>

#include "engine/model/find_weight.h"
#include "training/step/export_dtype.h"

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

int64_t SharedFileBytes(int64_t all, int64_t writers, int64_t most) {
  if (all <= most) return all;
  const int64_t rounds = (all / most + writers) / writers;
  return std::max<int64_t>(1, all / (rounds * writers));
}

int64_t ExportedTensor::bytes() const {
  return static_cast<int64_t>(engine::ConstTensorView{nullptr, dtype, shape}.bytes());
}

std::vector<ExportedTensor> ListExported(const ParameterStore& parameters) {
  const std::vector<engine::WeightSpec>& specs = parameters.whole_specs();
  const auto stacked = engine::StackedTensorsOf(specs, true);
  std::vector<bool> is_member(specs.size(), false);
  for (const auto& [name, tensor] : stacked) {
    for (const engine::StackedTensor::Member& member : tensor.members) {
      is_member[member.spec] = true;
    }
  }
  std::vector<ExportedTensor> list;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (is_member[i]) continue;
    list.push_back({specs[i].name,
                    specs[i].source_shape,
                    {{i, {}}},
                    false,
                    ExportDType(specs[i], parameters.dtype())});
  }
  for (const auto& [name, tensor] : stacked) {
    list.push_back({name, tensor.shape, tensor.members, true, parameters.dtype()});
  }
  return list;
}

std::vector<std::byte> BytesOf(const ParameterStore& parameters, const ExportedTensor& tensor,
                               const std::function<std::vector<std::byte>(size_t weight)>& source) {
  if (!tensor.is_stacked) return source(tensor.members.front().spec);
  const size_t width = engine::DTypeBytes(parameters.dtype());
  const engine::ConstTensorView view{nullptr, parameters.dtype(), tensor.shape};
  std::vector<std::byte> whole(static_cast<size_t>(view.elements()) * width);
  for (const engine::StackedTensor::Member& member : tensor.members) {
    PlaceMember(parameters.whole_specs()[member.spec], member.part, tensor.shape, width,
                source(member.spec), &whole);
  }
  return whole;
}

std::vector<engine::NamedTensor> ExportedTensors(const ParameterStore& parameters,
                                                 std::vector<std::vector<std::byte>>* bytes) {
  const std::vector<ExportedTensor> list = ListExported(parameters);
  std::vector<engine::NamedTensor> tensors;
  bytes->clear();
  bytes->reserve(list.size());
  for (const ExportedTensor& tensor : list) {
    bytes->push_back(
        BytesOf(parameters, tensor, [&](size_t i) { return parameters.ExportSource(i); }));
    tensors.push_back({tensor.name, {bytes->back().data(), tensor.dtype, tensor.shape}});
  }
  return tensors;
}

}  // namespace tandem::training
