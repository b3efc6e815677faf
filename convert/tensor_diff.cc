#include "convert/tensor_diff.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

namespace tandem::convert {
namespace {

using engine::ConstTensorView;
using engine::DType;
using Kind = TensorDifference::Kind;

// Numbers of both that are in memory as doubles at a time.
constexpr int64_t kPieceElements = 1 << 18;

std::string Describe(const ConstTensorView& view) {
  std::string text = std::string(DTypeName(view.dtype)) + " [";
  for (size_t i = 0; i < view.shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(view.shape[i]);
  }
  return text + "]";
}

template <typename T>
void Widen(const std::byte* from, std::vector<double>* to) {
  for (size_t i = 0; i < to->size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof value, sizeof value);
    (*to)[i] = static_cast<double>(value);
  }
}

// Elements [first, first + to->size()) of a tensor; int64 beyond 2^53 are rounded.
void Numbers(DType dtype, ModelSource::Bytes bytes, int64_t first, std::vector<double>* to) {
  const std::byte* from = bytes.data() + static_cast<size_t>(first) * DTypeBytes(dtype);
  switch (dtype) {
    case DType::kF64:
      return Widen<double>(from, to);
    case DType::kI64:
      return Widen<int64_t>(from, to);
    case DType::kI32:
      return Widen<int32_t>(from, to);
    case DType::kI16:
      return Widen<int16_t>(from, to);
    case DType::kI8:
      return Widen<int8_t>(from, to);
    case DType::kU8:
    case DType::kBool:
      return Widen<uint8_t>(from, to);
    case DType::kF32:
    case DType::kBF16:
    case DType::kF16:
      break;
  }
  std::vector<float> values(to->size());
  engine::ConvertToF32({from, dtype, {static_cast<int64_t>(to->size())}}, values);
  std::copy(values.begin(), values.end(), to->begin());
}

struct Sums {
  double difference = 0, first = 0;  // of squares
};

void AddPiece(const std::vector<double>& a, const std::vector<double>& b, Sums* sums,
              TensorDifference* out) {
  for (size_t i = 0; i < a.size(); ++i) {
    sums->first += a[i] * a[i];
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const double difference = std::fabs(a[i] - b[i]);
    sums->difference += difference * difference;
    // Once not a number, it stays that.
    if (!(out->max_abs >= difference)) out->max_abs = difference;
    if (std::isnan(difference)) out->max_abs = difference;
    ++out->elements;
  }
}

void CompareValues(const ConstTensorView& first, ModelSource::Bytes first_bytes,
                   const ConstTensorView& second, ModelSource::Bytes second_bytes,
                   TensorDifference* out) {
  Sums sums;
  const int64_t n = first.elements();
  std::vector<double> a, b;
  for (int64_t at = 0; at < n; at += kPieceElements) {
    const auto count = static_cast<size_t>(std::min(kPieceElements, n - at));
    a.resize(count);
    b.resize(count);
    Numbers(first.dtype, first_bytes, at, &a);
    Numbers(second.dtype, second_bytes, at, &b);
    AddPiece(a, b, &sums, out);
  }
  out->relative_rms = sums.difference == 0 ? 0 : std::sqrt(sums.difference / sums.first);
}

// Whether the two differ, and how.
bool Compare(const ModelSource& first, int64_t i, const ModelSource& second, int64_t j,
             TensorDifference* out) {
  const ConstTensorView& a = first.tensors()[static_cast<size_t>(i)].view;
  const ConstTensorView& b = second.tensors()[static_cast<size_t>(j)].view;
  out->first = Describe(a);
  out->second = Describe(b);
  if (a.shape != b.shape) {
    out->kind = Kind::kShape;
    return true;
  }
  std::vector<std::byte> a_buffer, b_buffer;
  const ModelSource::Bytes a_bytes = first.Read(i, &a_buffer);
  const ModelSource::Bytes b_bytes = second.Read(j, &b_buffer);
  const bool is_same = a.dtype == b.dtype && std::ranges::equal(a_bytes, b_bytes);
  if (!is_same) CompareValues(a, a_bytes, b, b_bytes, out);
  first.LetGo(i);
  second.LetGo(j);
  out->kind = a.dtype == b.dtype ? Kind::kValues : Kind::kType;
  return !is_same;
}

}  // namespace

TensorDiff DiffTensors(const ModelSource& first, const ModelSource& second,
                       const std::function<void(int64_t bytes)>& advance) {
  std::set<std::string> names;
  for (const engine::NamedTensor& tensor : first.tensors()) names.insert(tensor.name);
  for (const engine::NamedTensor& tensor : second.tensors()) names.insert(tensor.name);
  TensorDiff diff;
  for (const std::string& name : names) {
    const int64_t i = first.Find(name), j = second.Find(name);
    TensorDifference difference;
    difference.name = name;
    if (i < 0 || j < 0) {
      const ModelSource& has = i < 0 ? second : first;
      const auto at = static_cast<size_t>(i < 0 ? j : i);
      difference.kind = i < 0 ? Kind::kOnlyInSecond : Kind::kOnlyInFirst;
      (i < 0 ? difference.second : difference.first) = Describe(has.tensors()[at].view);
      diff.differences.push_back(std::move(difference));
      continue;
    }
    ++diff.compared;
    if (Compare(first, i, second, j, &difference))
      diff.differences.push_back(std::move(difference));
    if (!advance) continue;
    advance(static_cast<int64_t>(first.tensors()[static_cast<size_t>(i)].view.bytes()));
  }
  return diff;
}

const char* DifferenceName(Kind kind) {
  switch (kind) {
    case Kind::kOnlyInFirst:
      return "only in the first";
    case Kind::kOnlyInSecond:
      return "only in the second";
    case Kind::kShape:
      return "shape";
    case Kind::kType:
      return "type";
    case Kind::kValues:
      return "values";
  }
  return "";
}

}  // namespace tandem::convert
