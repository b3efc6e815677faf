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

// Writes a model as one GGUF file.

struct GgufReport {
  std::vector<GgufTensor> tensors;    // with the error of each
  std::vector<std::string> warnings;  // about settings that the file cannot express
  GgufError Total() const;
  // Returns an object with "max_abs", "relative_rms", "worst_tensor", "worst_relative_rms",
  // "warnings" and "tensors". Each entry of "tensors" has "name", "type", "max_abs" and
  // "relative_rms".
  std::string Json() const;
};

// Writes context.target, resuming from context.journal. `name` becomes general.name; `dtype` is
// f32, f16, bf16, q8_0, q4_0 or empty. Reopens the file and checks that configuration and tokenizer
// equal the source's. Throws kUnsupported for anything that GGUF cannot express, kDataLoss naming a
// tensor, kIo.
GgufReport WriteGgufFile(const WriteContext& context, const std::string& name,
                         const std::string& dtype);

// Compares the file's tensors with the source's, within the rounding of `dtype`. Throws kDataLoss
// naming a tensor that differs.
void CompareGguf(const ModelSource& source, const std::filesystem::path& file,
                 const std::string& dtype, const std::function<void(int64_t)>& advance);

// Entries of the format table (formats.h).
void WriteGguf(const ConvertSpec& spec, const WriteContext& context);
std::unique_ptr<ModelSource> OpenGguf(const ConvertSpec& spec, const std::filesystem::path& target);
void CompareWithGguf(const ConvertSpec& spec, const ModelSource& source, const ModelSource& written,
                     const std::function<void(int64_t bytes)>& advance);

}  // namespace tandem::convert
