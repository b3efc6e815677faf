#pragma once

#include <span>
#include <string_view>

namespace tandem::engine {

// Names of tokenizers in GGUF files. They come from the first models with such a tokenizer and say
// nothing about the family of a file.

// Kinds of vocabulary in `tokenizer.ggml.model`.
inline constexpr std::string_view kGgufByteLevelBpe = "gpt2";
inline constexpr std::string_view kGgufSentencePiece = "llama";
inline constexpr std::string_view kGgufUnigram = "t5";
// Byte-pair encoding whose pieces have U+2581 for spaces and tokens for single bytes, by merges.
inline constexpr std::string_view kGgufPieceBpe = "gemma4";

// How a BPE vocabulary of a GGUF file splits text before merging, by the name in
// `tokenizer.ggml.pre`. Reading and writing share the table.
struct GgufPreTokenizer {
  std::string_view name;
  std::span<const std::string_view> patterns;  // each splits the pieces of the pattern before it
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;  // when the file does not say
};
std::span<const GgufPreTokenizer> GgufPreTokenizers();

// GPT-2's pattern, which the ByteLevel pre-tokenizer uses. It is in the table above.
std::string_view ByteLevelPattern();

// Whether a control token with this text ends an answer, regardless of the file's end-of-text key.
// llama.cpp and others know such tokens by name.
bool IsGgufEnd(std::string_view text);

}  // namespace tandem::engine
