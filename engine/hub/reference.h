#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::engine {

// `ORG/NAME`, `ORG/NAME@REVISION`, and for GGUF files `…:FILE.gguf` or `…:Q4_K_M`.
struct HubReference {
  std::string repo;  // "ORG/NAME"
  std::string revision = "main";
  std::string gguf;  // a file's name, or what it contains; empty: the safetensors model

  std::string Text() const;
};

// Also takes the address of a page of the hub: "https://huggingface.co/ORG/NAME", with
// "/tree/REVISION" or "/blob/REVISION/FILE.gguf". nullopt when the text is no such name (a path).
std::optional<HubReference> ParseHubReference(std::string_view text);

// Whether a name from the hub may become a path below a snapshot: parts that are no `.` or `..`,
// no backslash, no control character, nothing hidden at the top, bounded in length and depth.
bool IsSafeFileName(std::string_view name);
// 40 hex digits.
bool IsCommit(std::string_view text);

// Which files of a repository make up the model. Weights come in a format that holds data only:
// what can hold code (pickles: .bin, .pt, .pth, .ckpt) is never fetched.
struct FileSelection {
  std::vector<std::string> texts;    // configuration, tokenizer, template, index: fetched first
  std::vector<std::string> weights;  // ignored when the index names them
};
// Throws kNotFound or kUnsupported saying what the repository has instead.
FileSelection SelectFiles(const HubReference& reference, const std::vector<std::string>& names);

// Whether there is one of the files that tokenizers come in (kTokenizerFiles) among these.
bool HasTokenizer(const std::vector<std::string>& names);

// How many files a GGUF model has by its name: 3 for "…-00001-of-00003.gguf", otherwise 1.
size_t PartsOfGguf(std::string_view name);

// The safetensors files that a model's index names, sorted. Throws kDataLoss.
std::vector<std::string> ShardsOfIndex(std::string_view index_text, const std::string& source);

inline constexpr const char* kTokenizerFiles =
    "tokenizer.json, tokenizer.model, *.tiktoken, vocab.json";
inline constexpr const char* kAdapterFile = "adapter_config.json";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";

}  // namespace tandem::engine
