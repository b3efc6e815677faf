#include "engine/model/family_table.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <vector>

#include "engine/model/families/gguf_architecture.h"

namespace tandem::engine {
namespace {

constexpr SupportColumn kColumns[] = {
    {"serve", "serve", &FamilySupport::serve},
    {"train", "train", &FamilySupport::train},
    {"LoRA", "lora", &FamilySupport::lora},
    {"GGUF in", "gguf_in", &FamilySupport::gguf_in},
    {"GGUF out", "gguf_out", &FamilySupport::gguf_out},
    {"MaxText in", "maxtext_in", &FamilySupport::maxtext_in},
    {"MaxText out", "maxtext_out", &FamilySupport::maxtext_out},
};

bool IsBefore(const FamilySpec* a, const FamilySpec* b) {
  return std::lexicographical_compare(
      a->models.begin(), a->models.end(), b->models.begin(), b->models.end(),
      [](unsigned char x, unsigned char y) { return std::tolower(x) < std::tolower(y); });
}

}  // namespace

FamilySupport SupportOf(const FamilySpec& family) {
  FamilySupport support;
  // One forward pass serves and trains. Adapters apply to every linear layer that it has.
  support.serve = support.train = support.lora = family.forward != nullptr;
  support.gguf_in = family.gguf != nullptr && family.gguf->read_config != nullptr;
  support.gguf_out = family.gguf != nullptr && family.gguf->write_config != nullptr;
  // One tree of names is read and written.
  support.maxtext_in = support.maxtext_out = family.maxtext != nullptr;
  return support;
}

std::span<const SupportColumn> SupportColumns() { return kColumns; }

std::vector<const FamilySpec*> FamiliesByModels() {
  std::vector<const FamilySpec*> families(Families().begin(), Families().end());
  std::stable_sort(families.begin(), families.end(), IsBefore);
  return families;
}

std::string FamilyTable() {
  std::string head = "| models | class |", rule = "|---|---|", rows;
  for (const SupportColumn& column : kColumns) {
    head += std::string(" ") + column.title + " |";
    rule += "---|";
  }
  for (const FamilySpec* family : FamiliesByModels()) {
    const FamilySupport support = SupportOf(*family);
    rows += "| " + std::string(family->models) + " | " +
            std::string(family->architectures.front()) + " |";
    for (const SupportColumn& column : kColumns) rows += support.*column.value ? " ✓ |" : " – |";
    rows += "\n";
  }
  return head + "\n" + rule + "\n" + rows;
}

}  // namespace tandem::engine
