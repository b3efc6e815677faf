#include "engine/formats/gguf/gguf_names.h"

#include <algorithm>
#include <span>
#include <utility>

namespace tandem::engine {
namespace {

constexpr std::string_view kBlock = "blk.";

constexpr size_t kExpertDigits = 6;

// Whether `name` is `pattern`. Sets `expert` to the digits in the place of kExpertMark.
bool Fits(std::string_view pattern, std::string_view name, std::string* expert) {
  const size_t mark = pattern.find(kExpertMark);
  if (mark == std::string_view::npos) return pattern == name;
  const std::string_view end = pattern.substr(mark + kExpertMark.size());
  if (name.size() <= mark + end.size() || !name.ends_with(end) ||
      name.substr(0, mark) != pattern.substr(0, mark)) {
    return false;
  }
  const std::string_view digits = name.substr(mark, name.size() - end.size() - mark);
  if (digits.size() > kExpertDigits || (digits.size() > 1 && digits[0] == '0') ||
      digits.find_first_not_of("0123456789") != std::string_view::npos) {
    return false;
  }
  *expert = digits;
  return true;
}

struct Direction {
  std::string_view GgufPart::*from;
  std::string_view GgufPart::*to;
};

// Adds the new names of "attn_q" and `ending`.
void Rename(std::span<const GgufPart> parts, Direction way, std::string_view prefix,
            std::string_view name, std::string_view ending, std::vector<GgufName>* names) {
  for (const GgufPart& part : parts) {
    std::string expert;
    if (!Fits(part.*way.from, name, &expert)) continue;
    GgufName renamed{.name = std::string(prefix) + std::string(part.*way.to),
                     .change = part.change,
                     .rows = part.rows,
                     .columns = part.columns};
    const size_t mark = renamed.name.find(kExpertMark);
    if (!expert.empty() && mark != std::string::npos) {
      renamed.name.replace(mark, kExpertMark.size(), expert);
    } else if (!expert.empty()) {
      renamed.expert = std::stoll(expert);
    }
    renamed.name += ending;
    // A norm's scale is stored minus 1, its bias is not.
    if (ending == ".bias" && renamed.change == GgufChange::kPlus1) {
      renamed.change = GgufChange::kNone;
    }
    names->push_back(std::move(renamed));
  }
}

// Renames a whole name, or else the part before the last dot: "attn_q.weight" ->
// "self_attn.q_proj.weight".
std::vector<GgufName> Rename(std::span<const GgufPart> parts, Direction way,
                             std::string_view prefix, std::string_view name) {
  std::vector<GgufName> names;
  Rename(parts, way, prefix, name, "", &names);
  const size_t dot = name.rfind('.');
  if (!names.empty() || dot == std::string_view::npos) return names;
  Rename(parts, way, prefix, name.substr(0, dot), name.substr(dot), &names);
  return names;
}

// Renames "blk.3.attn_q.weight" to "model.layers.3.self_attn.q_proj.weight", or back.
std::vector<GgufName> RenameInBlock(std::span<const GgufPart> parts, Direction way,
                                    std::string_view old_block, std::string_view new_block,
                                    std::string_view name) {
  const std::string_view rest = name.substr(old_block.size());
  const size_t dot = rest.find('.');
  if (dot == std::string_view::npos) return {};
  return Rename(parts, way, std::string(new_block) + std::string(rest.substr(0, dot + 1)),
                rest.substr(dot + 1));
}

constexpr Direction kToHf = {&GgufPart::gguf, &GgufPart::hf};
constexpr Direction kToGguf = {&GgufPart::hf, &GgufPart::gguf};

}  // namespace

const GgufArchitecture& GgufArchitectureOf(const FamilySpec& family, bool has_experts) {
  const GgufArchitecture* with_experts = family.gguf->with_experts;
  return has_experts && with_experts != nullptr ? *with_experts : *family.gguf;
}

const GgufArchitecture& GgufArchitectureOf(const FamilySpec& family, const ModelConfig& config) {
  bool has_experts = false;
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    has_experts = has_experts || config.HasExperts(layer);
  }
  return GgufArchitectureOf(family, has_experts);
}

const FamilySpec* FindGgufFamily(std::string_view architecture) {
  for (const FamilySpec* family : Families()) {
    if (family->gguf == nullptr) continue;
    for (const bool has_experts : {false, true}) {
      if (GgufArchitectureOf(*family, has_experts).name == architecture) return family;
    }
  }
  return nullptr;
}

std::string GgufArchitectureNames() {
  std::vector<std::string_view> names;
  for (const FamilySpec* family : Families()) {
    if (family->gguf == nullptr) continue;
    for (const bool has_experts : {false, true}) {
      const std::string_view name = GgufArchitectureOf(*family, has_experts).name;
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  std::string all;
  for (const std::string_view name : names) all += (all.empty() ? "" : ", ") + std::string(name);
  return all;
}

std::vector<GgufName> HfNamesOf(const GgufArchitecture& a, std::string_view gguf) {
  std::vector<GgufName> names = gguf.starts_with(kBlock)
                                    ? RenameInBlock(a.parts, kToHf, kBlock, a.block, gguf)
                                    : Rename(a.ends, kToHf, "", gguf);
  if (names.empty()) names.push_back({std::string(gguf)});
  return names;
}

GgufName HfNameOf(const GgufArchitecture& a, std::string_view gguf) {
  return std::move(HfNamesOf(a, gguf).front());
}

std::vector<GgufName> GgufNamesOf(const GgufArchitecture& a, std::string_view hf) {
  std::vector<GgufName> names = hf.starts_with(a.block)
                                    ? RenameInBlock(a.parts, kToGguf, a.block, kBlock, hf)
                                    : Rename(a.ends, kToGguf, "", hf);
  size_t n_taken = std::min<size_t>(names.size(), 1);
  if (!names.empty() && names.front().IsPart()) {
    while (n_taken < names.size() && names[n_taken].IsPart()) ++n_taken;
  }
  names.resize(n_taken);
  return names;
}

}  // namespace tandem::engine
