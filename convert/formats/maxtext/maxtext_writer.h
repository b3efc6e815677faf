#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

#include "convert/spec/spec.h"
#include "convert/tensors/model_source.h"
#include "convert/work/write_context.h"

namespace tandem::convert {

// Writes the format maxtext: an Orbax checkpoint with MaxText's parameters.
void WriteMaxText(const ConvertSpec& spec, const WriteContext& context);
std::unique_ptr<ModelSource> OpenWrittenMaxText(const ConvertSpec& spec,
                                                const std::filesystem::path& target);
// Throws kDataLoss naming the tensor when `written` differs from `source`.
void CompareMaxText(const ConvertSpec& spec, const ModelSource& source, const ModelSource& written,
                    const std::function<void(int64_t bytes)>& advance);

}  // namespace tandem::convert
