#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"

namespace tandem::engine {

// Names in GGUF files, by the architectures of the families. Reading and writing share them.

// The family's architecture of models with or without experts. REQUIRES: GGUF has the family.
const GgufArchitecture& GgufArchitectureOf(const FamilySpec& family, bool has_experts);
const GgufArchitecture& GgufArchitectureOf(const FamilySpec& family, const ModelConfig& config);
// The first family with this architecture; null: none.
const FamilySpec* FindGgufFamily(std::string_view architecture);
// Each architecture once: "llama, qwen2, …".
std::string GgufArchitectureNames();

struct GgufName {
  std::string name;
  GgufChange change = GgufChange::kNone;
  int64_t expert = -1;  // in a GGUF file: the slice of the tensor, which stacks all experts
  const GgufOrder* rows = nullptr;
  const GgufOrder* columns = nullptr;

  bool IsPart() const {
    return change == GgufChange::kLatentKeys || change == GgufChange::kLatentValues ||
           (rows != nullptr && rows->is_part);
  }
};
// The names that families use. Names of a stacked tensor contain kExpertMark. An unknown name stays
// unchanged, so that errors can report it.
std::vector<GgufName> HfNamesOf(const GgufArchitecture& architecture, std::string_view gguf);
// The first of them.
GgufName HfNameOf(const GgufArchitecture& architecture, std::string_view gguf);
// The names in a GGUF file, several for a tensor that the file has in parts. Empty when the
// architecture has no such tensor.
std::vector<GgufName> GgufNamesOf(const GgufArchitecture& architecture, std::string_view hf);

}  // namespace tandem::engine
