#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "engine/formats/stored/stored_tensor.h"

namespace tandem::engine {

using StoredTensors = std::map<std::string, StoredTensor, std::less<>>;

// Presents the tensors of a quantised Hugging Face checkpoint as the weights that they hold:
// integers, scales and zero points become one tensor under the weight's name. Tensors that only
// serve arithmetic we do not use (scales of activations and of the KV cache) disappear. Reads
// `quantization_config` of config.json; without one, changes nothing. Methods: fp8, mxfp4, awq,
// gptq, compressed-tensors, bitsandbytes, fbgemm_fp8, modelopt (FP8 only).
//
// Throws kUnsupported for other methods and settings, naming the field, and kDataLoss for missing
// and misshapen tensors, naming tensor and field. `source` names config.json, `model` the model.
void JoinQuantized(const nlohmann::ordered_json& config, const std::string& source,
                   const std::string& model, StoredTensors* tensors);

// Whether the text of config.json has such a field.
bool MayBeQuantized(std::string_view config);

}  // namespace tandem::engine
