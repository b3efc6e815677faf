#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/formats/gguf/gguf.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/formats/stored/stored_tensor.h"
#include "engine/io/content_hash.h"

namespace tandem::engine {

// A model as files: a Hugging Face directory (config.json, one or more safetensors shards, optional
// tokenizer and template files), the same files embedded in the program, or one file of another
// program told as such a directory: GGUF, llama2.c. Immutable after Open; views into it live as
// long as it does. Any thread.
//
// A checkpoint of ours whose layers are stacked (stacked_tensors.h) has a tensor for each of them
// all the same, as views into what is stacked.
//
// With an index, exactly the tensors it names exist; `model.safetensors` wins over an index.
class ModelDir {
 public:
  // Opens the directory: config.json is required; weights are `model.safetensors`, or the shards
  // named by `model.safetensors.index.json` (every name must be where the index says and shard
  // names may not leave the directory), or else those of our manifest.json. Or opens a file, whose
  // first bytes say what it is. Throws kNotFound / kDataLoss naming file and field, kUnsupported
  // for a file that is no model. The first of the files that a GGUF was split into stands for all,
  // which must be beside it.
  static ModelDir Open(const std::filesystem::path& path);
  // The same from memory: file name -> bytes, which must outlive the ModelDir.
  static ModelDir FromMemory(const std::string& name,
                             std::map<std::string, std::span<const std::byte>> files);
  // A file of another program from memory; the bytes must outlive the ModelDir.
  static ModelDir FromBytes(const std::string& name, std::span<const std::byte> bytes);
  // Whether Open would take the file for a model; false for what is no regular file.
  static bool IsModelFile(const std::filesystem::path& path);

  const std::string& name() const { return name_; }  // path or embedded name, for messages
  // What the files are: "hf" (config.json and safetensors), "native" (what only manifest.json
  // leads to), "gguf" or "llama2.c".
  const std::string& format() const { return format_; }
  // Text of a small file (config.json, tokenizer.json, …); nullopt when there is none. Files over
  // 512 MiB throw kDataLoss. What a foreign file says is put into these words when it is asked for.
  std::optional<std::string> ReadText(std::string_view file_name) const;

  // What messages call a small file: its path, and of a foreign file that it was told as that.
  std::string Describe(std::string_view file_name) const;

  std::vector<std::string> tensor_names() const;                // sorted
  const StoredTensor* FindStored(std::string_view name) const;  // null when absent
  // The same where it lies just as families ask for it, as in every directory; else null.
  const ConstTensorView* FindTensor(std::string_view name) const;
  // Called when a tensor has been read for good: its bytes leave the process's memory, where they
  // lie in a mapped file.
  void LetGo(const StoredTensor& tensor) const;
  void LetGo(std::span<const std::byte> bytes) const;  // the same for a part of one
  // Throws kDataLoss when a weight file was changed in place since Open
  // (MappedFile::CheckUnchanged).
  void CheckUnchanged() const;
  // The identity of the weights (content_hash.h): their files in the order of their names.
  std::string ContentHash(const std::filesystem::path& memo_dir,
                          const std::function<void()>& between_pieces = {},
                          const FileHashes& known = {}) const;
  // The identity of the tensors alone: their names, types, places and bytes. Other
  // metadata of a GGUF do not change it. All other formats have their ContentHash.
  std::string TensorHash(const std::filesystem::path& memo_dir,
                         const std::function<void()>& between_pieces = {}) const;

 private:
  ModelDir() = default;
  void OpenWeights();
  bool HasManifest() const;
  void OpenCheckpoint();
  bool Has(const std::string& file_name) const;
  SafetensorsFile OpenShard(const std::string& file_name) const;
  void Take(const SafetensorsFile& shard);              // notes its file, not its tensors
  void TakeForeign(const std::filesystem::path& path);  // path: empty for bytes
  GgufFile OpenGguf(const std::filesystem::path& path);

  std::string name_;
  std::string format_ = "hf";
  std::filesystem::path dir_;  // empty: from memory, or one file
  std::map<std::string, std::span<const std::byte>> memory_;
  // Of a foreign file; else empty.
  std::function<std::optional<std::string>(std::string_view file_name)> read_text_;
  std::vector<WeightFile> weight_files_;  // by name
  std::map<std::string, StoredTensor, std::less<>> tensors_;
};

}  // namespace tandem::engine
