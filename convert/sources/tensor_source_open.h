#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "convert/tensors/model_source.h"

namespace tandem::convert {

// What holds tensors, to look at: more than what is converted.
enum class TensorsKind {
  kModel,        // what engine::ModelDir opens
  kAdapter,      // a PEFT directory, or a checkpoint of a run that trains an adapter
  kSafetensors,  // one file of them
  kOrbax,        // leaves under their own names, joined by dots
};
struct OpenedTensors {
  TensorsKind kind;
  std::string format;          // for people: "hf", "gguf", "orbax, ocdbt", …
  std::filesystem::path path;  // what was opened: of a directory of steps, the newest
  std::unique_ptr<ModelSource> source;
};

// Throws kNotFound (path_not_found), kUnsupported, kDataLoss. Of a directory of a run's steps the
// newest is taken; leaves of Orbax without an array, or of a type that is none of ours, are left
// out of the source's tensors.
OpenedTensors OpenTensors(const std::filesystem::path& path);

// Two to be compared. A checkpoint of MaxText beside a model is told as the model that it is
// (maxtext.h), each tensor in the type of its parameter where nothing is recorded: its config.json
// is that of `base`, else beside it, else of the other, of which are then the rows of a vocabulary
// that MaxText has not. Any other two are opened by themselves. Throws as OpenTensors and
// OpenMaxText; kInvalidArgument (param "base") where a base is given and not needed.
std::pair<OpenedTensors, OpenedTensors> OpenToCompare(const std::filesystem::path& first,
                                                      const std::filesystem::path& second,
                                                      const std::filesystem::path& base);

// The newest of the steps of a run that `dir` holds (000000001000/); `dir` itself if it has none.
std::filesystem::path NewestStep(const std::filesystem::path& dir);

}  // namespace tandem::convert
