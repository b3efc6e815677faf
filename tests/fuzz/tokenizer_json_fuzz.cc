// A tokenizer.json: it loads or is refused in one line; a loaded one encodes and decodes.

#include <cstddef>
#include <cstdint>

#include "engine/tokenizer/readers/tokenizer_json.h"
#include "tests/fuzz/tokenizer_use.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::engine;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  ReadStrangersFile([&] {
    const LoadedTokenizerJson loaded = LoadTokenizerJson(text, "fuzz");
    UseTokenizer(*loaded.tokenizer, text.substr(0, 256));
  });
  return 0;
}
