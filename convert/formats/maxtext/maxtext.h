#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "convert/tensors/model_source.h"

namespace tandem::convert {

// Checkpoints of MaxText: a directory of Orbax's steps. Those that we write have beside their step
// 0 the model's small files, `maxtext.json` (MaxTextRecord), and in `exact/` what MaxText's numbers
// cannot say of the model's; all of which MaxText does not look at.

// What a checkpoint cannot say of the model that it was made of, and the model's texts do not.
struct MaxTextRecord {
  bool rotates_pairs = true;                    // MaxTextLayout
  std::map<std::string, engine::DType> dtypes;  // of all tensors
};
inline constexpr const char* kMaxTextRecordFile = "maxtext.json";
// Behind the name of a tensor in `exact/`: rows of a vocabulary that MaxText has not.
inline constexpr const char* kRowsBeyond = "#rows";
MaxTextRecord ParseMaxTextRecord(std::string_view json, const std::string& source);

// What tensors are told in that nobody has given a type, nor recorded one.
enum class UnrecordedType { kOfConfig, kOfParameter };

// `path` is what OrbaxCheckpoint opens. Trees of Linen and NNX are known by their names, whatever
// stands before or behind them; states of optimizers are left out. The model's small files, of
// which config.json says what the model is, are those of `base`, or beside the checkpoint. Tensors
// are told in `dtype`; without it as they were when we wrote them, else as config.json says, or in
// the type of their parameter (`unrecorded`).
// `maxtext_model` is spec.maxtext.model. Throws kInvalidArgument (with "source.base" as param)
// where there is no config.json, kDataLoss naming parameters that are missing, unknown or of other
// shapes, kUnsupported for what is not converted.
std::unique_ptr<ModelSource> OpenMaxText(const std::filesystem::path& path,
                                         const std::filesystem::path& base,
                                         std::optional<engine::DType> dtype,
                                         const std::string& maxtext_model,
                                         UnrecordedType unrecorded = UnrecordedType::kOfConfig);

}  // namespace tandem::convert
