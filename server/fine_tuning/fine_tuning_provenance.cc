#include "server/fine_tuning/fine_tuning_provenance.h"

#include <nlohmann/json.hpp>

#include "convert/work/provenance.h"
#include "engine/adapter/lora_adapter.h"
#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/io/atomic_write.h"
#include "engine/io/mapped_file.h"
#include "engine/io/sha256.h"
#include "engine/model/model.h"
#include "server/fine_tuning/fine_tuning_object.h"
#include "server/wire/version.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Uses the base hash recorded by the adapter; falls back to the hash of the served base.
Json BaseOf(const Job& job, const fs::path& dir, const ModelRegistry& models) {
  const std::string id = FineTunedBaseOf(job);
  Json base = {{"role", "base"}, {"name", id}};
  std::string hash;
  if (fs::is_regular_file(dir / "adapter_config.json")) {
    hash = engine::LoraAdapter::Open(dir).origin().base_hash;
  }
  if (models.Contains(id)) {
    const std::shared_ptr<const ServedModel> model = models.Look(id);
    if (hash.empty()) hash = model->loaded().model->content_hash();
    if (!model->provenance.empty()) base["provenance"] = Json::parse(model->provenance);
  }
  if (hash.empty()) {
    base["reason"] = "no hash: the base was no longer served";
  } else {
    base["content_sha256"] = hash;
  }
  return base;
}

Json FileOf(const char* role, const std::string& id, FileStore& files) {
  Json file = {{"role", role}, {"name", id}};
  const auto deleted = ErrorOf([&] {
    const std::optional<StoredFile> stored = files.Find(id);
    if (stored && !stored->sha256.empty()) {
      file["bytes"] = stored->bytes;
      file["file_sha256"] = stored->sha256;
      return;
    }
    const auto mapped = engine::MappedFile::Open(files.PathOf(id));
    file["bytes"] = mapped->bytes().size();
    file["file_sha256"] = engine::ToHex(engine::Sha256Of(mapped->bytes()));
  });
  if (deleted) file["reason"] = "no hash: the file was deleted";
  return file;
}

}  // namespace

void RecordFineTuning(const Job& job, const fs::path& dir, const ModelRegistry& models,
                      FileStore& files) {
  const fs::path record = dir / convert::kTrainingFile;
  const auto error = Attempt([&] {
    if (fs::exists(record)) return;
    Json parents = Json::array({BaseOf(job, dir, models)});
    const char* role = "training_file";
    for (const std::string& id : FineTuningFilesOf(job)) {
      parents.push_back(FileOf(role, id, files));
      role = "validation_file";
    }
    const Json text = {{"version", 1},
                       {"created", job.finished_at.value_or(job.created_at)},
                       {"producer", {{"name", "tandem"}, {"version", VersionNumber()}}},
                       {"job", job.id},
                       {"parents", parents}};
    engine::WriteFileAtomically(record,
                                text.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  });
  if (error) spdlog::warn("provenance_not_written job={} reason=\"{}\"", job.id, error->what());
}

}  // namespace tandem::server
