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

constexpr std::string_view kLayerKind = "{s}";
constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kKernel = ".kernel";

// Whether the text follows a pattern in which `{}` and `{E}` are numbers. `layer` gets the first.
bool Follows(std::string_view text, std::string_view pattern, std::optional<int64_t>* layer) {
  while (!pattern.empty()) {
    if (pattern.front() != '{') {
      if (text.empty() || text.front() != pattern.front()) return false;
      text.remove_prefix(1);
      pattern.remove_prefix(1);
      continue;
    }
    int64_t number = 0;
    const auto [stop, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failed != std::errc() || number < 0) return false;
    if (!layer->has_value()) *layer = number;
    text.remove_prefix(static_cast<size_t>(stop - text.data()));
    pattern.remove_prefix(pattern.find('}') + 1);
  }
  return text.empty();
}

// The layer of a path that follows the rule of a linear layer; nullopt for another path.
std::optional<int64_t> LayerOf(const std::string& path, const engine::MaxTextRule& rule) {
  std::string_view pattern = rule.tensor;
  if (!pattern.ends_with(kWeight)) return std::nullopt;
  pattern.remove_suffix(kWeight.size());
  std::optional<int64_t> layer;
  return Follows(path, pattern, &layer) ? layer : std::nullopt;
}

// "self_attention{s}.query.kernel" to "self_attention_local/query".
std::string ModuleOf(std::string_view leaf, std::string_view kind) {
  if (leaf.ends_with(kKernel)) leaf.remove_suffix(kKernel.size());  // experts have none
  std::string module(leaf);
  if (const size_t at = module.find(kLayerKind); at != std::string::npos) {
    module.replace(at, kLayerKind.size(), kind);
  }
  std::replace(module.begin(), module.end(), '.', '/');
  return module;
}

std::string Numbered(std::string_view name, int64_t number) {
  return std::string(name) + std::to_string(number) + "/";
}

void AddDenseFirstNames(int64_t layer, int64_t n_dense_layers, const std::string& module,
                        std::string_view expert_block, std::vector<std::string>* names) {
  if (layer < n_dense_layers) {
    names->push_back("decoder/dense_layers/" + module);
    names->push_back(Numbered("decoder/dense_layers_", layer) + module);
    return;
  }
  names->push_back("decoder/moe_layers/" + module);
  names->push_back(Numbered("decoder/moe_layers_", layer - n_dense_layers) + module);
  // MaxText's recommended expression.
  const std::string block = std::string(expert_block) + "/";
  names->push_back("decoder/moe_stack/" +
                   module.substr(module.starts_with(block) ? block.size() : 0));
}

void AddMaxTextNames(const engine::LoraNames& names_of, const std::string& path,
                     int64_t n_dense_layers, std::vector<std::string>* names) {
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
    if (names_of.blocks == engine::MaxTextBlocks::kDenseFirst) {
      AddDenseFirstNames(layer, n_dense_layers, module, names_of.expert_block, names);
      return;
    }
    const bool is_cycle = names_of.blocks == engine::MaxTextBlocks::kCycle;
    if (!is_cycle) names->push_back("decoder/layers/" + module);
    names->push_back(Numbered("decoder/layers_", layer) + module);
    if (is_cycle) {
      names->push_back("decoder/layers/" + Numbered(names_of.cycle_layer, layer % names_of.cycle) +
                       module);
    }
    if (names_of.blocks == engine::MaxTextBlocks::kSixes) {
      names->push_back("decoder/layers/" + Numbered("layers_", layer % kGroup) + module);
    }
    return;
  }
}

}  // namespace

std::vector<std::string> NamesOfModule(const engine::FamilySpec& family, const std::string& path,
                                       int64_t n_dense_layers) {
  std::vector<std::string> names = {path};
  std::string slashes = path;
  std::replace(slashes.begin(), slashes.end(), '.', '/');
  names.push_back(std::move(slashes));
  if (family.lora != nullptr) AddMaxTextNames(*family.lora, path, n_dense_layers, &names);
  return names;
}

}  // namespace tandem::training
