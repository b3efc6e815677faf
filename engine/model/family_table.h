#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/model/families/family.h"

namespace tandem::engine {

// What the program does with the models of a family. Each fact follows from the family's
// registration; tests do each of them with a model of every family.
struct FamilySupport {
  bool serve = false;
  bool train = false;
  bool lora = false;
  bool gguf_in = false;
  bool gguf_out = false;
  bool maxtext_in = false;
  bool maxtext_out = false;
};
FamilySupport SupportOf(const FamilySpec& family);

// The columns of FamilySupport, for heads of tables.
struct SupportColumn {
  const char* title;  // "GGUF in"
  const char* key;    // of JSON: "gguf_in"
  bool FamilySupport::*value;
};
std::span<const SupportColumn> SupportColumns();

// All families, sorted by the names of their models.
std::vector<const FamilySpec*> FamiliesByModels();

// The table of all families in Markdown, as README.md has it.
std::string FamilyTable();

}  // namespace tandem::engine
