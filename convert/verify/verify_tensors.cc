#include "convert/verify/verify_tensors.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "convert/orbax/orbax_checkpoint.h"
#include "convert/sources/tensor_source_open.h"
#include "convert/tensors/tensor_hash.h"
#include "convert/work/provenance.h"
#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/formats/checkpoint_manifest.h"
#include "engine/formats/model_dir.h"
#include "engine/io/atomic_write.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr size_t kMostManifestBytes = 64 << 20;

// Turns an error into a fault of the report. Unsupported features and cancellation still throw.
template <typename Check>
void Try(VerifyReport* report, const Check& check) {
  const auto fault = ErrorOtherThan({ErrorCode::kCancelled, ErrorCode::kUnsupported}, check);
  if (fault) report->faults.emplace_back(fault->what());
}

void VerifyManifest(const fs::path& dir, const VerifyOptions& options, VerifyReport* report) {
  const std::string source = (dir / engine::kManifestFile).string();
  report->format = "tandem-checkpoint";
  report->held_to = options.quick ? "sizes of manifest.json" : "SHA-256 of manifest.json";
  Try(report, [&] {
    engine::CheckpointManifest manifest = engine::ParseCheckpointManifest(
        engine::ReadWholeFile(dir / engine::kManifestFile, kMostManifestBytes), source);
    // Checks one file at a time, so that every fault is reported.
    for (engine::CheckpointManifest::File& file : std::exchange(manifest.files, {})) {
      ++report->files;
      report->bytes += file.bytes;
      if (options.advance) options.advance(0);
      manifest.files = {std::move(file)};
      Try(report, [&] { engine::CheckManifestFiles(manifest, dir, /*hashes=*/!options.quick); });
      if (options.advance) options.advance(manifest.files.front().bytes);
    }
  });
}

void VerifyOrbax(const fs::path& path, const VerifyOptions& options, VerifyReport* report) {
  report->format = "orbax";
  report->held_to = options.quick ? "tree and checksums of its nodes"
                                  : "tree, checksums, and every chunk decoded";
  Try(report, [&] {
    const OrbaxCheckpoint checkpoint = OrbaxCheckpoint::Open(path);
    if (checkpoint.is_ocdbt()) report->format = "orbax, ocdbt";
    report->path = checkpoint.item_dir();
    int64_t unread = 0;
    for (const OrbaxCheckpoint::Leaf& leaf : checkpoint.leaves()) {
      if (!leaf.array) continue;
      ++report->files;
      if (!leaf.array->IsReadable()) {
        ++unread;
        continue;
      }
      report->bytes += leaf.array->bytes();
      if (options.quick) continue;
      Try(report, [&] {
        checkpoint.Decompress(leaf);  // needs memory for one chunk, whatever the shape claims
        if (options.advance) options.advance(leaf.array->bytes());
      });
    }
    if (unread > 0) {
      report->held_to +=
          "; " + std::to_string(unread) + " leaves of unsupported element types are skipped";
    }
  });
}

// Returns the weights' hash from the directory's record, or an empty string.
std::string RecordedHash(const fs::path& path) {
  const std::string provenance = ReadProvenance(path);
  if (provenance.empty()) return "";
  return Json::parse(provenance)["hashes"].value("content_sha256", "");
}

void VerifyOthers(const fs::path& path, const VerifyOptions& options, VerifyReport* report) {
  const bool is_known = fs::is_regular_file(path) || fs::is_regular_file(path / "config.json") ||
                        fs::is_regular_file(path / "adapter_config.json");
  if (!is_known) {
    throw Error(ErrorCode::kUnsupported, path.string() + ": not a model, adapter or checkpoint");
  }
  report->held_to = "sizes and headers";
  Try(report, [&] {
    const OpenedTensors opened = OpenTensors(path);
    report->format = opened.format;
    report->files = static_cast<int64_t>(opened.source->tensors().size());
    report->bytes = opened.source->bytes();
    if (options.quick) return;
    const std::string recorded = RecordedHash(path);
    if (opened.kind != TensorsKind::kModel || recorded.empty()) {
      report->held_to = "sizes and headers; every byte was read, but no hash is recorded";
      HashTensors(*opened.source, options.advance);
      return;
    }
    const std::string record = FindRecord(path).filename().string();
    report->held_to = "SHA-256 of " + record;
    const std::string is = engine::ModelDir::Open(path).ContentHash({}, [&] {
      if (options.advance) options.advance(0);
    });
    if (is == recorded) return;
    throw Error(ErrorCode::kDataLoss,
                path.string() + ": the weights do not match the SHA-256 in " + record);
  });
}

}  // namespace

VerifyReport VerifyTensors(const fs::path& given, const VerifyOptions& options) {
  if (!fs::exists(given)) {
    throw Error(ErrorCode::kNotFound, given.string() + " does not exist")
        .WithReason("path_not_found");
  }
  VerifyReport report;
  report.path = NewestStep(given);
  if (fs::is_regular_file(report.path / engine::kManifestFile)) {
    VerifyManifest(report.path, options, &report);
  } else if (OrbaxCheckpoint::Is(given)) {
    VerifyOrbax(given, options, &report);
  } else {
    VerifyOthers(report.path, options, &report);
  }
  return report;
}

}  // namespace tandem::convert
