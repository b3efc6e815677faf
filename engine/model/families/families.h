#pragma once

#include "engine/model/family.h"

namespace tandem::engine {

// One constant per file of this folder; families.cc lists them.
extern const FamilySpec kLlamaFamily;
extern const FamilySpec kMistralFamily;
extern const FamilySpec kQwen2Family;
extern const FamilySpec kQwen3Family;
extern const FamilySpec kGemmaFamily;
extern const FamilySpec kGemma2Family;
extern const FamilySpec kGemma3Family;
extern const FamilySpec kGpt2Family;
extern const FamilySpec kMiniGptFamily;

}  // namespace tandem::engine
