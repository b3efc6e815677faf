// A checkpoint's manifest.json. An accepted manifest names plain files with sizes that are not
// negative, and survives a round trip. A stacked tensor's name gives layers of one shape under
// different names.

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "engine/formats/checkpoint_manifest.h"
#include "engine/formats/stored/stacked_tensors.h"
#include "tests/fuzz/strangers_file.h"

namespace {

using namespace tandem::engine;

void UseManifest(std::string_view text) {
  const CheckpointManifest manifest = ParseCheckpointManifest(text, "fuzz");
  Require(IsCheckpointManifest(text));
  for (const CheckpointManifest::File& file : manifest.files) {
    Require(!file.name.empty() && file.name.find('/') == std::string::npos && file.name != "..");
    Require(file.bytes >= 0 && file.sha256.size() == 64);
  }
  const CheckpointManifest again = ParseCheckpointManifest(manifest.ToJson(), "written");
  Require(again.kind == manifest.kind && again.layout == manifest.layout &&
          again.step == manifest.step && again.files.size() == manifest.files.size());
}

// The first byte is the number of layers; the rest is the name.
void UseStacked(std::string_view text) {
  if (text.empty() || !IsStackedName(text.substr(1))) return;
  const std::string name(text.substr(1));
  const int64_t n_layers = static_cast<uint8_t>(text.front());
  std::string bytes(static_cast<size_t>(n_layers) * 6, '\0');
  const ConstTensorView view{.data = reinterpret_cast<const std::byte*>(bytes.data()),
                             .dtype = DType::kBF16,
                             .shape = {n_layers, 3}};
  std::set<std::string> names;
  ForEachLayer(name, view, "fuzz", [&](const std::string& layer, const ConstTensorView& part) {
    Require(names.insert(layer).second);
    Require(part.shape == std::vector<int64_t>{3});
    Require(part.data >= view.data && part.data + part.bytes() <= view.data + bytes.size());
  });
  Require(static_cast<int64_t>(names.size()) == n_layers);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  ReadStrangersFile([&] { UseManifest(text); });
  ReadStrangersFile([&] { UseStacked(text); });
  return 0;
}
