#pragma once

#include <filesystem>
#include <memory>

#include "convert/spec/spec.h"
#include "convert/tensors/model_source.h"
#include "convert/work/write_context.h"

namespace tandem::convert {

// Writes the format hf: a Hugging Face directory with one model.safetensors.
void WriteHf(const ConvertSpec& spec, const WriteContext& context);
// Opens such a directory as a source, for verification. Ignores `spec`.
std::unique_ptr<ModelSource> OpenHf(const ConvertSpec& spec, const std::filesystem::path& target);

}  // namespace tandem::convert
