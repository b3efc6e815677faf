#pragma once

#include <map>
#include <string>

#include "convert/tensors/model_source.h"

namespace tandem::convert {

// Returns the small files of a model: config, tokenizer, chat template. They are unchanged, except
// that config.json names `dtype` if it is given.
std::map<std::string, std::string> TextsOf(const ModelSource& source,
                                           std::optional<engine::DType> dtype);

}  // namespace tandem::convert
