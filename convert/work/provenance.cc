#include "convert/work/provenance.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr size_t kMaxProvenanceBytes = 1 << 20;
constexpr size_t kMaxText = 256;

enum class FieldKind { kText, kNumber, kBool };
struct Field {
  const char* name;
  FieldKind kind;
};
constexpr std::array kRecordFields = {
    Field{"created", FieldKind::kNumber}, Field{"format", FieldKind::kText},
    Field{"dtype", FieldKind::kText},     Field{"layout", FieldKind::kText},
    Field{"job", FieldKind::kText},       Field{"method", FieldKind::kText},
    Field{"tensors", FieldKind::kNumber}, Field{"bytes", FieldKind::kNumber},
};
constexpr std::array kProducerFields = {Field{"name", FieldKind::kText},
                                        Field{"version", FieldKind::kText}};
constexpr std::array kParentFields = {
    Field{"role", FieldKind::kText},           Field{"name", FieldKind::kText},
    Field{"format", FieldKind::kText},         Field{"content_sha256", FieldKind::kText},
    Field{"tensors_sha256", FieldKind::kText}, Field{"file_sha256", FieldKind::kText},
    Field{"bytes", FieldKind::kNumber},        Field{"reason", FieldKind::kText},
};
constexpr std::array kHashFields = {Field{"content_sha256", FieldKind::kText},
                                    Field{"tensors_sha256", FieldKind::kText}};
constexpr std::array kCertificateFields = {
    Field{"state", FieldKind::kText},
    Field{"reason", FieldKind::kText},
    Field{"compute", FieldKind::kText},
    Field{"equal_tensors", FieldKind::kBool},
    Field{"positions", FieldKind::kNumber},
    Field{"windows", FieldKind::kNumber},
    Field{"max_abs_difference", FieldKind::kNumber},
    Field{"mean_kl", FieldKind::kNumber},
    Field{"max_kl", FieldKind::kNumber},
    Field{"same_first_choice", FieldKind::kNumber},
};
constexpr std::array kMergeFields = {
    Field{"dtype", FieldKind::kText},
    Field{"layers", FieldKind::kNumber},
    Field{"compared_positions", FieldKind::kNumber},
    Field{"max_abs_difference", FieldKind::kNumber},
    Field{"bound", FieldKind::kNumber},
    Field{"moved_by_adapter", FieldKind::kNumber},
};

// Returns at most kMaxText bytes and never splits a UTF-8 character.
std::string Cut(std::string text) {
  if (text.size() <= kMaxText) return text;
  size_t end = kMaxText;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  return text;
}

template <size_t n>
Json Take(const Json& from, const std::array<Field, n>& fields) {
  Json out = Json::object();
  for (const Field& field : fields) {
    const auto value = from.find(field.name);
    if (value == from.end()) continue;
    if (field.kind == FieldKind::kText && value->is_string()) out[field.name] = Cut(*value);
    if (field.kind == FieldKind::kNumber && value->is_number()) out[field.name] = *value;
    if (field.kind == FieldKind::kBool && value->is_boolean()) out[field.name] = *value;
  }
  return out;
}

const Json* FindObject(const Json& from, const char* name) {
  const auto value = from.find(name);
  return value != from.end() && value->is_object() ? &*value : nullptr;
}

// Copies the known fields of a record and of its parents' records.
class Trimmer {
 public:
  Json Trim(const Json& record, int generations) {
    Json out = Take(record, kRecordFields);
    if (const Json* producer = FindObject(record, "producer")) {
      out["producer"] = Take(*producer, kProducerFields);
    }
    bool truncated = record.value("truncated", Json()) == true;
    out["parents"] = TrimParents(record, generations, &truncated);
    const Json* hashes = FindObject(record, "hashes");
    out["hashes"] = hashes == nullptr ? Json::object() : Take(*hashes, kHashFields);
    const Json* certificate = FindObject(record, "certificate");
    out["certificate"] = certificate == nullptr ? Json() : Take(*certificate, kCertificateFields);
    if (const Json* merge = FindObject(record, "merge")) out["merge"] = Take(*merge, kMergeFields);
    if (truncated) out["truncated"] = true;
    return out;
  }

 private:
  Json TrimParents(const Json& record, int generations, bool* truncated) {
    Json out = Json::array();
    const auto parents = record.find("parents");
    if (parents == record.end() || !parents->is_array()) return out;
    for (const Json& parent : *parents) {
      if (!parent.is_object()) continue;
      if (parents_left_ == 0) {
        *truncated = true;
        break;
      }
      --parents_left_;
      out.push_back(Take(parent, kParentFields));
      const Json* provenance = FindObject(parent, "provenance");
      if (provenance == nullptr) continue;
      if (generations > 1) {
        out.back()["provenance"] = Trim(*provenance, generations - 1);
      } else {
        out.back()["truncated"] = true;
      }
    }
    return out;
  }

  int parents_left_ = kMostParents;
};

}  // namespace

fs::path RecordBeside(const fs::path& file) {
  fs::path record = file;
  return record += std::string(".") + kRecordFile;
}

std::string TrimProvenance(const std::string& text, const std::string& source) {
  const Json record = engine::ParseUntrustedJson(text, source);
  if (!record.is_object()) throw Error(ErrorCode::kDataLoss, source + ": must be a JSON object");
  return Trimmer().Trim(record, kMostGenerations).dump();
}

fs::path FindRecord(const fs::path& model) {
  std::error_code unreadable;
  const std::array<fs::path, 2> files = fs::is_directory(model, unreadable)
                                            ? std::array{model / kRecordFile, model / kTrainingFile}
                                            : std::array{RecordBeside(model), fs::path()};
  for (const fs::path& file : files) {
    if (!file.empty() && fs::is_regular_file(file, unreadable)) return file;
  }
  return {};
}

std::string ReadProvenance(const fs::path& model) {
  const fs::path file = FindRecord(model);
  if (file.empty()) return "";
  return TrimProvenance(engine::ReadWholeFile(file, kMaxProvenanceBytes), file.string());
}

}  // namespace tandem::convert
