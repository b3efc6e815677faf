#include "convert/reshard.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "convert/model_source.h"
#include "convert/model_texts.h"
#include "convert/open_tensors.h"
#include "convert/provenance.h"
#include "convert/record.h"
#include "convert/tensor_diff.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/model_dir.h"
#include "engine/io/safetensors_stream.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Shard = std::vector<engine::NamedTensor>;

constexpr int64_t kMaxShards = 99999;  // five digits

std::vector<Shard> Split(const ModelSource& source, int64_t shard_bytes) {
  std::vector<Shard> shards;
  int64_t bytes = 0;
  for (const engine::NamedTensor& tensor : source.tensors()) {
    const auto more = static_cast<int64_t>(tensor.view.bytes());
    if (shards.empty() || more > shard_bytes - bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(tensor);
    bytes += more;
  }
  if (static_cast<int64_t>(shards.size()) > kMaxShards) {
    throw Error(ErrorCode::kInvalidArgument,
                "shards of " + std::to_string(shard_bytes) + " bytes would be " +
                    std::to_string(shards.size()) + ", more than " + std::to_string(kMaxShards));
  }
  return shards;
}

std::string ShardName(size_t index, size_t count) {
  if (count == 1) return "model.safetensors";
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

void WriteShards(const ModelSource& source, const std::vector<Shard>& shards, const fs::path& dir,
                 const ReshardOptions& options) {
  Json places = Json::object();
  std::vector<std::byte> buffer;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = ShardName(i, shards.size());
    int64_t read = -1;
    engine::WriteSafetensors(dir / name, shards[i], {{"format", "pt"}},
                             [&](const engine::NamedTensor& tensor) {
                               if (read >= 0) source.LetGo(read);
                               read = source.Find(tensor.name);
                               if (options.advance) {
                                 options.advance(static_cast<int64_t>(tensor.view.bytes()));
                               }
                               return source.Read(read, &buffer);
                             });
    if (read >= 0) source.LetGo(read);
    for (const engine::NamedTensor& tensor : shards[i]) places[tensor.name] = name;
  }
  if (shards.size() == 1) return;
  const Json index = {{"metadata", {{"total_size", source.bytes()}}}, {"weight_map", places}};
  engine::WriteFileAtomically(dir / "model.safetensors.index.json", index.dump(2) + "\n");
}

void RefuseBlocks(const engine::ModelDir& model) {
  for (const std::string& name : model.tensor_names()) {
    const engine::Encoding encoding = model.FindStored(name)->encoding;
    if (encoding == engine::Encoding::kPlain) continue;
    throw Error(ErrorCode::kUnsupported,
                model.name() + ": tensor " + Quoted(name) + " is in blocks of integers (" +
                    std::string(EncodingName(encoding)) +
                    "), which safetensors do not have: tandem convert --to hf decodes them");
  }
}

}  // namespace

ReshardResult Reshard(const fs::path& from, const fs::path& target, const ReshardOptions& options) {
  if (options.shard_bytes < 1) {
    throw Error(ErrorCode::kInvalidArgument, "a shard must have a byte at least");
  }
  const fs::path path = NewestStep(from);
  RefuseBlocks(engine::ModelDir::Open(path));
  const auto source = OpenModelFiles(path, {});
  const std::vector<Shard> shards = Split(*source, options.shard_bytes);
  ConvertSpec spec;
  spec.source = path;
  spec.target = target;
  engine::PublishDirectory(
      target,
      [&](const fs::path& dir) {
        WriteShards(*source, shards, dir, options);
        for (const auto& [name, text] : TextsOf(*source, {})) {
          engine::WriteFileAtomically(dir / name, text);
        }
        const TensorDiff diff = DiffTensors(*source, *OpenModelFiles(dir, {}), options.advance);
        if (!diff.differences.empty()) {
          throw Error(ErrorCode::kDataLoss, source->name() + ": tensor " +
                                                Quoted(diff.differences.front().name) +
                                                " is not what was written; nothing is kept");
        }
        Certificate certificate;
        certificate.reason = "tensors are the source's, compared bit for bit";
        engine::WriteFileAtomically(
            dir / kRecordFile,
            RecordText(spec, dir, certificate, {.cache_dir = options.cache_dir}));
      },
      options.if_there);
  return {static_cast<int64_t>(shards.size()), static_cast<int64_t>(source->tensors().size()),
          source->bytes()};
}

}  // namespace tandem::convert
