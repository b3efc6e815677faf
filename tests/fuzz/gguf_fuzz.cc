// A GGUF or llama2.c file: the container, its model description, the weights of its family and its
// tokenizer.

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "engine/formats/model_dir.h"
#include "engine/io/json.h"
#include "engine/model/families/family.h"
#include "engine/model/find_weight.h"
#include "tests/fuzz/tokenizer_use.h"

namespace {

using namespace tandem::engine;

constexpr int64_t kListedWeights = 4096;

// Weights of the family that the file has, parts of stacked experts included, decode to their last
// number.
void UseWeights(const ModelDir& model, size_t file_bytes) {
  const std::optional<std::string> text = model.ReadText("config.json");
  if (!text) return;
  const nlohmann::ordered_json json = ParseUntrustedJson(*text, "fuzz");
  const FamilySpec& family = FindFamily(json, "fuzz");
  const ModelConfig config = ParseModelConfig(family, json, "fuzz");
  if (config.n_layers * (config.experts.router.n_experts + 1) > kListedWeights) return;
  for (const WeightSpec& spec : family.list_weights(config)) {
    ReadStrangersFile([&] {
      const std::optional<StoredTensor> stored = FindWeight(model, spec);
      if (!stored) return;
      Require(static_cast<size_t>(stored->view.elements()) <= file_bytes * 6);
      Require(DecodeTensor(*stored).size() == static_cast<size_t>(stored->view.elements()));
    });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  ReadStrangersFile([&] {
    const ModelDir model = ModelDir::FromBytes("fuzz", bytes);
    // Every described tensor is readable to its last byte.
    for (const std::string& name : model.tensor_names()) {
      const StoredTensor& tensor = *model.FindStored(name);
      // The smallest blocks (IQ1_S) have five numbers in a byte.
      Require(static_cast<size_t>(tensor.view.elements()) <= size * 6);
      Require(DecodeTensor(tensor).size() == static_cast<size_t>(tensor.view.elements()));
    }
    ReadStrangersFile([&] { UseWeights(model, size); });
    ReadStrangersFile([&] { model.ReadText("generation_config.json"); });
    const auto files = LoadTokenizer("fuzz", [&](std::string_view name) {
      return name == "config.json" ? std::nullopt : model.ReadText(name);
    });
    if (files) UseTokenizer(*files->tokenizer, "a <s> b");
  });
  return 0;
}
