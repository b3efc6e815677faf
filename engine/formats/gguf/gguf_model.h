#pragma once

#include "engine/formats/gguf/gguf.h"
#include "engine/formats/stored/single_file_model.h"

namespace tandem::engine {

// Reads a GGUF file with all its parts, by the architectures of the families
// (engine/model/families). For any other architecture, and for a file without tensors, only the
// tokenizer is readable.
SingleFileModel ReadGgufModel(GgufFile gguf);

}  // namespace tandem::engine
