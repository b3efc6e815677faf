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

// The one small file in a folder: how sentence-transformers pools hidden states.
inline constexpr std::string_view kPoolingFile = "1_Pooling/config.json";

// A model as files: a Hugging Face directory, the same files embedded in the program, or one GGUF
// or llama2.c file. A directory holds config.json, one or more safetensors shards, and optional
// tokenizer and template files. A GGUF or llama2.c file is presented as such a directory. Immutable
// after Open. Views into it live as long as the ModelDir. Any thread.
//
// A stacked checkpoint (stacked_tensors.h) has one tensor per layer here too, as views into the
// stacked data.
//
// Integers and scales of a quantised checkpoint are one tensor here (quantized_tensors.h).
//
// With an index, exactly the tensors it names exist. `model.safetensors` wins over an index.
class ModelDir {
 public:
  // Opens a directory or a file. A directory needs config.json. Its weights are
  // `model.safetensors`, else the shards of `model.safetensors.index.json`, else those of
  // manifest.json. Every tensor must be in the shard that the index names, and a shard name must
  // not leave the directory. A file is recognised by its first bytes. A split GGUF is opened by its
  // first file, with the other files in the same directory. Throws kNotFound or kDataLoss naming
  // file and field, and kUnsupported for a file that is no model.
  static ModelDir Open(const std::filesystem::path& path);
  // Opens a directory from memory: file name -> bytes. The bytes must outlive the ModelDir.
  static ModelDir FromMemory(const std::string& name,
                             std::map<std::string, std::span<const std::byte>> files);
  // Opens a GGUF or llama2.c file from memory. The bytes must outlive the ModelDir.
  static ModelDir FromBytes(const std::string& name, std::span<const std::byte> bytes);
  // Whether `path` is a regular file that begins as GGUF or looks like llama2.c.
  static bool IsModelFile(const std::filesystem::path& path);

  const std::string& name() const { return name_; }  // path or embedded name, for messages
  // "hf" (config.json and safetensors), "native" (a checkpoint whose weights only manifest.json
  // lists), "gguf" or "llama2.c".
  const std::string& format() const { return format_; }
  // Text of a small file (config.json, tokenizer.json, …), or nullopt when it does not exist.
  // Throws kDataLoss for files over 512 MiB. For GGUF and llama2.c the text is generated on each
  // call.
  std::optional<std::string> ReadText(std::string_view file_name) const;

  // Name of a small file for messages: its path, or "<path> (as <file name>)" for GGUF and
  // llama2.c.
  std::string Describe(std::string_view file_name) const;

  std::vector<std::string> tensor_names() const;                // sorted
  const StoredTensor* FindStored(std::string_view name) const;  // null when absent
  // Returns the tensor when its stored layout is the one that families expect, as in every
  // directory. Returns null otherwise.
  const ConstTensorView* FindTensor(std::string_view name) const;
  // Drops the tensor's pages from the process's memory where they are mapped from a file. Callers
  // use it after their last read.
  void LetGo(const StoredTensor& tensor) const;
  void LetGo(std::span<const std::byte> bytes) const;  // for a part of a tensor
  // Throws kDataLoss when a weight file was changed in place since Open
  // (MappedFile::CheckUnchanged).
  void CheckUnchanged() const;
  // Identity of the weights (content_hash.h), over the weight files in the order of weight_files_.
  std::string ContentHash(const std::filesystem::path& memo_dir,
                          const std::function<void()>& between_pieces = {},
                          const FileHashes& known = {}) const;
  // Identity of the tensors: their names, types, places and bytes, without a GGUF's other metadata.
  // Equals ContentHash for all other formats.
  std::string TensorHash(const std::filesystem::path& memo_dir,
                         const std::function<void()>& between_pieces = {}) const;

 private:
  ModelDir() = default;
  void OpenWeights();
  void Join();
  bool HasManifest() const;
  void OpenCheckpoint();
  bool Has(const std::string& file_name) const;
  SafetensorsFile OpenShard(const std::string& file_name) const;
  void Take(const SafetensorsFile& shard);              // adds its file, not its tensors
  void TakeForeign(const std::filesystem::path& path);  // empty path: from bytes
  GgufFile OpenGguf(const std::filesystem::path& path);

  std::string name_;
  std::string format_ = "hf";
  std::filesystem::path dir_;  // empty: from memory, or one file
  std::map<std::string, std::span<const std::byte>> memory_;
  // Set for GGUF and llama2.c only.
  std::function<std::optional<std::string>(std::string_view file_name)> read_text_;
  std::vector<WeightFile> weight_files_;  // shards by name, or a GGUF's parts in order
  std::map<std::string, StoredTensor, std::less<>> tensors_;
};

}  // namespace tandem::engine
