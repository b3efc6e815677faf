#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "engine/formats/stored/stored_tensor.h"

namespace tandem::engine {

// A GGUF or llama2.c file presented as the files of a Hugging Face directory. Tensors have the
// names that families use. config.json and the tokenizer files are texts generated from the file's
// metadata. The file's bytes must outlive it. Any thread.
struct SingleFileModel {
  std::map<std::string, StoredTensor, std::less<>> tensors;
  // Returns the text of a file of that directory, or nullopt when it does not exist. Throws
  // kDataLoss or kUnsupported naming the file and the metadata at fault.
  std::function<std::optional<std::string>(std::string_view file_name)> read_text;
};

}  // namespace tandem::engine
