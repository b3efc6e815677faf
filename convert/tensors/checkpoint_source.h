#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "convert/spec/spec.h"
#include "convert/tensors/model_source.h"
#include "engine/tensor/dtype.h"

namespace tandem::convert {

// Opens a Tandem checkpoint (engine/formats/checkpoint_manifest.h) of a run or a conversion,
// stacked or not. A full checkpoint has a state() besides the weights. With a `dtype`, weights are
// rounded from the f32 masters; the bf16 weights of a run are only the masters' upper halves. With
// spec.verify every file must match its hash in the manifest. Throws kUnsupported for another
// version or an adapter without adapter_config.json, kDataLoss naming a file that is missing or
// differs.
std::unique_ptr<ModelSource> OpenCheckpoint(const ConvertSpec& spec,
                                            const std::filesystem::path& path,
                                            std::optional<engine::DType> dtype);

// Whether the directory is a Tandem checkpoint.
bool IsCheckpoint(const std::filesystem::path& path);

}  // namespace tandem::convert
