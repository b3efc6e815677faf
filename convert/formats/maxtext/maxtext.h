#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "convert/tensors/model_source.h"

namespace tandem::convert {

// MaxText checkpoints: directories of Orbax steps. A checkpoint written by Tandem also has, beside
// step 0, the model's small files, `maxtext.json` (MaxTextRecord) and `exact/`. `exact/` holds the
// parts of the model that MaxText's numbers cannot represent. MaxText ignores all three.

// Facts about the original model that neither the checkpoint nor the model's small files contain.
struct MaxTextRecord {
  bool rotates_pairs = true;                    // MaxTextLayout
  std::map<std::string, engine::DType> dtypes;  // of every tensor
};
inline constexpr const char* kMaxTextRecordFile = "maxtext.json";
// Suffix of a tensor's name in `exact/` for vocabulary rows that MaxText lacks.
inline constexpr const char* kRowsBeyond = "#rows";
MaxTextRecord ParseMaxTextRecord(std::string_view json, const std::string& source);

// Dtype for tensors when neither the caller nor maxtext.json gives one.
enum class UnrecordedType { kOfConfig, kOfParameter };

// Opens a MaxText checkpoint as a source. `path` is anything that OrbaxCheckpoint opens. Linen and
// NNX trees are recognised by their parameter names, whatever the prefix or suffix; optimizer
// states are skipped. The small files, among them config.json, are read from `base`, or from beside
// the checkpoint.
//
// Tensors are decoded as `dtype` if given, else as maxtext.json records, else as `unrecorded` says:
// config.json's dtype, or the parameter's own. `maxtext_model` is spec.maxtext.model.
//
// Throws kInvalidArgument (param "source.base") without a config.json. Throws kDataLoss naming a
// parameter that is missing or misshapen, kUnsupported for an unknown parameter and for all else
// that is not converted.
std::unique_ptr<ModelSource> OpenMaxText(const std::filesystem::path& path,
                                         const std::filesystem::path& base,
                                         std::optional<engine::DType> dtype,
                                         const std::string& maxtext_model,
                                         UnrecordedType unrecorded = UnrecordedType::kOfConfig);

}  // namespace tandem::convert
