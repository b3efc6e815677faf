#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "convert/spec/spec.h"
#include "convert/tensors/model_source.h"
#include "engine/tensor/dtype.h"

namespace tandem::convert {

// A checkpoint of ours (engine/formats/checkpoint_manifest.h), of a run or converted, stacked or
// not; state() is what a full one keeps besides the weights. In another `dtype` its weights are
// rounded from the masters, of which the weights of a bf16 run are only the upper halves. With
// spec.verify all files must hash to what the manifest says. Throws kUnsupported for another
// version, kDataLoss naming the file that is missing or another.
std::unique_ptr<ModelSource> OpenCheckpoint(const ConvertSpec& spec,
                                            const std::filesystem::path& path,
                                            std::optional<engine::DType> dtype);

// Whether the directory is one.
bool IsCheckpoint(const std::filesystem::path& path);

}  // namespace tandem::convert
