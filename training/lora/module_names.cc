#include "training/lora/module_names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <utility>

namespace tandem::training {
namespace {

constexpr std::string_view kLayers = "model.layers.";

struct MaxTextName {
  std::string_view ours;
  std::string_view block;
  std::string_view leaf;
};
constexpr std::array kMaxTextNames = {
    MaxTextName{"self_attn.q_proj", "self_attention", "query"},
    MaxTextName{"self_attn.k_proj", "self_attention", "key"},
    MaxTextName{"self_attn.v_proj", "self_attention", "value"},
    MaxTextName{"self_attn.o_proj", "self_attention", "out"},
    MaxTextName{"mlp.gate_proj", "mlp", "wi_0"},
    MaxTextName{"mlp.up_proj", "mlp", "wi_1"},
    MaxTextName{"mlp.down_proj", "mlp", "wo"},
};

void AddMaxTextNames(std::string_view family, const std::string& path,
                     std::vector<std::string>* names) {
  if (!path.starts_with(kLayers)) return;
  int64_t layer = 0;
  const char* end = path.data() + path.size();
  const auto [stop, failed] = std::from_chars(path.data() + kLayers.size(), end, layer);
  if (failed != std::errc() || stop == end) return;
  const std::string_view rest(stop + 1, static_cast<size_t>(end - stop - 1));
  const auto found = std::find_if(kMaxTextNames.begin(), kMaxTextNames.end(),
                                  [&](const MaxTextName& name) { return name.ours == rest; });
  if (found == kMaxTextNames.end()) return;
  std::string block(found->block);
  if (family == "gemma2") {
    block += layer % 2 == 0 ? "_local" : "_global";
    layer /= 2;
  }
  const std::string module = block + "/" + std::string(found->leaf);
  names->push_back("decoder/layers/" + module);
  names->push_back("decoder/layers_" + std::to_string(layer) + "/" + module);
  if (family == "gemma3") {
    names->push_back("decoder/layers/layers_" + std::to_string(layer % 6) + "/" + module);
  }
}

}  // namespace

std::vector<std::string> NamesOfModule(std::string_view family, const std::string& path) {
  std::vector<std::string> names = {path};
  std::string slashes = path;
  std::replace(slashes.begin(), slashes.end(), '.', '/');
  names.push_back(std::move(slashes));
  AddMaxTextNames(family, path, &names);
  return names;
}

}  // namespace tandem::training
