#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "convert/formats/maxtext/maxtext_map.h"
#include "convert/formats/maxtext/maxtext_numbers.h"
#include "convert/tensors/model_source.h"
#include "engine/base/thread_pool.h"

namespace tandem::convert {

// The tensors of a source as MaxText's parameters have them, and what their numbers lose there.
// One thread, which has the pool's compute. Holds the source and the pool.
class MaxTextTensors {
 public:
  // Throws kUnsupported for tensors that are missing, of other types or have no place in MaxText,
  // kDataLoss for one of another shape than config.json says.
  MaxTextTensors(const ModelSource& source, const engine::ModelConfig& config, ThreadPool& pool);

  const engine::ConstTensorView& ViewOf(const MaxTextLeaf& leaf, int64_t layer) const;
  engine::DType DTypeOf(const MaxTextLeaf& leaf, int64_t layer) const {
    return ViewOf(leaf, layer).dtype;
  }
  // The tensor of a layer; its bytes lie in `buffer` or in the source.
  ModelSource::Bytes Read(const MaxTextLeaf& leaf, int64_t layer,
                          std::vector<std::byte>* buffer) const;
  // They have been read for good.
  void LetGo(const MaxTextLeaf& leaf) const;

  // The parameter. Throws kDataLoss naming a tensor with values that become too large.
  std::vector<std::byte> LeafBytes(const MaxTextLeaf& leaf, engine::DType dtype) const;
  // Of its numbers, those that do not come back from that type.
  Loss LossIn(const MaxTextLeaf& leaf, engine::DType leaf_dtype) const;
  // CorrectionSteps of a layer's tensor, a piece at a time; nothing where some do not fit in the
  // type: int8_t, int32_t.
  template <typename Int>
  std::optional<std::vector<Int>> StepsOf(const MaxTextLeaf& leaf, int64_t layer,
                                          engine::DType leaf_dtype,
                                          ModelSource::Bytes tensor) const;

 private:
  // task(layer, rows of its tensor, which these are), several at a time: all rows of layers, or
  // those of one. What a task throws is thrown here.
  using Task = std::function<void(int64_t layer, ModelSource::Bytes tensor, RowRange rows)>;
  void ForRows(const MaxTextLeaf& leaf, int64_t n_rows, const Task& task) const;

  const ModelSource& source_;
  ThreadPool& pool_;
  const std::map<std::string, int64_t> places_;  // of tensors in the source
};

}  // namespace tandem::convert
