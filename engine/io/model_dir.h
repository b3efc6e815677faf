#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/io/safetensors.h"

namespace tandem::engine {

// A model as files: a Hugging Face directory (config.json, one or more safetensors shards, optional
// tokenizer and template files), or the same files embedded in the program. Immutable after Open;
// views into it live as long as it does. Any thread.
//
// With an index, exactly the tensors it names exist; `model.safetensors` wins over an index.
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
  // SHA-256 (hex) over the bytes of all tensor files in the order of their names: the identity of
  // the weights, and for a single file what sha256sum prints. Reads every byte once; for files the
  // result is remembered in `memo_dir`, when that is not empty, by path, size, mtime and inode.
  // Files changed within the last two seconds are not remembered. A memo that cannot be read or
  // written only costs time. `between_pieces` is called now and then while bytes are read, and may
  // throw to give up.
  std::string ContentHash(const std::filesystem::path& memo_dir,
                          const std::function<void()>& between_pieces = {}) const;

 private:
  ModelDir() = default;
  void OpenWeights();
  bool Has(const std::string& file_name) const;
  std::string Describe(const std::string& file_name) const;
  SafetensorsFile OpenShard(const std::string& file_name) const;

  std::string name_;
  std::filesystem::path dir_;  // empty: from memory
  std::map<std::string, std::span<const std::byte>> memory_;
  std::vector<SafetensorsFile> shards_;  // by file name
  std::map<std::string, size_t, std::less<>> shard_of_;
};

}  // namespace tandem::engine
