#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "engine/formats/safetensors/safetensors.h"

namespace tandem::training {

// The tensors of a checkpoint's files of one kind: `<kind>.safetensors`, or those that several
// ranks wrote, `<kind>-00001-of-00004.safetensors` and so on. Immutable.
class TensorFiles {
 public:
  // Throws kNotFound naming the file without any of them.
  static TensorFiles Open(const std::filesystem::path& dir, const std::string& kind);

  const engine::ConstTensorView* Find(std::string_view name) const;  // null when absent

 private:
  std::vector<engine::SafetensorsFile> files_;
};

// The name of file `i` of `n`: "model.safetensors" for one file.
std::string TensorFileName(const std::string& kind, size_t i, size_t n);

}  // namespace tandem::training
