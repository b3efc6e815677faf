#pragma once

#include <filesystem>
#include <memory>

#include "convert/spec/spec.h"
#include "convert/tensors/model_source.h"
#include "convert/work/write_context.h"

namespace tandem::convert {

// The format native: a checkpoint directory with a manifest, of either layout, with the state of
// the run when the source has one.
void WriteNative(const ConvertSpec& spec, const WriteContext& context);
// The format native-params: the same without state, one tensor per layer.
void WriteNativeParams(const ConvertSpec& spec, const WriteContext& context);
// Opens a target of either format.
std::unique_ptr<ModelSource> OpenNative(const ConvertSpec& spec,
                                        const std::filesystem::path& target);

}  // namespace tandem::convert
