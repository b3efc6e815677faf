#include "engine/model/find_weight.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/formats/model_dir.h"

namespace tandem::engine {
namespace {

// Rows of the larger tensor from its start to the last row of the part.
int64_t RowsUpTo(const StoredPart& part, int64_t n) {
  return part.first_row + (n - 1) * part.row_step + 1;
}

std::string PlaceText(const StoredPart& part) {
  std::string text = part.tensor;
  if (part.index >= 0) text += "[" + std::to_string(part.index) + "]";
  text += " rows " + std::to_string(part.first_row) + "+" + std::to_string(part.row_step);
  return part.transposed ? text + " transposed" : text;
}

}  // namespace

StoredTensor PartOf(const StoredTensor& whole, const StoredPart& part, const WeightSpec& spec,
                    const std::string& source) {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::kDataLoss, source + ": tensor " + Quoted(part.tensor) + ", which has " +
                                          Quoted(spec.name) + ", " + what);
  };
  const bool is_vector = spec.kind == WeightKind::kVector;
  TANDEM_CHECK(is_vector || spec.layout == SourceLayout::kOutIn);
  TANDEM_CHECK(!whole.transposed && whole.interleaved_heads == 0 && whole.added == 0);
  const std::vector<int64_t>& shape = whole.view.shape;
  const size_t stack_axes = part.index >= 0 ? 1 : 0;
  if (shape.size() != stack_axes + (is_vector ? 1 : 2)) {
    fail("has shape " + ShapeText(shape) + ", expected " +
         std::to_string(stack_axes + (is_vector ? 1 : 2)) + " axes");
  }
  if (part.index >= 0 && part.index >= shape[0]) {
    fail("has shape " + ShapeText(shape) + "; slice " + std::to_string(part.index) + " is missing");
  }
  const int64_t rows = shape[stack_axes + (part.transposed ? 1 : 0)];
  const int64_t columns = is_vector ? 1 : shape[stack_axes + (part.transposed ? 0 : 1)];
  if (columns != spec.k || RowsUpTo(part, spec.n) > rows) {
    fail("has shape " + ShapeText(shape) + "; the weight has " + std::to_string(spec.n) +
         " outputs and " + std::to_string(spec.k) + " inputs");
  }
  StoredTensor tensor = whole;
  tensor.view.shape = spec.source_shape;
  tensor.part = PlaceText(part);
  const int64_t slice = std::max<int64_t>(part.index, 0);
  if (part.transposed) {
    if (whole.encoding != Encoding::kPlain) {
      fail("has type " + std::string(EncodingName(whole.encoding)) +
           " with inputs as rows, which is not supported");
    }
    tensor.row_stride = part.row_step;
    tensor.column_stride = rows;
    const int64_t first = slice * rows * columns + part.first_row;
    tensor.view.data += first * static_cast<int64_t>(DTypeBytes(whole.view.dtype));
    return tensor;
  }
  const int64_t first = slice * rows + part.first_row;
  StoredTensor by_row = whole;  // with one row of the weight in each row
  by_row.view.shape = {shape[0] * (part.index >= 0 ? rows : 1), columns};
  tensor.view.data = by_row.RowData(first);
  tensor.first_row = first;
  if (part.row_step > 1) tensor.row_stride = part.row_step * columns;
  return tensor;
}

std::optional<StoredTensor> FindWeight(const ModelDir& dir, const WeightSpec& spec) {
  const StoredTensor* tensor = dir.FindStored(spec.name);
  for (size_t i = 0; tensor == nullptr && i < spec.aliases.size(); ++i) {
    tensor = dir.FindStored(spec.aliases[i]);
  }
  if (tensor != nullptr) return *tensor;
  for (const StoredPart& part : spec.parts) {
    const StoredTensor* whole = dir.FindStored(part.tensor);
    if (whole != nullptr) return PartOf(*whole, part, spec, dir.name());
  }
  return std::nullopt;
}

std::map<std::string, StackedTensor, std::less<>> StackedTensorsOf(
    const std::vector<WeightSpec>& specs, bool published) {
  std::map<std::string, StackedTensor, std::less<>> stacked;
  for (size_t i = 0; i < specs.size(); ++i) {
    const WeightSpec& spec = specs[i];
    for (const StoredPart& part : spec.parts) {
      if (published && !part.is_written) continue;
      StackedTensor& tensor = stacked[part.tensor];
      const size_t stack_axes = part.index >= 0 ? 1 : 0;
      const bool is_vector = spec.kind == WeightKind::kVector;
      tensor.shape.resize(stack_axes + (is_vector ? 1 : 2));
      if (part.index >= 0) tensor.shape[0] = std::max(tensor.shape[0], part.index + 1);
      int64_t& rows = tensor.shape[stack_axes + (part.transposed ? 1 : 0)];
      const int64_t step = part.row_step;
      rows = std::max(rows, (RowsUpTo(part, spec.n) + step - 1) / step * step);
      if (!is_vector) tensor.shape[stack_axes + (part.transposed ? 0 : 1)] = spec.k;
      tensor.members.push_back({i, part});
      if (published) break;
    }
  }
  return stacked;
}

}  // namespace tandem::engine
