#include "convert/formats/params_spec.h"

#include "convert/formats/formats.h"
#include "convert/sources/tensor_source_open.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/formats/model_dir.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "native-params";

void RefuseBlocks(const fs::path& path) {
  const engine::ModelDir model = engine::ModelDir::Open(path);
  for (const std::string& name : model.tensor_names()) {
    const engine::Encoding encoding = model.FindStored(name)->encoding;
    if (encoding == engine::Encoding::kPlain) continue;
    throw Error(
        ErrorCode::kUnsupported,
        model.name() + ": tensor " + Quoted(name) + " is quantised (" +
            std::string(EncodingName(encoding)) +
            "), which safetensors cannot store: decode the model with tandem convert --to hf");
  }
}

}  // namespace

ConvertSpec ExportParamsSpec(const fs::path& source, const fs::path& target,
                             const std::string& dtype) {
  const Format& format = *FindFormat(kFormat);
  if (dtype != "keep" && !format.HasDType(dtype)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "dtype " + Quoted(dtype) + " is not supported; supported are keep, " + format.DTypeNames());
  }
  ConvertSpec spec;
  spec.source = NewestStep(source);
  spec.target = target;
  spec.format = kFormat;
  if (dtype != "keep") spec.dtype = dtype;
  return spec;
}

ConvertSpec ReshardSpec(const fs::path& source, const fs::path& target, int64_t shard_bytes) {
  if (shard_bytes < 1) {
    throw Error(ErrorCode::kInvalidArgument, "the shard size must be at least 1 byte");
  }
  ConvertSpec spec = ExportParamsSpec(source, target, "keep");
  RefuseBlocks(spec.source);
  spec.max_shard_bytes = shard_bytes;
  return spec;
}

}  // namespace tandem::convert
