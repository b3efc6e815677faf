#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "training/checkpoint/checkpoint_store.h"

namespace tandem::tests {

// Contents of a checkpoint that differ from step to step. The object owns the memory of the
// contents it returns.
class SomeContents {
 public:
  explicit SomeContents(size_t floats = 4096) : values_(floats, 1.5f) {}

  training::CheckpointContents Of(int64_t step) const {
    training::CheckpointContents contents;
    contents.step = step;
    contents.arch = "llama";
    contents.isa_key = "reference";
    contents.texts["config.json"] = "{}";
    contents.texts["train_state.json"] = "{\"step\": " + std::to_string(step) + "}";
    contents.tensor_files.push_back({"model.safetensors",
                                     {{"w",
                                       {reinterpret_cast<const std::byte*>(values_.data()),
                                        engine::DType::kF32,
                                        {static_cast<int64_t>(values_.size())}}}}});
    return contents;
  }

 private:
  const std::vector<float> values_;
};

}  // namespace tandem::tests
