#include "convert/formats/maxtext/maxtext_tensors.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/parallel_for.h"
#include "engine/base/quoted.h"
#include "engine/model/families/family.h"

namespace tandem::convert {
namespace {

using engine::DType;

// Elements of one tensor per task.
constexpr int64_t kPieceElements = int64_t{1} << 20;
bool IsHalf(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

// Finds the source's tensors under the map's names; multimodal models have a prefix of their own.
std::map<std::string, int64_t> FindTensors(const ModelSource& source,
                                           const engine::ModelConfig& config) {
  std::map<std::string, int64_t> found;
  std::set<int64_t> used;
  for (const engine::WeightSpec& spec :
       engine::FindFamilyByName(config.family).list_weights(config)) {
    const int64_t at = source.Find(spec.name);
    if (at < 0) {
      throw Error(ErrorCode::kUnsupported, source.name() + ": tensor " + Quoted(spec.name) +
                                               " is missing; of a multimodal model only the text "
                                               "part, saved as its own model, can become MaxText");
    }
    const engine::ConstTensorView& view = source.tensors()[static_cast<size_t>(at)].view;
    if (view.shape != spec.source_shape) {
      throw Error(ErrorCode::kDataLoss, source.name() + ": tensor " + Quoted(spec.name) +
                                            " has a shape that does not match config.json");
    }
    if (view.dtype != DType::kF32 && !IsHalf(view.dtype)) {
      throw Error(ErrorCode::kUnsupported, source.name() + ": tensor " + Quoted(spec.name) +
                                               " has type " + std::string(DTypeName(view.dtype)) +
                                               "; choose dtype f32 or bf16");
    }
    found[spec.name] = at;
    used.insert(at);
  }
  for (int64_t i = 0; i < static_cast<int64_t>(source.tensors().size()); ++i) {
    if (used.contains(i)) continue;
    throw Error(ErrorCode::kUnsupported,
                source.name() + ": MaxText's parameter tree has no counterpart for tensor " +
                    Quoted(source.tensors()[static_cast<size_t>(i)].name));
  }
  return found;
}

// Rows per task of a leaf with one tensor: whole heads where outputs are interleaved.
int64_t RowsAtOnce(const MaxTextLeaf& leaf) {
  const int64_t row_elements = engine::ElementCount(leaf.tensor_shape) / leaf.tensor_shape[0];
  const int64_t heads = std::max<int64_t>(1, leaf.rotated_head_dim);
  const int64_t rows = std::max<int64_t>(1, kPieceElements / row_elements);
  return (rows + heads - 1) / heads * heads;
}

// Reads ranges of a tensor's rows, one at a time if the source can. Neither the whole tensor nor
// the pages of its file then stay in memory. Any thread.
class RowsReader {
 public:
  RowsReader(const ModelSource& source, int64_t tensor, const std::vector<int64_t>& shape)
      : source_(source), tensor_(tensor), n_rows_(shape[0]) {
    std::vector<std::byte> none;
    if (!source_.ReadRows(tensor_, 0, 0, &none)) whole_ = source_.Read(tensor_, &buffer_);
  }
  // Rows beyond the tensor are left out.
  ModelSource::Bytes Read(RowRange rows, std::vector<std::byte>* buffer) const {
    const int64_t first = std::min(rows.first, n_rows_);
    const int64_t count = std::min(rows.last, n_rows_) - first;
    if (!whole_) return *source_.ReadRows(tensor_, first, count, buffer);
    const size_t row_bytes = whole_->size() / static_cast<size_t>(n_rows_);
    return whole_->subspan(static_cast<size_t>(first) * row_bytes,
                           static_cast<size_t>(count) * row_bytes);
  }

 private:
  const ModelSource& source_;
  const int64_t tensor_;
  const int64_t n_rows_;
  std::vector<std::byte> buffer_;
  std::optional<ModelSource::Bytes> whole_;
};

}  // namespace

MaxTextTensors::MaxTextTensors(const ModelSource& source, const engine::ModelConfig& config,
                               ThreadPool& pool)
    : source_(source), pool_(pool), places_(FindTensors(source, config)) {}

void MaxTextTensors::LetGo(const MaxTextLeaf& leaf) const {
  for (const std::string& tensor : leaf.tensors) source_.LetGo(places_.at(tensor));
}

const engine::ConstTensorView& MaxTextTensors::ViewOf(const MaxTextLeaf& leaf,
                                                      int64_t index) const {
  const int64_t at = places_.at(leaf.tensors[static_cast<size_t>(index)]);
  return source_.tensors()[static_cast<size_t>(at)].view;
}

ModelSource::Bytes MaxTextTensors::Read(const MaxTextLeaf& leaf, int64_t index,
                                        std::vector<std::byte>* buffer) const {
  return source_.Read(places_.at(leaf.tensors[static_cast<size_t>(index)]), buffer);
}

void MaxTextTensors::ForRows(const MaxTextLeaf& leaf, int64_t n_rows, const Task& task) const {
  if (leaf.n_tensors() > 1) {
    RunAll(pool_, leaf.n_tensors(), [&](int64_t index, int) {
      std::vector<std::byte> buffer;
      task(index, Read(leaf, index, &buffer), {0, n_rows});
    });
    return;
  }
  const RowsReader reader(source_, places_.at(leaf.tensors.front()), leaf.tensor_shape);
  const int64_t rows = RowsAtOnce(leaf);
  RunAll(pool_, (n_rows + rows - 1) / rows, [&](int64_t i, int) {
    const RowRange range{i * rows, std::min(n_rows, (i + 1) * rows)};
    std::vector<std::byte> buffer;
    const ModelSource::Bytes tensor = reader.Read(range, &buffer);
    task(0, tensor, range);
    source_.LetGoOf(tensor);
  });
}

Loss MaxTextTensors::LossIn(const MaxTextLeaf& leaf, DType leaf_dtype) const {
  Loss loss;
  std::mutex mutex;  // guards loss
  const int64_t there =
      leaf.has_vocabulary ? std::min(leaf.shape[0], leaf.tensor_shape[0]) : leaf.tensor_shape[0];
  ForRows(leaf, there, [&](int64_t index, ModelSource::Bytes tensor, RowRange /*rows*/) {
    const DType dtype = DTypeOf(leaf, index);
    const Loss of_part = LossOf(leaf.arithmetic, leaf_dtype, tensor, dtype);
    const std::lock_guard lock(mutex);
    loss.Add(of_part);
  });
  return loss;
}

std::vector<std::byte> MaxTextTensors::LeafBytes(const MaxTextLeaf& leaf, DType dtype) const {
  std::vector<std::byte> bytes(static_cast<size_t>(engine::ElementCount(leaf.shape)) *
                               engine::DTypeBytes(dtype));
  const int64_t n_rows = leaf.has_vocabulary ? leaf.shape[0] : leaf.tensor_shape[0];
  ForRows(leaf, n_rows, [&](int64_t index, ModelSource::Bytes tensor, RowRange rows) {
    if (TensorToLeaf(leaf, index, rows, tensor, DTypeOf(leaf, index), dtype, bytes)) return;
    throw Error(ErrorCode::kDataLoss, source_.name() + ": tensor " +
                                          Quoted(leaf.tensors[static_cast<size_t>(index)]) +
                                          " has values outside the range of " +
                                          std::string(DTypeName(dtype)) + "; choose another dtype");
  });
  for (const std::string& tensor : leaf.tensors) source_.LetGo(places_.at(tensor));
  return bytes;
}

template <typename Int>
std::optional<std::vector<Int>> MaxTextTensors::StepsOf(const MaxTextLeaf& leaf, int64_t index,
                                                        DType leaf_dtype,
                                                        ModelSource::Bytes tensor) const {
  const DType dtype = DTypeOf(leaf, index);
  const size_t piece_bytes = size_t{kPieceElements} * engine::DTypeBytes(dtype);
  std::vector<Int> all;
  all.reserve(tensor.size() / engine::DTypeBytes(dtype));
  for (size_t at = 0; at < tensor.size(); at += piece_bytes) {
    const ModelSource::Bytes piece = tensor.subspan(at, std::min(piece_bytes, tensor.size() - at));
    for (const int32_t step : CorrectionSteps(leaf.arithmetic, leaf_dtype, piece, dtype)) {
      if (!std::in_range<Int>(step)) return std::nullopt;
      all.push_back(static_cast<Int>(step));
    }
    source_.LetGoOf(piece);
  }
  return all;
}

template std::optional<std::vector<int8_t>> MaxTextTensors::StepsOf(const MaxTextLeaf&, int64_t,
                                                                    DType,
                                                                    ModelSource::Bytes) const;
template std::optional<std::vector<int32_t>> MaxTextTensors::StepsOf(const MaxTextLeaf&, int64_t,
                                                                     DType,
                                                                     ModelSource::Bytes) const;

}  // namespace tandem::convert
