#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "convert/spec/spec.h"
#include "convert/tensors/model_source.h"
#include "engine/tensor/dtype.h"

namespace tandem::convert {

// What can be converted. The files say which it is; a table in source.cc says how.
enum class SourceKind {
  kAdapter,  // a PEFT directory: adapter_config.json and adapter_model.safetensors
  kNative,   // a checkpoint of ours: manifest.json
  kMaxText,  // a checkpoint of MaxText
  kHf,       // a Hugging Face directory: config.json and safetensors
  kFile,     // one file: GGUF, llama2.c
};

enum class BaseUse { kNone, kOptional, kRequired };

// One kind of source: one line in source.cc.
struct SourceForm {
  SourceKind kind;
  const char* name;  // with what marks it, for messages
  BaseUse base;      // whether spec.base says of which model it is, or lends its config
  bool (*is)(const std::filesystem::path& path);
  // As OpenModelFiles. `path` is the source, or the directory that an adapter was merged into.
  // Null: must be merged first.
  std::unique_ptr<ModelSource> (*open)(const ConvertSpec& spec, const std::filesystem::path& path,
                                       std::optional<engine::DType> dtype);
};

// Throws kNotFound (path_not_found), and kUnsupported for what is none of them, with `param`.
const SourceForm& FormOf(const std::filesystem::path& path, const std::string& param);

// spec.source, told in `dtype` where it is given. REQUIRES: a kind that need not be merged.
std::unique_ptr<ModelSource> OpenSource(const ConvertSpec& spec,
                                        std::optional<engine::DType> dtype);

}  // namespace tandem::convert
