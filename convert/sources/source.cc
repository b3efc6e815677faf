#include "convert/sources/source.h"

#include <array>

#include "convert/formats/maxtext/maxtext.h"
#include "convert/orbax/orbax_checkpoint.h"
#include "convert/tensors/checkpoint_source.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/formats/model_dir.h"
#include "engine/formats/not_a_model.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;

template <const char* kName>
bool HasFile(const fs::path& path) {
  std::error_code absent;
  return fs::is_regular_file(path / kName, absent);
}
constexpr char kAdapterConfig[] = "adapter_config.json";
constexpr char kConfig[] = "config.json";

std::unique_ptr<ModelSource> OpenFiles(const ConvertSpec& /*spec*/, const fs::path& path,
                                       std::optional<engine::DType> dtype) {
  return OpenModelFiles(path, dtype);
}

std::unique_ptr<ModelSource> OpenMaxTextSource(const ConvertSpec& spec, const fs::path& path,
                                               std::optional<engine::DType> dtype) {
  return OpenMaxText(path, spec.base, dtype, spec.maxtext.model);
}

// The order matters. Some adapters and MaxText checkpoints also have the config.json of their
// model. The checkpoint of a run that trains an adapter has adapter_config.json and a manifest.
constexpr std::array kForms = {
    SourceForm{SourceKind::kAdapter, "PEFT directory (adapter_config.json)", BaseUse::kRequired,
               HasFile<kAdapterConfig>, nullptr},
    SourceForm{SourceKind::kNative, "checkpoint directory (manifest.json)", BaseUse::kNone,
               IsCheckpoint, OpenCheckpoint},
    SourceForm{SourceKind::kMaxText, "MaxText checkpoint (_METADATA, in a step)",
               BaseUse::kOptional, OrbaxCheckpoint::Is, OpenMaxTextSource},
    SourceForm{SourceKind::kHf, "Hugging Face directory (config.json)", BaseUse::kNone,
               HasFile<kConfig>, OpenFiles},
    SourceForm{SourceKind::kFile, "GGUF or llama2.c file", BaseUse::kNone,
               engine::ModelDir::IsModelFile, OpenFiles},
};

std::string FormNames() {
  std::string names;
  for (const SourceForm& form : kForms)
    names += (names.empty() ? "" : ", ") + std::string(form.name);
  return names;
}

}  // namespace

const SourceForm& FormOf(const fs::path& path, const std::string& param) {
  if (!fs::exists(path)) {
    throw Error(ErrorCode::kNotFound, path.string() + " does not exist")
        .WithParam(param)
        .WithReason("path_not_found");
  }
  for (const SourceForm& form : kForms) {
    if (form.is(path)) return form;
  }
  throw Error(ErrorCode::kUnsupported,
              engine::WhyNotAModel(path) + ". A conversion reads one of: " + FormNames())
      .WithParam(param)
      .WithReason("unsupported_value");
}

std::unique_ptr<ModelSource> OpenSource(const ConvertSpec& spec,
                                        std::optional<engine::DType> dtype) {
  const SourceForm& form = FormOf(spec.source, "source");
  TANDEM_CHECK(form.open != nullptr);
  return form.open(spec, spec.source, dtype);
}

}  // namespace tandem::convert
