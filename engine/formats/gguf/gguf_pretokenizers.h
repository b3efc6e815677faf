#pragma once

#include <span>
#include <string_view>

namespace tandem::engine {

// How a BPE vocabulary in a GGUF file cuts text before merging: by the name that the file gives
// (`tokenizer.ggml.pre`). Reading and writing share the table.
struct GgufPreTokenizer {
  std::string_view name;
  std::span<const std::string_view> patterns;  // each cuts the pieces of the one before
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;  // where the file does not say
};
std::span<const GgufPreTokenizer> GgufPreTokenizers();

// GPT-2's, which a ByteLevel pre-tokenizer cuts by; one of the above.
std::string_view Gpt2Pattern();

// Whether a control token so spelled ends an answer, whatever a file calls its end of text:
// programs know such tokens by name.
bool IsGgufEnd(std::string_view text);

}  // namespace tandem::engine
