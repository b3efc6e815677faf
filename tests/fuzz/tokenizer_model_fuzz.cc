// A tokenizer.model: a SentencePiece model, or tiktoken ranks if the text looks like them.

#include <cstddef>
#include <cstdint>

#include "engine/tokenizer/readers/sentencepiece.h"
#include "engine/tokenizer/readers/tiktoken.h"
#include "tests/fuzz/tokenizer_use.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::engine;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  ReadStrangersFile([&] {
    if (LooksLikeTiktoken(bytes)) {
      UseTokenizer(*LoadTiktoken(bytes, "fuzz", TiktokenFamily::kQwen, {}), bytes.substr(0, 256));
    } else {
      UseTokenizer(*LoadSentencePiece(bytes, "fuzz").tokenizer, bytes.substr(0, 256));
    }
  });
  return 0;
}
