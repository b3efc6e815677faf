#include "convert/formats/gguf/gguf_tolerance.h"

#include <algorithm>
#include <cmath>

namespace tandem::convert {
namespace {

using engine::GgufChange;

constexpr size_t kBlockNumbers = 32;

bool IsLatent(const GgufTensor& tensor) {
  return tensor.change == GgufChange::kLatentKeys || tensor.change == GgufChange::kLatentValues;
}

size_t RowsOfHead(const GgufTensor& tensor) {
  return static_cast<size_t>(tensor.key_dim + tensor.value_dim);
}

}  // namespace

GgufTolerance::GgufTolerance(const GgufTensor& tensor, int64_t n_rows) : tensor_(tensor) {
  if (!tensor.rows.empty()) has_row_.assign(static_cast<size_t>(n_rows), false);
  for (const int64_t row : tensor.rows) has_row_[static_cast<size_t>(row)] = true;
  file_column_.resize(tensor.columns.size());
  for (size_t i = 0; i < tensor.columns.size(); ++i) {
    file_column_[static_cast<size_t>(tensor.columns[i])] = i;
  }
}

int64_t GgufTolerance::rows_together() const {
  return IsLatent(tensor_) ? static_cast<int64_t>(RowsOfHead(tensor_)) : 1;
}

bool GgufTolerance::IsNear(std::span<const float> source, int64_t first_row,
                           std::span<const float> written) {
  source_ = source;
  first_row_ = static_cast<size_t>(first_row);
  first_ = SIZE_MAX;
  const std::vector<int64_t>& shape = tensor_.info.shape;
  if (shape.size() > 1) row_elements_ = static_cast<size_t>(shape.back());
  if (tensor_.change == GgufChange::kLatentKeys) row_elements_ = static_cast<size_t>(shape[1]);
  for (size_t i = 0; i < source.size(); ++i) {
    if (!Allows(i, written[i])) return false;
  }
  return true;
}

bool GgufTolerance::Allows(size_t i, float written) {
  if (!IsInPart(i)) return true;
  const float value = source_[i];
  const double difference = std::abs(static_cast<double>(value) - written);
  if (tensor_.change == GgufChange::kNegativeExp ||
      tensor_.change == GgufChange::kNegativeExpColumn) {
    return difference <= 0x1p-22 * std::max(1.0f, std::abs(value));
  }
  if (tensor_.change == GgufChange::kPlus1) {
    return difference <= 0x1p-23 * std::max(1.0f, std::abs(value));
  }
  switch (tensor_.info.numbers) {
    case GgufNumbers::kF32:
      return difference == 0;
    case GgufNumbers::kF16:
      return difference <= std::max(0x1p-11 * std::abs(value), 0x1p-25);
    case GgufNumbers::kBF16:
      return difference <= std::max(0x1p-8 * std::abs(value), 0x1p-133);
    case GgufNumbers::kQ8_0:
      return difference <= BlockStep(i, 127) * 0.6 + 0x1p-17;
    case GgufNumbers::kQ4_0:
      return difference <= BlockStep(i, 8) * 1.01 + 0x1p-21;
  }
  return false;
}

// Whether the number is in the file's tensor, which may be a part of the source's.
bool GgufTolerance::IsInPart(size_t i) const {
  if (!has_row_.empty()) return has_row_[first_row_ + i / row_elements_];
  if (!IsLatent(tensor_)) return true;
  const bool is_key =
      i / row_elements_ % RowsOfHead(tensor_) < static_cast<size_t>(tensor_.key_dim);
  return is_key == (tensor_.change == GgufChange::kLatentKeys);
}

// The place in the source of the `k`th number of the block that has the number `i`. Reordering rows
// keeps their blocks; transposes and other columns do not.
size_t GgufTolerance::PlaceInBlock(size_t i, size_t k) const {
  if (tensor_.change == GgufChange::kTransposed) {
    const auto apart = static_cast<size_t>(tensor_.info.shape.front());
    return (i / apart / kBlockNumbers * kBlockNumbers + k) * apart + i % apart;
  }
  const size_t row = i / row_elements_, column = i % row_elements_;
  if (tensor_.change == GgufChange::kLatentKeys) {
    // Keys are transposed within their head.
    const size_t in_head = row % RowsOfHead(tensor_);
    return (row - in_head % kBlockNumbers + k) * row_elements_ + column;
  }
  if (!file_column_.empty()) {
    const size_t in_file = file_column_[column] / kBlockNumbers * kBlockNumbers + k;
    return row * row_elements_ + static_cast<size_t>(tensor_.columns[in_file]);
  }
  return i / kBlockNumbers * kBlockNumbers + k;
}

double GgufTolerance::BlockStep(size_t i, double steps) {
  const size_t first = PlaceInBlock(i, 0);
  if (first == first_) return most_ / steps;
  first_ = first;
  most_ = 0;
  for (size_t k = 0; k < kBlockNumbers; ++k) {
    most_ = std::max(most_, std::abs(source_[PlaceInBlock(i, k)]));
  }
  return most_ / steps;
}

}  // namespace tandem::convert
