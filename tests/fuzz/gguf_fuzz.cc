// A GGUF or llama2.c file: the container, its model description and its tokenizer.

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/formats/model_dir.h"
#include "tests/fuzz/tokenizer_use.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::engine;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  ReadStrangersFile([&] {
    const ModelDir model = ModelDir::FromBytes("fuzz", bytes);
    // Every described tensor is readable to its last byte.
    for (const std::string& name : model.tensor_names()) {
      const StoredTensor& tensor = *model.FindStored(name);
      Require(static_cast<size_t>(tensor.view.elements()) <= size * 2);
      Require(DecodeTensor(tensor).size() == static_cast<size_t>(tensor.view.elements()));
    }
    ReadStrangersFile([&] { model.ReadText("config.json"); });
    ReadStrangersFile([&] { model.ReadText("generation_config.json"); });
    const auto files = LoadTokenizer("fuzz", [&](std::string_view name) {
      return name == "config.json" ? std::nullopt : model.ReadText(name);
    });
    if (files) UseTokenizer(*files->tokenizer, "a <s> b");
  });
  return 0;
}
