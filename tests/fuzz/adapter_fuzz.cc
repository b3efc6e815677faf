// An adapter: the text of adapter_config.json up to the first zero byte, then
// adapter_model.safetensors. An accepted adapter has pairs of matrices of one rank, under different
// paths.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>

#include "engine/adapter/lora_adapter.h"
#include "tests/fuzz/strangers_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::engine;
  const uint8_t* const end = std::find(data, data + size, uint8_t{0});
  const std::string config(data, end);
  const std::span all(reinterpret_cast<const std::byte*>(data), size);
  const auto weights = all.subspan(std::min(config.size() + 1, size));
  ReadStrangersFile([&] {
    const LoraAdapter adapter =
        LoraAdapter::FromParts("fuzz", config, SafetensorsFile::FromBytes(weights, "fuzz"));
    Require(!adapter.modules().empty());
    std::set<std::string> paths;
    for (const LoraModule& module : adapter.modules()) {
      Require(paths.insert(module.path).second);
      Require(module.rank >= 1 && module.rank <= LoraAdapter::kMaxRank);
      Require(std::isfinite(module.scale) && module.scale >= 0);
      Require(module.a.shape.size() == 2 && module.a.shape[0] == module.rank);
      Require(module.b.shape.size() == 2 && module.b.shape[1] == module.rank);
    }
  });
  return 0;
}
