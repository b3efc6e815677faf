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

#include "engine/base/parallel_for.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/tensor/dtype.h"

namespace tandem::convert {

// A model to convert: its tensors under Hugging Face's names, shapes and layout, whatever the
// format, and its small files. Writers access sources only through this interface. Immutable; any
// thread.
class ModelSource {
 public:
  using Bytes = std::span<const std::byte>;
  using Take = std::function<void(const engine::NamedTensor& tensor, Bytes bytes)>;

  virtual ~ModelSource() = default;

  virtual const std::string& name() const = 0;  // for messages
  // Ascending by name; the views have no data.
  virtual const std::vector<engine::NamedTensor>& tensors() const = 0;
  // Returns a small file's text (config.json, tokenizer.json, …), or nullopt without the file.
  virtual std::optional<std::string> ReadText(std::string_view file_name) const = 0;

  // Number of parts; a part is read as a unit. It is one tensor for most sources, and all layers of
  // an array for a scanned checkpoint. Every tensor is in exactly one part.
  virtual int64_t parts() const { return static_cast<int64_t>(tensors().size()); }
  // Tensors of a part, as indices into tensors().
  virtual std::vector<int64_t> TensorsOf(int64_t part) const { return {part}; }
  // Reads a part and calls `take` once for each of its tensors; the bytes are valid during the
  // call. Uses at most the part's size in memory. Throws kDataLoss, kIo naming file and tensor.
  virtual void ReadPart(int64_t part, const Take& take) const = 0;
  // Like ReadPart, but in pieces of some MiB where the source can, on the threads of parallel_for.
  // Several threads may call `take` at a time, with the pieces of a tensor in any order. Every byte
  // comes once; `offset` is the byte offset in the tensor.
  using TakePiece =
      std::function<void(const engine::NamedTensor& tensor, int64_t offset, Bytes piece)>;
  virtual void ReadPieces(int64_t part, const ParallelFor& parallel_for,
                          const TakePiece& take) const;
  // Reads one tensor by index. Its bytes are in `buffer` or in a mapped file.
  virtual Bytes Read(int64_t tensor, std::vector<std::byte>* buffer) const = 0;
  // Like Read, for rows of the first axis. Returns nullopt for any rows if the source can only read
  // this tensor whole.
  virtual std::optional<Bytes> ReadRows(int64_t /*tensor*/, int64_t /*first*/, int64_t /*count*/,
                                        std::vector<std::byte>* /*buffer*/) const {
    return std::nullopt;
  }
  // Releases the mapped pages of a tensor that will not be read again.
  virtual void LetGo(int64_t /*tensor*/) const {}

  // Likewise for some bytes that Read or ReadPart returned.
  virtual void LetGoOf(Bytes /*bytes*/) const {}
  // Memory that ReadPieces takes, excluding mapped files.
  virtual int64_t PartMemory(int64_t part) const;
  // Training state besides the weights, or null: the optimizer's tensors under the names of
  // optim.safetensors, with train_state.json and manifest.json as texts.
  virtual const ModelSource* state() const { return nullptr; }

  // Returns the index by name; -1 when absent.
  int64_t Find(std::string_view tensor) const;
  int64_t bytes() const;  // of all tensors, as decoded
  // Bytes of all tensors in the files; quantised blocks take fewer than their decoded f32.
  virtual int64_t stored_bytes() const { return bytes(); }
};

// Opens anything that engine::ModelDir opens: Hugging Face, native, GGUF, llama2.c. Floating-point
// tensors are decoded as `dtype` if given, with one rounding; a value outside its range throws
// kDataLoss naming the tensor. Without `dtype`, quantised blocks are decoded as f32.
std::unique_ptr<ModelSource> OpenModelFiles(const std::filesystem::path& path,
                                            std::optional<engine::DType> dtype);

// Appends the values, rounded once to the tensor's dtype. Throws kDataLoss naming `source` and the
// tensor for a value outside its range.
void AppendRounded(const std::string& source, const engine::NamedTensor& tensor,
                   std::span<const float> values, std::vector<std::byte>* bytes);

// Parses "f32", "bf16", "f16"; nullopt for other names.
std::optional<engine::DType> FloatTypeOf(std::string_view name);

}  // namespace tandem::convert
