#include "training/lora/module_names.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/model/families/maxtext_tree.h"

namespace tandem::training {
namespace {

constexpr std::string_view kLayer = "{}";
constexpr std::string_view kLayerKind = "{s}";
constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kKernel = ".kernel";

// The layer of a path that follows the rule of a linear layer; nullopt for another path.
std::optional<int64_t> LayerOf(const std::string& path, const engine::MaxTextRule& rule) {
  const size_t mark = rule.tensor.find(kLayer);
  if (mark == std::string_view::npos || !rule.tensor.ends_with(kWeight)) return std::nullopt;
  const std::string_view prefix = rule.tensor.substr(0, mark);
  std::string_view suffix = rule.tensor.substr(mark + kLayer.size());
  suffix.remove_suffix(kWeight.size());
  if (path.size() <= prefix.size() + suffix.size() || !path.starts_with(prefix) ||
      !path.ends_with(suffix)) {
    return std::nullopt;
  }
  int64_t layer = 0;
  const char* end = path.data() + path.size() - suffix.size();
  const auto [stop, failed] = std::from_chars(path.data() + prefix.size(), end, layer);
  if (failed != std::errc() || stop != end || layer < 0) return std::nullopt;
  return layer;
}

// "self_attention{s}.query.kernel" to "self_attention_local/query".
std::string ModuleOf(std::string_view leaf, std::string_view kind) {
  std::string module(leaf.substr(0, leaf.size() - kKernel.size()));
  if (const size_t at = module.find(kLayerKind); at != std::string::npos) {
    module.replace(at, kLayerKind.size(), kind);
  }
  std::replace(module.begin(), module.end(), '.', '/');
  return module;
}

void AddMaxTextNames(const engine::LoraNames& names_of, const std::string& path,
                     std::vector<std::string>* names) {
  constexpr int64_t kGroup = 6;
  for (const engine::MaxTextRule& rule : names_of.rules) {
    const std::optional<int64_t> found = LayerOf(path, rule);
    if (!found) continue;
    int64_t layer = *found;
    std::string_view kind;
    if (names_of.blocks == engine::MaxTextBlocks::kPairs) {
      kind = layer % 2 == 0 ? "_local" : "_global";
      layer /= 2;
    }
    const std::string module = ModuleOf(rule.leaf, kind);
    names->push_back("decoder/layers/" + module);
    names->push_back("decoder/layers_" + std::to_string(layer) + "/" + module);
    if (names_of.blocks == engine::MaxTextBlocks::kSixes) {
      names->push_back("decoder/layers/layers_" + std::to_string(layer % kGroup) + "/" + module);
    }
    return;
  }
}

}  // namespace

std::vector<std::string> NamesOfModule(const engine::FamilySpec& family, const std::string& path) {
  std::vector<std::string> names = {path};
  std::string slashes = path;
  std::replace(slashes.begin(), slashes.end(), '.', '/');
  names.push_back(std::move(slashes));
  if (family.lora != nullptr) AddMaxTextNames(*family.lora, path, &names);
  return names;
}

}  // namespace tandem::training
