#pragma once

#include <string>
#include <vector>

#include "training/checkpoint/checkpoint_store.h"

namespace tandem::tests {

// A checkpoint that differs from step to step. Outlives what it gives.
class SomeContents {
 public:
  training::CheckpointContents Of(int64_t step) const {
    training::CheckpointContents contents;
    contents.step = step;
    contents.arch = "llama";
    contents.isa_key = "reference";
    contents.texts["config.json"] = "{}";
    contents.texts["train_state.json"] = "{\"step\": " + std::to_string(step) + "}";
    contents.tensor_files.push_back(
        {"model.safetensors",
         {{"w",
           {reinterpret_cast<const std::byte*>(values_.data()), engine::DType::kF32, {4096}}}}});
    return contents;
  }

 private:
  std::vector<float> values_ = std::vector<float>(4096, 1.5f);
};

}  // namespace tandem::tests
