#include "training/setup/checked_rows.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>

#include "engine/io/sha256.h"
#include "training/data/sample_encoder.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct Count {
  const char* name;
  int64_t DataReport::*field;
};
constexpr Count kCounts[] = {
    {"rows", &DataReport::rows},       {"samples", &DataReport::samples},
    {"tokens", &DataReport::tokens},   {"trained_tokens", &DataReport::trained_tokens},
    {"longest", &DataReport::longest}, {"over_length", &DataReport::over_length},
};

}  // namespace

std::string KeyOfRows(const std::vector<fs::path>& files, const std::string& settings) {
  ordered_json key = {{"version", kEncoderVersion}, {"settings", settings}};
  for (const fs::path& file : files) {
    std::error_code failed;
    const fs::path name = fs::canonical(file, failed);
    if (failed) return "";
    const auto size = fs::file_size(name, failed);
    if (failed) return "";
    const auto changed = fs::last_write_time(name, failed);
    if (failed) return "";
    key["files"].push_back({name.string(), size, changed.time_since_epoch().count()});
  }
  const std::string text = key.dump();
  return engine::ToHex(engine::Sha256Of(std::as_bytes(std::span(text))));
}

std::optional<DataReport> ReadCheckedRows(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  const auto record = ordered_json::parse(file, nullptr, false);
  if (key.empty() || !record.is_object() ||
      record.value("key", ordered_json()) != ordered_json(key)) {
    return std::nullopt;
  }
  DataReport report;
  for (const Count& count : kCounts) {
    const auto value = record.find(count.name);
    if (value == record.end() || !value->is_number_unsigned()) return std::nullopt;
    report.*count.field = value->get<int64_t>();
  }
  // WriteCheckedRows keeps records of such rows only.
  if (report.rows != report.samples || report.rows == 0) return std::nullopt;
  return report;
}

void WriteCheckedRows(const fs::path& path, const std::string& key, const DataReport& report) {
  if (key.empty()) return;
  ordered_json record = {{"key", key}};
  for (const Count& count : kCounts) record[count.name] = report.*count.field;
  const fs::path temporary = path.string() + ".tmp";
  std::ofstream file(temporary);
  file << record.dump(2) << '\n';
  file.close();
  std::error_code failed;
  if (file) fs::rename(temporary, path, failed);
  if (!file || failed) fs::remove(temporary, failed);
}

}  // namespace tandem::training
