#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/json.h"
#include "engine/model/families/family.h"

// THE list: a family is one file in a folder below and one line here. A macro, because each
// constant of another file needs a declaration as well as its entry in the table.
#define TANDEM_FAMILIES(FAMILY) \
  FAMILY(kLlamaFamily)          \
  FAMILY(kMistralFamily)        \
  FAMILY(kQwen2Family)          \
  FAMILY(kQwen3Family)          \
  FAMILY(kGemmaFamily)          \
  FAMILY(kGemma2Family)         \
  FAMILY(kGemma3Family)         \
  FAMILY(kGpt2Family)           \
  FAMILY(kMiniGptFamily)

namespace tandem::engine {

#define TANDEM_DECLARE(family) extern const FamilySpec family;
#define TANDEM_ADDRESS(family) &family,
TANDEM_FAMILIES(TANDEM_DECLARE)

namespace {

std::vector<const FamilySpec*>& Table() {
  static std::vector<const FamilySpec*> families = {TANDEM_FAMILIES(TANDEM_ADDRESS)};
  return families;
}

// The config's architecture: `architectures[0]`, or `model_type` when that list is missing.
std::string ArchitectureOf(const nlohmann::ordered_json& config, const std::string& source) {
  if (!config.is_object()) {
    throw Error(ErrorCode::kDataLoss, source + ": expected a JSON object");
  }
  const auto found = config.find("architectures");
  if (found != config.end() && found->is_array() && !found->empty() && found->front().is_string()) {
    return found->front().get<std::string>();
  }
  return JsonStringOr(config, "model_type", "", source);
}

}  // namespace

std::span<const FamilySpec* const> Families() { return Table(); }

std::string FamilyNames(bool (*has)(const FamilySpec& family)) {
  std::string names;
  for (const FamilySpec* family : Families()) {
    if (has(*family)) names += (names.empty() ? "" : ", ") + std::string(family->name);
  }
  return names;
}

FamilyRegistration::FamilyRegistration(const FamilySpec& family) : family_(&family) {
  Table().push_back(family_);
}

FamilyRegistration::~FamilyRegistration() { std::erase(Table(), family_); }

const FamilySpec& FindFamily(const nlohmann::ordered_json& config, const std::string& source) {
  const std::string wanted = ArchitectureOf(config, source);
  std::string supported;
  for (const FamilySpec* family : Families()) {
    for (const std::string_view architecture : family->architectures) {
      if (architecture == wanted) return *family;
    }
    supported += (supported.empty() ? "" : ", ") + std::string(family->architectures.front());
  }
  throw Error(ErrorCode::kUnsupported, source + ": architecture " + Quoted(wanted) +
                                           " is not supported; supported are " + supported);
}

std::vector<RopeTable> MakeRopeTables(const FamilySpec& family, const ModelConfig& config,
                                      int64_t max_positions) {
  std::vector<RopeTable> tables;
  for (const RopeSpec& rope : family.list_ropes(config)) {
    tables.emplace_back(rope.frequencies, max_positions, rope.amplitude);
  }
  return tables;
}

const FamilySpec& DefaultFreshFamily() {
  const auto found =
      std::find_if(Families().begin(), Families().end(),
                   [](const FamilySpec* family) { return family->fresh != nullptr; });
  TANDEM_CHECK(found != Families().end());
  return **found;
}

const FamilySpec& FindFamilyByName(std::string_view name) {
  for (const FamilySpec* family : Families()) {
    if (family->name == name) return *family;
  }
  throw Error(ErrorCode::kUnsupported, "unknown model family '" + std::string(name) + "'");
}

}  // namespace tandem::engine
