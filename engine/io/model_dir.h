#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/io/safetensors.h"

namespace tandem::engine {

// A model as files: a Hugging Face directory (config.json, one or more safetensors shards, optional
// tokenizer and template files), or the same files embedded in the program. Immutable after Open;
// views into it live as long as it does.
class ModelDir {
 public:
  // Opens the directory: config.json is required; weights are `model.safetensors`, or the shards
  // named by `model.safetensors.index.json` (every name must be where the index says and shard
  // names may not leave the directory). Throws kNotFound / kDataLoss naming file and field.
  static ModelDir Open(const std::filesystem::path& dir);
  // The same from memory: file name -> bytes, which must outlive the ModelDir.
  static ModelDir FromMemory(const std::string& name,
                             std::map<std::string, std::span<const std::byte>> files);

  const std::string& name() const { return name_; }  // path or embedded name, for messages
  // Text of a small file (config.json, tokenizer.json, …); nullopt when there is none. Files over
  // 512 MiB throw kDataLoss.
  std::optional<std::string> ReadText(std::string_view file_name) const;

  std::vector<std::string> tensor_names() const;  // sorted
  const ConstTensorView* FindTensor(std::string_view name) const;
  // SHA-256 (hex) over all tensor files: the identity of the weights. From memory or disk this
  // reads every byte once; results for files are remembered by (path, size, mtime, inode) in
  // `memo_dir` when it is not empty.
  std::string ContentHash(const std::filesystem::path& memo_dir) const;

 private:
  std::string name_;
  std::filesystem::path dir_;
  std::map<std::string, std::span<const std::byte>> memory_;
  std::vector<std::filesystem::path> weight_files_;
  std::vector<SafetensorsFile> shards_;
  std::map<std::string, size_t, std::less<>> shard_of_;
};

}  // namespace tandem::engine
