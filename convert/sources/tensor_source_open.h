#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "convert/tensors/model_source.h"

namespace tandem::convert {

// Kinds of tensor files that can be inspected; not all of them can be converted.
enum class TensorsKind {
  kModel,        // anything engine::ModelDir opens
  kAdapter,      // a PEFT directory, or a checkpoint of a run that trains an adapter
  kSafetensors,  // a single safetensors file
  kOrbax,        // leaves under their own names, joined by dots
};
struct OpenedTensors {
  TensorsKind kind;
  std::string format;          // for messages: "hf", "gguf", "orbax, ocdbt", …
  std::filesystem::path path;  // the opened path; the newest step of a directory of steps
  std::unique_ptr<ModelSource> source;
};

// Opens a path for inspection, or the newest step of a run's directory. Orbax leaves without an
// array, or with an unsupported element type, are left out. Throws kNotFound (path_not_found),
// kUnsupported, kDataLoss.
OpenedTensors OpenTensors(const std::filesystem::path& path);

// Opens two paths for comparison. A MaxText checkpoint beside a model is opened as a model
// (maxtext.h), with the dtypes of maxtext.json or else of its parameters. Its config.json is
// `base`'s, else its own, else the other path's, which then also supplies the vocabulary rows that
// MaxText lacks. Other pairs are opened as they are. Throws like OpenTensors
// and OpenMaxText, and kInvalidArgument (param "base") for a base that is not needed.
std::pair<OpenedTensors, OpenedTensors> OpenToCompare(const std::filesystem::path& first,
                                                      const std::filesystem::path& second,
                                                      const std::filesystem::path& base);

// Returns the newest step (000000001000/) of a run's directory, or `dir` if it has none.
std::filesystem::path NewestStep(const std::filesystem::path& dir);

}  // namespace tandem::convert
