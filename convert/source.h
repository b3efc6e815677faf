#pragma once

#include <filesystem>
#include <string>

namespace tandem::convert {

// What can be converted. The files say which it is; a table in source.cc says how.
enum class SourceKind {
  kHf,       // a Hugging Face directory: config.json and safetensors
  kAdapter,  // a PEFT directory: adapter_config.json and adapter_model.safetensors
};

// Throws kNotFound (path_not_found), and kUnsupported for what is none of them, with `param`.
SourceKind SniffSource(const std::filesystem::path& path, const std::string& param);

}  // namespace tandem::convert
