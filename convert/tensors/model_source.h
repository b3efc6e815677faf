#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/orbax/parallel_for.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/tensor/dtype.h"

namespace tandem::convert {

// A model that is converted: its tensors under the names, shapes and layout of Hugging Face,
// whatever they come from, and the small files beside them. Writers know sources by this alone.
// Immutable; any thread.
class ModelSource {
 public:
  using Bytes = std::span<const std::byte>;
  using Take = std::function<void(const engine::NamedTensor& tensor, Bytes bytes)>;

  virtual ~ModelSource() = default;

  virtual const std::string& name() const = 0;  // for messages
  // Ascending by name; views without data.
  virtual const std::vector<engine::NamedTensor>& tensors() const = 0;
  // Text of a small file (config.json, tokenizer.json, …); nullopt when there is none.
  virtual std::optional<std::string> ReadText(std::string_view file_name) const = 0;

  // What is read together: of most sources a tensor each, of a scanned checkpoint all layers of one
  // array. Every tensor is in exactly one part.
  virtual int64_t parts() const { return static_cast<int64_t>(tensors().size()); }
  // The tensors of a part, as indices into tensors().
  virtual std::vector<int64_t> TensorsOf(int64_t part) const { return {part}; }
  // Reads a part; `take` gets each of its tensors once, whose bytes are there during the call. The
  // memory it holds is that of the part at most. Throws kDataLoss, kIo naming file and tensor.
  virtual void ReadPart(int64_t part, const Take& take) const = 0;
  // The same, each byte of its tensors once, in pieces of some MiB where the source can, and on the
  // threads of parallel_for: `take` is called by several at a time, with the pieces of a tensor in
  // any order. `offset` is where in the tensor, in bytes.
  using TakePiece =
      std::function<void(const engine::NamedTensor& tensor, int64_t offset, Bytes piece)>;
  virtual void ReadPieces(int64_t part, const ParallelFor& parallel_for,
                          const TakePiece& take) const;
  // One tensor, by index. Its bytes lie in `buffer`, or in a mapped file.
  virtual Bytes Read(int64_t tensor, std::vector<std::byte>* buffer) const = 0;
  // The same of some rows (of the first axis), where they can be read by themselves; nullopt: only
  // the whole can, whatever rows are asked for.
  virtual std::optional<Bytes> ReadRows(int64_t /*tensor*/, int64_t /*first*/, int64_t /*count*/,
                                        std::vector<std::byte>* /*buffer*/) const {
    return std::nullopt;
  }
  // Called when a tensor has been read for good: mapped bytes leave the process's memory.
  virtual void LetGo(int64_t /*tensor*/) const {}

  // The same of some of its bytes, as Read or ReadPart gave them.
  virtual void LetGoOf(Bytes /*bytes*/) const {}
  // Memory that ReadPieces takes, besides mapped files.
  virtual int64_t PartMemory(int64_t part) const;
  // What a run keeps besides the weights, to go on from: the optimizer's tensors, under the names
  // of optim.safetensors, with train_state.json and manifest.json as texts. Null: the source has
  // none.
  virtual const ModelSource* state() const { return nullptr; }

  // By name; -1 when absent.
  int64_t Find(std::string_view tensor) const;
  int64_t bytes() const;  // of all tensors, as they are told
  // The same as they lie in the files: blocks of integers have fewer than the f32 they are told as.
  virtual int64_t stored_bytes() const { return bytes(); }
};

// A directory or file that engine::ModelDir opens: Hugging Face, native, GGUF, llama2.c. Floating
// types become `dtype`, if it is given, each number rounded once; a value that the type does not
// have throws kDataLoss naming the tensor. Without it blocks of integers are told as f32.
std::unique_ptr<ModelSource> OpenModelFiles(const std::filesystem::path& path,
                                            std::optional<engine::DType> dtype);

// The values as bytes of the tensor's type behind those that are there, each rounded once; throws
// kDataLoss naming `source` and the tensor for what the type does not have.
void AppendRounded(const std::string& source, const engine::NamedTensor& tensor,
                   std::span<const float> values, std::vector<std::byte>* bytes);

// "f32", "bf16", "f16"; nullopt for any other.
std::optional<engine::DType> FloatTypeOf(std::string_view name);

}  // namespace tandem::convert
