// A safetensors file: an accepted file is readable to its last byte and covers the data exactly.

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/formats/safetensors/safetensors.h"
#include "tests/fuzz/tokenizer_use.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::engine;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  ReadStrangersFile([&] {
    const SafetensorsFile file = SafetensorsFile::FromBytes(bytes, "fuzz");
    size_t covered = 0;
    volatile unsigned sum = 0;
    for (const std::string& name : file.names()) {
      const ConstTensorView* view = file.Find(name);
      Require(view != nullptr);
      for (size_t i = 0; i < view->bytes(); ++i) {
        sum = sum + std::to_integer<unsigned>(view->data[i]);
      }
      covered += view->bytes();
    }
    Require(covered <= size);
  });
  return 0;
}
