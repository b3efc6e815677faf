#include "engine/formats/checkpoint_manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/json.h"
#include "engine/io/mapped_file.h"
#include "engine/io/sha256.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "tandem-checkpoint";
constexpr int64_t kVersion = 1;
constexpr size_t kMaxFiles = 1 << 16;
constexpr size_t kMaxBytes = 64 << 20;

bool IsPlain(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

bool IsHash(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

CheckpointManifest::File ParseFile(const Json& file, const std::string& source) {
  if (!file.is_object())
    throw Error(ErrorCode::kDataLoss, source + ": every item of field 'files' must be an object");
  CheckpointManifest::File out;
  out.name = JsonStringOr(file, "name", "", source);
  if (!IsPlain(out.name)) {
    throw Error(ErrorCode::kDataLoss,
                source + ": file " + Quoted(out.name) + " must be a plain file name");
  }
  out.bytes = JsonInt(file, "bytes", 0, INT64_MAX, source);
  out.sha256 = JsonStringOr(file, "sha256", "", source);
  if (IsHash(out.sha256)) return out;
  throw Error(ErrorCode::kDataLoss,
              source + ": file " + Quoted(out.name) + " must have a sha256 of 64 hex digits");
}

std::string OneOf(const Json& object, const char* field, const std::string& fallback,
                  std::initializer_list<const char*> known, const std::string& source) {
  std::string value = JsonStringOr(object, field, fallback, source);
  if (std::find(known.begin(), known.end(), value) != known.end()) return value;
  throw Error(ErrorCode::kUnsupported, source + ": field '" + field + "' has the unknown value " +
                                           Quoted(value) +
                                           "; the checkpoint may be from a newer version");
}

// Hashes piece by piece and drops each piece from memory, so that a large file does not stay
// resident.
std::string HashOf(const fs::path& path) {
  constexpr size_t kPieceBytes = 16 << 20;
  const auto file = MappedFile::Open(path);
  Sha256 sha;
  for (size_t at = 0; at < file->bytes().size(); at += kPieceBytes) {
    const auto piece = file->bytes().subspan(at, std::min(kPieceBytes, file->bytes().size() - at));
    sha.Update(piece);
    file->LetGo(piece);
  }
  return ToHex(sha.Finish());
}

}  // namespace

std::vector<std::string> CheckpointManifest::TensorFiles(std::string_view stem) const {
  std::vector<std::string> names;
  for (const File& file : files) {
    const std::string& name = file.name;
    const bool is_shard = name.starts_with(std::string(stem) + "-");
    if ((is_shard || name == std::string(stem) + ".safetensors") &&
        name.ends_with(".safetensors")) {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string CheckpointManifest::ToJson() const {
  Json list = Json::array();
  for (const File& file : files) {
    list.push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  Json producer = {{"name", "tandem"}};
  if (!isa.empty()) producer["isa"] = isa;
  return Json{{"format", kFormat},    {"version", kVersion}, {"kind", kind},
              {"layout", layout},     {"arch", arch},        {"step", step},
              {"producer", producer}, {"files", list}}
             .dump(2) +
         "\n";
}

CheckpointManifest ParseCheckpointManifest(std::string_view json, const std::string& source) {
  if (json.size() > kMaxBytes)
    throw Error(ErrorCode::kDataLoss, source + ": the manifest has " + std::to_string(json.size()) +
                                          " bytes, more than the limit of " +
                                          std::to_string(kMaxBytes));
  const Json manifest = ParseUntrustedJson(json, source);
  if (!manifest.is_object() || JsonStringOr(manifest, "format", "", source) != kFormat) {
    throw Error(ErrorCode::kDataLoss, source + ": not a checkpoint manifest");
  }
  const int64_t version = JsonInt(manifest, "version", 0, INT64_MAX, source);
  if (version != kVersion) {
    throw Error(ErrorCode::kUnsupported,
                source + ": checkpoint format version " + std::to_string(version) +
                    " is not supported; this program reads version " + std::to_string(kVersion));
  }
  CheckpointManifest out;
  out.kind = OneOf(manifest, "kind", "full", {"full", "params", "adapter"}, source);
  out.layout = OneOf(manifest, "layout", "unstacked", {"stacked", "unstacked"}, source);
  out.arch = JsonStringOr(manifest, "arch", "", source);
  out.step = JsonIntOr(manifest, "step", 0, 0, INT64_MAX, source);
  const auto producer = manifest.find("producer");
  if (producer != manifest.end() && producer->is_object()) {
    out.isa = JsonStringOr(*producer, "isa", "", source);
  }
  const auto files = manifest.find("files");
  if (files == manifest.end() || !files->is_array() || files->empty() ||
      files->size() > kMaxFiles) {
    throw Error(ErrorCode::kDataLoss, source + ": field 'files' must be an array of 1 to " +
                                          std::to_string(kMaxFiles) + " files");
  }
  std::set<std::string> names;
  for (const Json& file : *files) {
    out.files.push_back(ParseFile(file, source));
    if (!names.insert(out.files.back().name).second) {
      throw Error(ErrorCode::kDataLoss,
                  source + ": field 'files' lists " + Quoted(out.files.back().name) + " twice");
    }
  }
  return out;
}

bool IsCheckpointManifest(std::string_view json) {
  if (json.size() > kMaxBytes) return false;
  // Uses the sorted map: insertion into ordered_json is linear in the number of names.
  const auto manifest = nlohmann::json::parse(json, nullptr, false);
  return manifest.is_object() && manifest.value("format", nlohmann::json()) == kFormat;
}

void CheckManifestFiles(const CheckpointManifest& manifest, const fs::path& dir, bool hashes) {
  for (const CheckpointManifest::File& file : manifest.files) {
    const fs::path path = dir / file.name;
    std::error_code failed;
    const uintmax_t bytes = fs::file_size(path, failed);
    if (failed) throw Error(ErrorCode::kDataLoss, path.string() + ": " + failed.message());
    if (bytes != static_cast<uintmax_t>(file.bytes)) {
      throw Error(ErrorCode::kDataLoss, path.string() + ": the file has " + std::to_string(bytes) +
                                            " bytes instead of " + std::to_string(file.bytes));
    }
    if (hashes && HashOf(path) != file.sha256) {
      throw Error(ErrorCode::kDataLoss,
                  path.string() + ": the content does not match the SHA-256 in the manifest");
    }
  }
}

}  // namespace tandem::engine
