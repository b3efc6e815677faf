#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "engine/formats/stored/stored_tensor.h"

namespace tandem::engine {

// A model that another program wrote into one file, told as the files of a Hugging Face directory:
// tensors by the names that families ask for, config.json and the files of a tokenizer as texts
// made from what the file says. The bytes must outlive it. Any thread.
struct SingleFileModel {
  std::map<std::string, StoredTensor, std::less<>> tensors;
  // The text of a file of the directory; nullopt where there is none. Throws kDataLoss,
  // kUnsupported naming the file and what in it cannot be told.
  std::function<std::optional<std::string>(std::string_view file_name)> read_text;
};

}  // namespace tandem::engine
