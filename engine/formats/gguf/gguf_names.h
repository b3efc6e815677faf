#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tandem::engine {

// Architectures of GGUF: the GGUF and Hugging Face names of a model's parts, and the changes
// between their numbers. Reading and writing share these tables.

// Change that a writer makes to a tensor; the reader undoes it.
enum class GgufChange : uint8_t {
  kNone,
  kQueryPairs,  // interleaved rows (StoredTensor::interleaved_heads)
  kKeyPairs,
  kPlus1,       // 1 is added
  kTransposed,  // Conv1D stored as a linear layer; its bias is unchanged
};
struct GgufPart {
  std::string_view gguf;  // without ".weight" or ".bias"
  std::string_view hf;
  GgufChange change = GgufChange::kNone;
};
struct GgufArchitecture {
  std::string_view name;
  std::string_view hf_class;
  std::string_view hf_type;
  std::span<const GgufPart> parts;  // inside a block
  std::span<const GgufPart> ends;   // outside the blocks
  std::string_view block;           // name prefix before a block's number
  // Tokenizer class of Hugging Face that reads this architecture's SentencePiece models.
  std::string_view sentencepiece_class = "LlamaTokenizer";
};

std::span<const GgufArchitecture> GgufArchitectures();
const GgufArchitecture* FindGgufArchitecture(std::string_view name);  // null: unknown

struct GgufName {
  std::string name;
  GgufChange change = GgufChange::kNone;
};
// The name that families use. An unknown name stays unchanged, so that errors can report it.
GgufName HfNameOf(const GgufArchitecture& architecture, std::string_view gguf);
// The name in a GGUF file; nullopt when the architecture has no such tensor.
std::optional<GgufName> GgufNameOf(const GgufArchitecture& architecture, std::string_view hf);

}  // namespace tandem::engine
