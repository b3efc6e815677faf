#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "convert/tensors/model_source.h"

namespace tandem::convert {

// The small files of the model of a MaxText checkpoint, in one directory. A base that is a single
// file supplies its equivalents. Any thread.
class MaxTextTexts {
 public:
  static constexpr size_t kMaxBytes = size_t{512} << 20;  // of one file

  // Looks for config.json in `base`, or beside the item, its step or their root. Throws
  // kInvalidArgument (param "source.base") without one.
  MaxTextTexts(const std::filesystem::path& base, const std::filesystem::path& item_dir);

  const std::filesystem::path& dir() const { return dir_; }
  std::optional<std::string> Read(std::string_view name) const;

 private:
  std::filesystem::path dir_;  // or the file
  std::unique_ptr<ModelSource> file_;
};

}  // namespace tandem::convert
