#pragma once

#include <string>

#include "convert/formats/gguf/gguf_writer.h"
#include "engine/formats/gguf/gguf_names.h"
#include "engine/model/families/config.h"

namespace tandem::convert {

// Maps a model's configuration to GGUF keys. `source` is named in messages.

// Returns the architecture of the configuration's family. Throws kUnsupported for a family without
// one, and for a setting beyond its limits.
const engine::GgufArchitecture& GgufArchitectureFor(const engine::ModelConfig& config,
                                                    const std::string& source);

// Adds `general.architecture` and the keys `<architecture>.*`.
void AddGgufConfig(const engine::GgufArchitecture& architecture, const engine::ModelConfig& config,
                   GgufKeys& keys);

// The divisors of rope frequencies, by tensor; none for ropes that keys express.
struct GgufRopeTensor {
  std::string_view name;
  std::vector<float> divisors;
};
std::vector<GgufRopeTensor> GgufRopeTensors(const engine::GgufArchitecture& architecture,
                                            const engine::ModelConfig& config);

// Names the first setting in which two configurations compute differently, or returns an empty
// string. Ignores training settings and the tokens that end an answer.
std::string FirstDifference(const engine::ModelConfig& a, const engine::ModelConfig& b);

}  // namespace tandem::convert
