#pragma once

#include <filesystem>
#include <memory>

#include "convert/spec/spec.h"
#include "convert/tensors/model_source.h"
#include "convert/work/write_context.h"

namespace tandem::convert {

// Writes the format native: a checkpoint directory with a manifest, in either layout, and the state
// of the run if the source has one.
void WriteNative(const ConvertSpec& spec, const WriteContext& context);
// Writes the format native-params: native without state, one tensor per layer.
void WriteNativeParams(const ConvertSpec& spec, const WriteContext& context);
// Opens a target of either format.
std::unique_ptr<ModelSource> OpenNative(const ConvertSpec& spec,
                                        const std::filesystem::path& target);

}  // namespace tandem::convert
