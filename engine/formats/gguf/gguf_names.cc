#include "engine/formats/gguf/gguf_names.h"

#include <span>

namespace tandem::engine {
namespace {

constexpr std::string_view kBlock = "blk.";

// Renames the part before the last dot and keeps the rest: "attn_q.weight" ->
// "self_attn.q_proj.weight".
std::optional<GgufName> Rename(std::span<const GgufPart> parts, std::string_view GgufPart::*from,
                               std::string_view GgufPart::*to, std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  for (const GgufPart& part : parts) {
    if (part.*from != name.substr(0, dot)) continue;
    return GgufName{std::string(part.*to) + std::string(name.substr(dot)), part.change};
  }
  return std::nullopt;
}

// Renames "blk.3.attn_q.weight" to "model.layers.3.self_attn.q_proj.weight", or back.
std::optional<GgufName> RenameInBlock(std::span<const GgufPart> parts,
                                      std::string_view GgufPart::*from,
                                      std::string_view GgufPart::*to, std::string_view old_block,
                                      std::string_view new_block, std::string_view name) {
  const std::string_view rest = name.substr(old_block.size());
  const size_t dot = rest.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  auto part = Rename(parts, from, to, rest.substr(dot + 1));
  if (part) part->name.insert(0, std::string(new_block) + std::string(rest.substr(0, dot + 1)));
  return part;
}

}  // namespace

const FamilySpec* FindGgufFamily(std::string_view architecture) {
  for (const FamilySpec* family : Families()) {
    if (family->gguf != nullptr && family->gguf->name == architecture) return family;
  }
  return nullptr;
}

std::string GgufArchitectureNames() {
  std::string names;
  for (const FamilySpec* family : Families()) {
    if (family->gguf == nullptr || FindGgufFamily(family->gguf->name) != family) continue;
    names += (names.empty() ? "" : ", ") + std::string(family->gguf->name);
  }
  return names;
}

GgufName HfNameOf(const GgufArchitecture& a, std::string_view gguf) {
  const auto renamed =
      gguf.starts_with(kBlock)
          ? RenameInBlock(a.parts, &GgufPart::gguf, &GgufPart::hf, kBlock, a.block, gguf)
          : Rename(a.ends, &GgufPart::gguf, &GgufPart::hf, gguf);
  return renamed.value_or(GgufName{std::string(gguf), GgufChange::kNone});
}

std::optional<GgufName> GgufNameOf(const GgufArchitecture& a, std::string_view hf) {
  return hf.starts_with(a.block)
             ? RenameInBlock(a.parts, &GgufPart::hf, &GgufPart::gguf, a.block, kBlock, hf)
             : Rename(a.ends, &GgufPart::hf, &GgufPart::gguf, hf);
}

}  // namespace tandem::engine
