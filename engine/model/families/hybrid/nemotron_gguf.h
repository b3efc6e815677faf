#pragma once

#include <cstdint>

#include "engine/model/families/config.h"
#include "engine/model/families/gguf_architecture.h"

namespace tandem::engine::nemotron_h {

// Every layer is one of these.
enum class Mixer : uint8_t { kMamba, kAttention, kMlp, kExperts };
Mixer MixerOf(const ModelConfig& config, int64_t layer);

// Nemotron-H in GGUF files. Models with experts have an architecture of their own.
extern const GgufArchitecture kGguf;

}  // namespace tandem::engine::nemotron_h
