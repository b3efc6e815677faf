#include "convert/verify/record.h"

#include <nlohmann/json.hpp>

#include "convert/formats/formats.h"
#include "convert/sources/source.h"
#include "convert/sources/tensor_source_open.h"
#include "convert/tensors/tensor_hash.h"
#include "convert/work/provenance.h"
#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/unix_time.h"
#include "engine/formats/checkpoint_manifest.h"
#include "engine/formats/model_dir.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Identifies a model by the content hash that serving and adapters use, other files by the hash of
// their tensors.
void AddHash(const fs::path& path, const RecordContext& context, Json* parent) {
  const OpenedTensors opened = OpenTensors(path);
  (*parent)["format"] = opened.format;
  (*parent)["bytes"] = opened.source->stored_bytes();
  if (opened.kind == TensorsKind::kModel) {
    // Model::Load keeps its hashes there too.
    const fs::path memo = context.cache_dir.empty() ? fs::path() : context.cache_dir / "hashes";
    (*parent)["content_sha256"] =
        engine::ModelDir::Open(opened.path).ContentHash(memo, context.progress);
    return;
  }
  (*parent)["tensors_sha256"] = HashOf(HashTensors(*opened.source, [&](int64_t) {
    if (context.progress) context.progress();
  }));
}

// "dir/" and "dir" have the same name.
std::string NameOf(const fs::path& path) {
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

Json ParentOf(const char* role, const fs::path& path, const RecordContext& context) {
  Json parent = {{"role", role}, {"name", NameOf(path)}};
  if (const auto error =
          ErrorOtherThan({ErrorCode::kCancelled}, [&] { AddHash(path, context, &parent); })) {
    parent["reason"] = std::string("no hash: ") + error->what();
  }
  if (const auto error = ErrorOf([&] {
        const std::string provenance = ReadProvenance(path);
        if (!provenance.empty()) parent["provenance"] = Json::parse(provenance);
      })) {
    parent["reason"] = std::string("its provenance record is unreadable: ") + error->what();
  }
  return parent;
}

// Hashes the written weights if the engine can open them. Serving and `tandem checkpoint verify`
// use this hash.
Json HashesOf(const fs::path& result, const RecordContext& context) {
  Json hashes = Json::object();
  ErrorOtherThan({ErrorCode::kCancelled}, [&] {
    const engine::ModelDir model = engine::ModelDir::Open(result);
    hashes["content_sha256"] = model.ContentHash({}, context.progress, context.file_hashes);
  });
  return hashes;
}

// Returns the spec without paths.
Json SpecOf(const ConvertSpec& spec) {
  Json out = Json::parse(ConvertSpecJson(spec));
  for (const char* name : {"source", "base", "target"}) {
    out[name] = NameOf(out.value(name, ""));
  }
  return out;
}

}  // namespace

std::string RecordText(const ConvertSpec& spec, const fs::path& result,
                       const Certificate& certificate, const RecordContext& context) {
  const auto written = FindFormat(spec.format)->open(spec, result);
  Json record = {{"version", 1},
                 {"created", UnixNow()},
                 {"producer", {{"name", "tandem"}, {"version", TANDEM_VERSION}}},
                 {"spec", SpecOf(spec)},
                 {"format", FindFormat(spec.format)->name}};
  if (!spec.dtype.empty()) record["dtype"] = spec.dtype;
  if (!spec.layout.empty()) record["layout"] = spec.layout;
  if (!context.job.empty()) record["job"] = context.job;
  if (context.inode != 0) record["inode"] = context.inode;
  record["tensors"] = written->tensors().size();
  record["bytes"] = written->stored_bytes();
  record["hashes"] = HashesOf(result, context);
  record["parents"] = Json::array();
  const bool is_adapter = FormOf(spec.source, "source").kind == SourceKind::kAdapter;
  if (!spec.base.empty()) record["parents"].push_back(ParentOf("base", spec.base, context));
  record["parents"].push_back(ParentOf(is_adapter ? "adapter" : "source", spec.source, context));
  record["certificate"] = Json::parse(CertificateJson(certificate));
  if (!context.merge_json.empty()) {
    record["merge"] = engine::ParseUntrustedJson(context.merge_json, "merge.json");
  }
  if (!context.report_json.empty()) record[spec.format] = Json::parse(context.report_json);
  return record.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void AddToManifest(const fs::path& dir, const std::string& record_text) {
  constexpr size_t kMaxManifestBytes = 64 << 20;
  const fs::path file = dir / engine::kManifestFile;
  if (!fs::is_regular_file(file)) return;
  Json manifest =
      engine::ParseUntrustedJson(engine::ReadWholeFile(file, kMaxManifestBytes), file.string());
  const Json record = Json::parse(record_text);
  for (const char* name : {"parents", "hashes", "certificate"}) manifest[name] = record[name];
  engine::WriteFileAtomically(file, manifest.dump(2) + "\n");
}

}  // namespace tandem::convert
