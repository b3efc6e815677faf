#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "convert/spec/spec.h"
#include "convert/tensors/model_source.h"
#include "engine/tensor/dtype.h"

namespace tandem::convert {

// Kinds of sources, recognised by their files (table in source.cc).
enum class SourceKind {
  kAdapter,  // PEFT directory: adapter_config.json and adapter_model.safetensors
  kNative,   // Tandem checkpoint: manifest.json
  kMaxText,  // MaxText checkpoint
  kHf,       // Hugging Face directory: config.json and safetensors
  kFile,     // one file: GGUF, llama2.c
};

enum class BaseUse { kNone, kOptional, kRequired };

// One kind of source, one row in source.cc.
struct SourceForm {
  SourceKind kind;
  const char* name;  // for messages, with the file that marks the kind
  BaseUse base;      // whether spec.base names the adapted model or lends its config
  bool (*is)(const std::filesystem::path& path);
  // Opens the source like OpenModelFiles. `path` is the source, or the directory of the merged
  // adapter. Null: the source must be merged first.
  std::unique_ptr<ModelSource> (*open)(const ConvertSpec& spec, const std::filesystem::path& path,
                                       std::optional<engine::DType> dtype);
};

// Throws kNotFound (path_not_found), and kUnsupported for an unknown kind, both with `param`.
const SourceForm& FormOf(const std::filesystem::path& path, const std::string& param);

// Opens spec.source, decoded as `dtype` if given. REQUIRES: a kind that needs no merge.
std::unique_ptr<ModelSource> OpenSource(const ConvertSpec& spec,
                                        std::optional<engine::DType> dtype);

}  // namespace tandem::convert
