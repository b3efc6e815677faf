#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/families/weights.h"

namespace tandem::engine {

// The text part of multimodal checkpoints, which is all that is read of them.

// `text_config` with the keys outside of it that apply to the whole model; `json` itself where
// there is none. Throws kDataLoss naming `source` when it is no object.
nlohmann::ordered_json TextConfig(const nlohmann::ordered_json& json, const std::string& source);

// Adds the names that weights have inside a multimodal model, as the versions of transformers write
// them.
void AddMultimodalNames(std::vector<WeightSpec>& specs);

// Whether this class or model type has a text part that equals a family's model. The positions of a
// text without images are the same on all axes of a multimodal rope, so it is an ordinary one.
bool HasTextPart(std::string_view architecture);

// The config of the text part of such a model: `TextConfig` with the defaults of its class and
// without the axes of its rope. `type` gets the model type of a family that computes the part, or
// the part's own where none does. Throws kDataLoss naming `source` and 'text_config'.
nlohmann::ordered_json ReadTextPart(const nlohmann::ordered_json& json,
                                    std::string_view architecture, const std::string& source,
                                    std::string* type);

}  // namespace tandem::engine
