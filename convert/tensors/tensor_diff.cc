#include "convert/tensors/tensor_diff.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tandem::convert {
namespace {

using engine::ConstTensorView;
using engine::DType;
using Kind = TensorDifference::Kind;

// Elements of each tensor held as doubles at a time.
constexpr int64_t kDiffElements = 1 << 18;

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

// Reads elements [first, first + to->size()) as doubles; int64 beyond 2^53 are rounded.
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
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kF8E8M0:
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
    // NaN is sticky.
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
  for (int64_t at = 0; at < n; at += kDiffElements) {
    const auto count = static_cast<size_t>(std::min(kDiffElements, n - at));
    a.resize(count);
    b.resize(count);
    Numbers(first.dtype, first_bytes, at, &a);
    Numbers(second.dtype, second_bytes, at, &b);
    AddPiece(a, b, &sums, out);
  }
  out->relative_rms = sums.difference == 0 ? 0 : std::sqrt(sums.difference / sums.first);
}

const ConstTensorView& ViewOf(const ModelSource& source, int64_t tensor) {
  return source.tensors()[static_cast<size_t>(tensor)].view;
}

// Compares tensor `i` of the leader, given by `bytes`, with tensor `j` of the follower. Returns
// whether they differ.
bool Compare(const ModelSource& leader, int64_t i, ModelSource::Bytes bytes,
             const ModelSource& follower, int64_t j, bool leader_is_first, TensorDifference* out) {
  const ConstTensorView& a = ViewOf(leader, i);
  const ConstTensorView& b = ViewOf(follower, j);
  out->first = Describe(leader_is_first ? a : b);
  out->second = Describe(leader_is_first ? b : a);
  if (a.shape != b.shape) {
    out->kind = Kind::kShape;
    return true;
  }
  std::vector<std::byte> buffer;
  const ModelSource::Bytes others = follower.Read(j, &buffer);
  const bool is_same = a.dtype == b.dtype && std::ranges::equal(bytes, others);
  if (!is_same && leader_is_first) CompareValues(a, bytes, b, others, out);
  if (!is_same && !leader_is_first) CompareValues(b, others, a, bytes, out);
  follower.LetGo(j);
  out->kind = a.dtype == b.dtype ? Kind::kValues : Kind::kType;
  return !is_same;
}

// Adds the tensors that only `source` has.
void AddLonely(const ModelSource& source, const ModelSource& other, Kind kind, TensorDiff* diff) {
  for (const engine::NamedTensor& tensor : source.tensors()) {
    if (other.Find(tensor.name) >= 0) continue;
    TensorDifference difference;
    difference.name = tensor.name;
    difference.kind = kind;
    (kind == Kind::kOnlyInFirst ? difference.first : difference.second) = Describe(tensor.view);
    diff->differences.push_back(std::move(difference));
  }
}

}  // namespace

TensorDiff DiffTensors(const ModelSource& first, const ModelSource& second,
                       const std::function<void(int64_t bytes)>& advance) {
  TensorDiff diff;
  AddLonely(first, second, Kind::kOnlyInFirst, &diff);
  AddLonely(second, first, Kind::kOnlyInSecond, &diff);
  // The source whose parts hold several tensors leads: reading its tensors one by one would read
  // each part again and again.
  const bool first_leads = second.parts() == static_cast<int64_t>(second.tensors().size());
  const ModelSource& leader = first_leads ? first : second;
  const ModelSource& follower = first_leads ? second : first;
  for (int64_t part = 0; part < leader.parts(); ++part) {
    const std::vector<int64_t> tensors = leader.TensorsOf(part);
    const bool has_pair = std::any_of(tensors.begin(), tensors.end(), [&](int64_t i) {
      return follower.Find(leader.tensors()[static_cast<size_t>(i)].name) >= 0;
    });
    if (!has_pair) continue;
    leader.ReadPart(part, [&](const engine::NamedTensor& tensor, ModelSource::Bytes bytes) {
      const int64_t j = follower.Find(tensor.name);
      if (j < 0) return;
      ++diff.compared;
      TensorDifference difference;
      difference.name = tensor.name;
      const int64_t i = leader.Find(tensor.name);
      if (Compare(leader, i, bytes, follower, j, first_leads, &difference)) {
        diff.differences.push_back(std::move(difference));
      }
      if (advance) advance(static_cast<int64_t>(ViewOf(first, first_leads ? i : j).bytes()));
    });
  }
  std::sort(diff.differences.begin(), diff.differences.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
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
