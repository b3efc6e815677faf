#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "convert/formats/gguf/gguf_tensors.h"
#include "convert/spec/spec.h"
#include "convert/tensors/model_source.h"
#include "convert/work/write_context.h"

namespace tandem::convert {

// A model as one GGUF file.

struct GgufReport {
  std::vector<GgufTensor> tensors;    // with what was lost of each
  std::vector<std::string> warnings;  // what the file cannot say
  GgufError Total() const;
  // An object: "max_abs", "relative_rms", "worst_tensor", "worst_relative_rms", "warnings", and of
  // every one of "tensors" its "name", "type", "max_abs", "relative_rms".
  std::string Json() const;
};

// Writes the file context.target, going on from context.journal; `name` becomes general.name,
// `dtype` is one of f32, f16, bf16, q8_0, q4_0 or empty. What was written is opened again: its
// configuration and tokenizer must be those of the source. Throws kUnsupported for what GGUF cannot
// say, kDataLoss naming a tensor, kIo.
GgufReport WriteGgufFile(const WriteContext& context, const std::string& name,
                         const std::string& dtype);

// Whether the tensors of the file are those of the source as nearly as `dtype` has them, read row
// by row. Throws kDataLoss naming the tensor.
void CompareGguf(const ModelSource& source, const std::filesystem::path& file,
                 const std::string& dtype, const std::function<void(int64_t)>& advance);

// The three entries of the format table (formats.h).
void WriteGguf(const ConvertSpec& spec, const WriteContext& context);
std::unique_ptr<ModelSource> OpenGguf(const ConvertSpec& spec, const std::filesystem::path& target);
void CompareWithGguf(const ConvertSpec& spec, const ModelSource& source, const ModelSource& written,
                     const std::function<void(int64_t bytes)>& advance);

}  // namespace tandem::convert
