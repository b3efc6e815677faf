#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::engine {

// `ORG/NAME` or `ORG/NAME@REVISION`; for GGUF files followed by `:FILE.gguf` or `:Q4_K_M`.
struct HubReference {
  std::string repo;  // "ORG/NAME"
  std::string revision = "main";
  std::string gguf;  // a file's name, or a tag in it; empty: the safetensors model

  std::string Text() const;
};

// Parses a reference or the address of a hub page: "https://huggingface.co/ORG/NAME", with
// "/tree/REVISION" or "/blob/REVISION/FILE.gguf". Returns nullopt for other texts, such as paths.
std::optional<HubReference> ParseHubReference(std::string_view text);

// Whether a name from the hub may become a path below a snapshot. Requires non-empty parts other
// than `.` and `..`, no backslash or control character, no leading dot, and bounded length and
// depth.
bool IsSafeFileName(std::string_view name);
// Whether the text is 40 lower-case hex digits.
bool IsCommit(std::string_view text);

// The files of a repository that make up the model. Weights come only in formats that hold data
// alone. Pickles (.bin, .pt, .pth, .ckpt) can hold code and are never fetched.
struct FileSelection {
  std::vector<std::string> texts;    // configuration, tokenizer, template, index: fetched first
  std::vector<std::string> weights;  // replaced by the index's list when there is an index
};
// Throws kNotFound or kUnsupported naming the files that the repository has instead.
FileSelection SelectFiles(const HubReference& reference, const std::vector<std::string>& names);

// Whether `names` contains a tokenizer file (kTokenizerFiles).
bool HasTokenizer(const std::vector<std::string>& names);

// Number of parts that a GGUF name states: 3 for "…-00001-of-00003.gguf", otherwise 1.
size_t PartsOfGguf(std::string_view name);

// The safetensors files that a model's index names, sorted. Throws kDataLoss.
std::vector<std::string> ShardsOfIndex(std::string_view index_text, const std::string& source);

inline constexpr const char* kTokenizerFiles =
    "tokenizer.json, tokenizer.model, *.tiktoken, vocab.json";
inline constexpr const char* kAdapterFile = "adapter_config.json";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";

}  // namespace tandem::engine
