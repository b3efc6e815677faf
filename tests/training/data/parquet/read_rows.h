#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "tests/support/paths.h"
#include "training/data/parquet/parquet_file.h"
#include "training/data/parquet/parquet_rows.h"

namespace tandem::training {

// A heap copy of exactly these bytes, so that a sanitizer sees reads beyond them.
class CopiedFile {
 public:
  explicit CopiedFile(const std::string& bytes, const std::string& name = "test.parquet")
      : bytes_(reinterpret_cast<const std::byte*>(bytes.data()),
               reinterpret_cast<const std::byte*>(bytes.data()) + bytes.size()),
        file_(ParquetFile::FromBytes(bytes_, name)) {}
  const std::shared_ptr<const ParquetFile>& get() const { return file_; }

 private:
  std::vector<std::byte> bytes_;
  std::shared_ptr<const ParquetFile> file_;
};

// All rows as JSON lines; NaN becomes null.
inline std::vector<std::string> RowLines(const std::string& bytes,
                                         std::vector<std::string> columns = {},
                                         ParquetOptions options = {}) {
  const CopiedFile file(bytes);
  ParquetRows rows(file.get(), columns, options);
  std::vector<std::string> lines;
  for (int64_t i = 0; i < rows.size(); ++i) lines.push_back(rows.JsonRow(i).dump());
  return lines;
}

inline std::filesystem::path FixtureDir() {
  return tests::SourceDir() / "tests/training/data/parquet/fixtures";
}

inline std::string FileText(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// The error of reading all rows; "" and kInternal without an error.
inline std::pair<std::string, ErrorCode> FaultOf(const std::string& bytes,
                                                 std::vector<std::string> columns = {},
                                                 ParquetOptions options = {}) {
  try {
    RowLines(bytes, std::move(columns), options);
  } catch (const Error& error) {
    return {error.what(), error.code()};
  }
  return {"", ErrorCode::kInternal};
}

}  // namespace tandem::training
