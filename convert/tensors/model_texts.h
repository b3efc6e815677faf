#pragma once

#include <map>
#include <string>

#include "convert/tensors/model_source.h"

namespace tandem::convert {

// The small files that belong to a model besides its weights: config, tokenizer, chat template, as
// the source has them; config.json with `dtype` of the weights, if it is given.
std::map<std::string, std::string> TextsOf(const ModelSource& source,
                                           std::optional<engine::DType> dtype);

}  // namespace tandem::convert
