#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/json.h"
#include "engine/model/families/family.h"
#include "engine/model/families/missing_parts.h"
#include "engine/model/families/text_part.h"

// THE list: a family is one file in a folder below, a namespace of the file's name, and one line
// here. A macro, because each constant of another file needs a declaration as well as its entry.
#define TANDEM_FAMILIES(FAMILY) \
  FAMILY(llama)                 \
  FAMILY(mistral)               \
  FAMILY(qwen2)                 \
  FAMILY(qwen3)                 \
  FAMILY(gemma)                 \
  FAMILY(gemma2)                \
  FAMILY(gemma3)                \
  FAMILY(gemma3n)               \
  FAMILY(gemma4)                \
  FAMILY(phi3)                  \
  FAMILY(olmo)                  \
  FAMILY(olmo2)                 \
  FAMILY(olmo3)                 \
  FAMILY(smollm3)               \
  FAMILY(granite)               \
  FAMILY(glm)                   \
  FAMILY(glm4)                  \
  FAMILY(seed_oss)              \
  FAMILY(arcee)                 \
  FAMILY(ministral3)            \
  FAMILY(gpt2)                  \
  FAMILY(mixtral)               \
  FAMILY(olmoe)                 \
  FAMILY(qwen3_moe)             \
  FAMILY(deepseek_v2)           \
  FAMILY(deepseek_v3)           \
  FAMILY(stablelm)              \
  FAMILY(starcoder2)            \
  FAMILY(cohere)                \
  FAMILY(cohere2)               \
  FAMILY(nemotron)              \
  FAMILY(phi)                   \
  FAMILY(gpt_neox)              \
  FAMILY(gptj)                  \
  FAMILY(helium)                \
  FAMILY(ernie4_5)              \
  FAMILY(internlm3)             \
  FAMILY(hunyuan)               \
  FAMILY(exaone)                \
  FAMILY(exaone4)               \
  FAMILY(qwen2_moe)             \
  FAMILY(glm4_moe)              \
  FAMILY(ernie4_5_moe)          \
  FAMILY(minimax_m2)            \
  FAMILY(granitemoe)            \
  FAMILY(gpt_oss)               \
  FAMILY(lfm2)                  \
  FAMILY(qwen3_5)               \
  FAMILY(qwen3_5_moe)           \
  FAMILY(qwen3_next)            \
  FAMILY(minigpt)               \
  FAMILY(granitemoehybrid)      \
  FAMILY(mamba2)                \
  FAMILY(falcon_h1)             \
  FAMILY(bamba)                 \
  FAMILY(nemotron_h)            \
  FAMILY(llama4)

namespace tandem::engine {

#define TANDEM_DECLARE(family)     \
  namespace family {               \
  extern const FamilySpec kFamily; \
  }
#define TANDEM_ADDRESS(family) &family::kFamily,
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

// The family that lists this architecture or type; null for none.
const FamilySpec* FamilyOf(std::string_view architecture) {
  for (const FamilySpec* family : Families()) {
    const auto& names = family->architectures;
    if (std::find(names.begin(), names.end(), architecture) != names.end()) return family;
  }
  return nullptr;
}

// Throws for a model of class `architecture`, of which the part `what` has the type or class
// `needed`.
[[noreturn]] void Refuse(const std::string& what, const std::string& architecture,
                         const std::string& needed, const std::string& source) {
  std::string text = source + ": " + what + " " + Quoted(architecture) + " ";
  const std::string_view missing = MissingPart(needed);
  text += missing.empty() ? "is not supported"
                          : "needs a part that does not exist here: " + std::string(missing);
  text += "; supported are ";
  for (const FamilySpec* family : Families()) {
    if (family != Families().front()) text += ", ";
    text += family->architectures.front();
  }
  text += "; 'tandem models --families' tells what each can do";
  throw Error(ErrorCode::kUnsupported, text);
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
  const FamilySpec* named = FamilyOf(wanted);
  if (named == nullptr && HasTextPart(wanted)) {
    std::string type;
    ReadTextPart(config, wanted, source, &type);
    const FamilySpec* family = FamilyOf(type);
    if (family == nullptr) Refuse("text part " + Quoted(type) + " of", wanted, type, source);
    return *family;
  }
  if (named == nullptr) Refuse("architecture", wanted, wanted, source);
  // transformers saves some families as another one's class; it reads them by their type.
  const FamilySpec* typed = FamilyOf(JsonStringOr(config, "model_type", "", source));
  return typed == nullptr ? *named : *typed;
}

ModelConfig ParseModelConfig(const FamilySpec& family, const nlohmann::ordered_json& config,
                             const std::string& source) {
  const std::string architecture = ArchitectureOf(config, source);
  if (FamilyOf(architecture) != nullptr || !HasTextPart(architecture)) {
    return family.parse_config(config, source);
  }
  std::string type;
  return family.parse_config(ReadTextPart(config, architecture, source, &type), source);
}

bool IsMultimodal(const nlohmann::ordered_json& config, const std::string& source) {
  return config.contains("text_config") || HasTextPart(ArchitectureOf(config, source));
}

std::vector<RopeSpec> FamilyRopes(const FamilySpec& family, const ModelConfig& config) {
  std::vector<RopeSpec> ropes = family.list_ropes(config);
  for (RopeSpec& rope : ropes) {
    if (rope.head_dim == 0) rope.head_dim = config.attention.head_dim;
  }
  return ropes;
}

std::vector<RopeTable> MakeRopeTables(const FamilySpec& family, const ModelConfig& config,
                                      int64_t max_positions) {
  // Ropes that depend on the context length take that of their tables.
  ModelConfig shortened = config;
  shortened.max_context_len = max_positions;
  std::vector<RopeTable> tables;
  for (const RopeSpec& rope : FamilyRopes(family, shortened)) {
    tables.emplace_back(rope.frequencies, max_positions, rope.amplitude,
                        RopeForm{rope.head_dim, rope.interleaved, rope.growth, rope.growth_period,
                                 rope.growth_shift});
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
