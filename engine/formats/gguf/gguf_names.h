#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tandem::engine {

// Architectures of GGUF: what a file calls the parts of a model, what Hugging Face's files call
// them, and what stands between the numbers of the two. Reading and writing share these tables.

// What whoever writes a file does to a tensor; reading undoes it.
enum class GgufChange : uint8_t {
  kNone,
  kQueryPairs,  // rows of each head in pairs, see StoredTensor::interleaved_heads
  kKeyPairs,
  kPlus1,       // 1 is added
  kTransposed,  // Conv1D, stored as a linear layer; its bias as it is
};
struct GgufPart {
  std::string_view gguf;  // with ".weight" and ".bias" behind it
  std::string_view hf;
  GgufChange change = GgufChange::kNone;
};
struct GgufArchitecture {
  std::string_view name;
  std::string_view hf_class;
  std::string_view hf_type;
  std::span<const GgufPart> parts;  // of a block
  std::span<const GgufPart> ends;   // outside of the blocks
  std::string_view block;           // what stands before the number of a block
  // The tokenizer of Hugging Face that reads the SentencePiece model of such files.
  std::string_view sentencepiece_class = "LlamaTokenizer";
};

std::span<const GgufArchitecture> GgufArchitectures();
const GgufArchitecture* FindGgufArchitecture(std::string_view name);  // null: none of ours

struct GgufName {
  std::string name;
  GgufChange change = GgufChange::kNone;
};
// The name that families ask for; one that we do not know stays as it is, to be reported.
GgufName HfNameOf(const GgufArchitecture& architecture, std::string_view gguf);
// The name in a file; nullopt where the architecture has no place for such a tensor.
std::optional<GgufName> GgufNameOf(const GgufArchitecture& architecture, std::string_view hf);

}  // namespace tandem::engine
