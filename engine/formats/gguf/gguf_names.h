#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"

namespace tandem::engine {

// Names in GGUF files, by the architectures of the families. Reading and writing share them.

// The first family with this architecture; null: none.
const FamilySpec* FindGgufFamily(std::string_view architecture);
// Each architecture once: "llama, qwen2, …".
std::string GgufArchitectureNames();

struct GgufName {
  std::string name;
  GgufChange change = GgufChange::kNone;
};
// The name that families use. An unknown name stays unchanged, so that errors can report it.
GgufName HfNameOf(const GgufArchitecture& architecture, std::string_view gguf);
// The name in a GGUF file; nullopt when the architecture has no such tensor.
std::optional<GgufName> GgufNameOf(const GgufArchitecture& architecture, std::string_view hf);

}  // namespace tandem::engine
