#include "convert/formats/hf/native.h"

// Tandem checkpoints. `native` has layers stacked or unstacked, and the state of a full checkpoint.
// `native-params` has weights only, so that its directory is also a Hugging Face one.

#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "convert/tensors/checkpoint_source.h"
#include "convert/tensors/model_texts.h"
#include "convert/work/tensor_files.h"
#include "engine/base/error.h"
#include "engine/formats/checkpoint_manifest.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"
#include "engine/io/sha256.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kStateFile = "train_state.json";
constexpr const char* kIndexFile = "model.safetensors.index.json";

std::string HashOf(const std::string& text) {
  return engine::ToHex(engine::Sha256Of(std::as_bytes(std::span(text))));
}

// Returns the target's manifest without its list of files.
engine::CheckpointManifest Beginning(const ModelSource& source, const ModelSource* state,
                                     const std::string& config, bool stacked) {
  engine::CheckpointManifest manifest;
  if (state != nullptr) {
    const std::string file = source.name() + "/" + engine::kManifestFile;
    manifest =
        engine::ParseCheckpointManifest(state->ReadText(engine::kManifestFile).value_or(""), file);
    manifest.files.clear();
  } else {
    manifest.kind = "params";
    const auto json = engine::ParseUntrustedJson(config, source.name() + "/config.json");
    manifest.arch = engine::JsonStringOr(json, "model_type", "", "config.json");
  }
  manifest.layout = stacked ? "stacked" : "unstacked";
  return manifest;
}

std::string IndexText(const std::vector<OutFile>& files) {
  std::map<std::string, std::string> file_of;
  for (const OutFile& file : files) {
    for (const OutTensor& tensor : file.tensors) file_of[tensor.tensor.name] = file.name;
  }
  return Json{{"metadata", {{"total_size", BytesOf(files)}}}, {"weight_map", file_of}}.dump(2) +
         "\n";
}

void RefuseCastOfState(const ConvertSpec& spec) {
  if (spec.dtype.empty()) return;
  throw Error(ErrorCode::kInvalidArgument,
              "dtype " + spec.dtype + ": " + spec.source.filename().string() +
                  " is a checkpoint with optimizer state, which native copies unchanged; leave "
                  "dtype out, or choose native-params")
      .WithParam("target.dtype")
      .WithReason("invalid_value");
}

// `state` is null if the source has none or the target keeps weights only.
void WriteCheckpoint(const ConvertSpec& spec, const WriteContext& context, bool stacked,
                     const ModelSource* state) {
  const ModelSource& source = context.source;
  if (state != nullptr) RefuseCastOfState(spec);

  std::map<std::string, std::string> texts = TextsOf(source, FloatTypeOf(spec.dtype));
  // Like a run's own checkpoints: one file of weights and one of state.
  const bool whole = state != nullptr && !stacked;
  const int64_t limit = whole ? INT64_MAX : spec.max_shard_bytes;
  const auto plan = [&](const ModelSource& of, const char* stem) {
    return InShards(stacked ? Stacked(of) : EachAlone(of), stem, limit, !stacked);
  };
  const std::vector<OutFile> weights = plan(source, "model");
  const std::vector<OutFile> optim = state ? plan(*state, "optim") : std::vector<OutFile>();
  if (state) texts[kStateFile] = state->ReadText(kStateFile).value_or("{}\n");
  if (!stacked && weights.size() > 1) texts[kIndexFile] = IndexText(weights);
  CheckRoom(context.target, BytesOf(weights) + BytesOf(optim));

  engine::CheckpointManifest manifest = Beginning(source, state, texts["config.json"], stacked);
  const auto write = [&](const ModelSource& of, const std::vector<OutFile>& files) {
    for (const WrittenFile& file : WriteTensorFiles(of, files, context)) {
      manifest.files.push_back({file.name, file.bytes, engine::ToHex(file.sha256)});
    }
  };
  write(source, weights);
  if (state) write(*state, optim);
  for (const auto& [name, text] : texts) {
    engine::WriteFileAtomically(context.target / name, text);
    manifest.files.push_back({name, static_cast<int64_t>(text.size()), HashOf(text)});
  }
  engine::WriteFileAtomically(context.target / engine::kManifestFile, manifest.ToJson());
}

}  // namespace

void WriteNative(const ConvertSpec& spec, const WriteContext& context) {
  WriteCheckpoint(spec, context, spec.layout != "unscanned", context.source.state());
}

void WriteNativeParams(const ConvertSpec& spec, const WriteContext& context) {
  WriteCheckpoint(spec, context, /*stacked=*/false, /*state=*/nullptr);
}

std::unique_ptr<ModelSource> OpenNative(const ConvertSpec& spec, const fs::path& target) {
  ConvertSpec unhashed = spec;
  unhashed.verify = false;
  return OpenCheckpoint(unhashed, target, std::nullopt);
}

}  // namespace tandem::convert
