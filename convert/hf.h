#pragma once

#include <filesystem>
#include <memory>

#include "convert/model_source.h"
#include "convert/spec.h"
#include "convert/write_context.h"

namespace tandem::convert {

// The format hf: a Hugging Face directory with safetensors.
void WriteHf(const ConvertSpec& spec, const WriteContext& context);
std::unique_ptr<ModelSource> OpenHf(const ConvertSpec& spec, const std::filesystem::path& target);

}  // namespace tandem::convert
