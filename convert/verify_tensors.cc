#include "convert/verify_tensors.h"

#include <nlohmann/json.hpp>

#include "convert/open_tensors.h"
#include "convert/orbax/orbax_checkpoint.h"
#include "convert/provenance.h"
#include "convert/tensor_hash.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"
#include "engine/io/mapped_file.h"
#include "engine/io/model_dir.h"
#include "engine/io/sha256.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kManifest = "manifest.json";
constexpr size_t kMaxManifestBytes = 16 << 20;

// What is wrong goes into the report. Not what is only not for us to read, nor a wish to stop.
template <typename Check>
void Try(VerifyReport* report, const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCancelled || error.code() == ErrorCode::kUnsupported) throw;
    report->faults.emplace_back(error.what());
  }
}

std::string HashOfFile(const fs::path& path, const VerifyOptions& options) {
  constexpr size_t kPieceBytes = 32 << 20;
  const auto file = engine::MappedFile::Open(path);
  engine::Sha256 sha;
  for (size_t at = 0; at < file->bytes().size(); at += kPieceBytes) {
    const auto piece = file->bytes().subspan(at, std::min(kPieceBytes, file->bytes().size() - at));
    sha.Update(piece);
    file->LetGo(piece);
    if (options.advance) options.advance(static_cast<int64_t>(piece.size()));
  }
  return engine::ToHex(sha.Finish());
}

void VerifyFile(const fs::path& dir, const Json& file, const VerifyOptions& options,
                VerifyReport* report) {
  const std::string source = (dir / kManifest).string();
  const std::string name = engine::JsonStringOr(file, "name", "", source);
  // A manifest must not make us read outside its directory.
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
    throw Error(ErrorCode::kDataLoss, source + ": bad file name " + Quoted(name));
  }
  const fs::path path = dir / name;
  std::error_code failed;
  const uintmax_t bytes = fs::file_size(path, failed);
  if (failed) throw Error(ErrorCode::kDataLoss, path.string() + ": " + failed.message());
  ++report->files;
  report->bytes += static_cast<int64_t>(bytes);
  const int64_t expected = engine::JsonInt(file, "bytes", 0, INT64_MAX, source);
  if (bytes != static_cast<uintmax_t>(expected)) {
    throw Error(ErrorCode::kDataLoss, path.string() + ": has " + std::to_string(bytes) +
                                          " bytes instead of " + std::to_string(expected));
  }
  if (options.quick) return;
  if (HashOfFile(path, options) == engine::JsonStringOr(file, "sha256", "", source)) return;
  throw Error(ErrorCode::kDataLoss, path.string() + ": content does not match its SHA-256");
}

void VerifyManifest(const fs::path& dir, const VerifyOptions& options, VerifyReport* report) {
  const std::string source = (dir / kManifest).string();
  report->format = "tandem-checkpoint";
  report->held_to = options.quick ? "sizes of manifest.json" : "SHA-256 of manifest.json";
  Try(report, [&] {
    const Json manifest = engine::ParseUntrustedJson(
        engine::ReadWholeFile(dir / kManifest, kMaxManifestBytes), source);
    const auto files = manifest.find("files");
    if (!manifest.is_object() || files == manifest.end() || !files->is_array() || files->empty()) {
      throw Error(ErrorCode::kDataLoss, source + ": field files is missing");
    }
    const int64_t version = engine::JsonInt(manifest, "version", 0, INT64_MAX, source);
    if (version != 1) {
      throw Error(ErrorCode::kUnsupported,
                  source + ": checkpoint format version " + std::to_string(version));
    }
    for (const Json& file : *files) Try(report, [&] { VerifyFile(dir, file, options, report); });
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
    for (const OrbaxCheckpoint::Leaf& leaf : checkpoint.leaves()) {
      if (!leaf.array) continue;
      ++report->files;
      report->bytes += leaf.array->bytes();
      if (options.quick) continue;
      Try(report, [&] {
        std::vector<std::byte> values(static_cast<size_t>(leaf.array->bytes()));
        checkpoint.Read(leaf, values);
        if (options.advance) options.advance(leaf.array->bytes());
      });
    }
  });
}

// The hash of the weights that the directory's own record tells; empty: it does not.
std::string RecordedHash(const fs::path& path) {
  const std::string provenance = ReadProvenance(path);
  if (provenance.empty()) return "";
  return Json::parse(provenance)["hashes"].value("content_sha256", "");
}

void VerifyOthers(const fs::path& path, const VerifyOptions& options, VerifyReport* report) {
  const bool is_known = fs::is_regular_file(path) || fs::is_regular_file(path / "config.json") ||
                        fs::is_regular_file(path / "adapter_config.json");
  if (!is_known) {
    throw Error(ErrorCode::kUnsupported,
                path.string() + ": neither a model, nor an adapter, nor a checkpoint");
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
      report->held_to = "sizes and headers, and every byte read; there is no hash to hold it to";
      HashTensors(*opened.source, options.advance);
      return;
    }
    report->held_to = std::string("SHA-256 of ") + kRecordFile;
    const std::string is = engine::ModelDir::Open(path).ContentHash({}, [&] {
      if (options.advance) options.advance(0);
    });
    if (is == recorded) return;
    throw Error(ErrorCode::kDataLoss,
                path.string() + ": its weights do not match the SHA-256 in " + kRecordFile);
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
  if (fs::is_regular_file(report.path / kManifest)) {
    VerifyManifest(report.path, options, &report);
  } else if (OrbaxCheckpoint::Is(given)) {
    VerifyOrbax(given, options, &report);
  } else {
    VerifyOthers(report.path, options, &report);
  }
  return report;
}

}  // namespace tandem::convert
