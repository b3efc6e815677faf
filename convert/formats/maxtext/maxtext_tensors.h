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

// The tensors of a source grouped into MaxText's parameters. One thread, which computes on the
// pool. Holds references to the source and the pool.
class MaxTextTensors {
 public:
  // Throws kUnsupported for tensors that are missing, have another dtype or no place in MaxText,
  // kDataLoss for a shape that differs from config.json's.
  MaxTextTensors(const ModelSource& source, const engine::ModelConfig& config, ThreadPool& pool);

  const engine::ConstTensorView& ViewOf(const MaxTextLeaf& leaf, int64_t index) const;
  engine::DType DTypeOf(const MaxTextLeaf& leaf, int64_t index) const {
    return ViewOf(leaf, index).dtype;
  }
  // Returns a tensor of the leaf; its bytes are in `buffer` or in the source.
  ModelSource::Bytes Read(const MaxTextLeaf& leaf, int64_t index,
                          std::vector<std::byte>* buffer) const;
  // Releases the leaf's tensors, which will not be read again.
  void LetGo(const MaxTextLeaf& leaf) const;

  // Returns the parameter's bytes. Throws kDataLoss naming a tensor with values that overflow.
  std::vector<std::byte> LeafBytes(const MaxTextLeaf& leaf, engine::DType dtype) const;
  // Returns what the leaf's numbers lose in that dtype.
  Loss LossIn(const MaxTextLeaf& leaf, engine::DType leaf_dtype) const;
  // Returns CorrectionSteps of a tensor, computed piece by piece; nullopt if a step does
  // not fit in Int (int8_t or int32_t).
  template <typename Int>
  std::optional<std::vector<Int>> StepsOf(const MaxTextLeaf& leaf, int64_t index,
                                          engine::DType leaf_dtype,
                                          ModelSource::Bytes tensor) const;

 private:
  // Runs task(index, bytes, rows) in parallel: whole tensors of a leaf with several, else ranges of
  // rows of its one tensor. Throws the first exception of a task.
  using Task = std::function<void(int64_t index, ModelSource::Bytes tensor, RowRange rows)>;
  void ForRows(const MaxTextLeaf& leaf, int64_t n_rows, const Task& task) const;

  const ModelSource& source_;
  ThreadPool& pool_;
  const std::map<std::string, int64_t> places_;  // tensor name -> index in the source
};

}  // namespace tandem::convert
