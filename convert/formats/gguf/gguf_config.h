#pragma once

#include <string>

#include "convert/formats/gguf/gguf_writer.h"
#include "engine/formats/gguf/gguf_names.h"
#include "engine/model/config.h"

namespace tandem::convert {

// A model's configuration as keys of GGUF. `source` is used in messages.

// The architecture that computes what the configuration says. Throws kUnsupported where there is
// none: families without one, and settings that programs which read GGUF fix otherwise.
const engine::GgufArchitecture& GgufArchitectureFor(const engine::ModelConfig& config,
                                                    const std::string& source);

// `general.architecture` and all of `<architecture>.*`.
void AddGgufConfig(const engine::GgufArchitecture& architecture, const engine::ModelConfig& config,
                   GgufKeys& keys);

// What divides the frequencies of a rope as Llama 3's releases have it, for `rope_freqs.weight`;
// empty for other ropes.
std::vector<float> GgufRopeDivisors(const engine::ModelConfig& config);

// The first setting in which two configurations compute differently; empty: none. Training's own
// settings and the tokens that end an answer are not looked at.
std::string FirstDifference(const engine::ModelConfig& a, const engine::ModelConfig& b);

}  // namespace tandem::convert
