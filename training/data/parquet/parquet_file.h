#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/io/mapped_file.h"
#include "training/data/parquet/metadata.h"
#include "training/data/parquet/place.h"
#include "training/data/parquet/schema.h"

namespace tandem::training {

// A mapped Apache Parquet file: its schema and the places of its row groups. Open checks the whole
// footer; ParquetRows reads pages. Immutable, thread-safe.
class ParquetFile {
 public:
  // Throws kNotFound, kIo, kDataLoss for a broken file or another format, and kUnsupported for an
  // encrypted file or beyond the limits (README.md). An unsupported column is an error only when it
  // is read.
  static std::shared_ptr<const ParquetFile> Open(const std::filesystem::path& path);
  // `bytes` must outlive the file.
  static std::shared_ptr<const ParquetFile> FromBytes(std::span<const std::byte> bytes,
                                                      const std::string& name);

  const std::string& name() const { return place_.text; }
  int64_t n_rows() const { return metadata_.n_rows; }
  const ParquetSchema& schema() const { return schema_; }
  // Names of the top-level columns, in the file's order.
  std::vector<std::string> column_names() const;
  // "messages: list<struct<content: string, role: string>>, prompt: string"
  std::string DescribeColumns() const;

  // For ParquetRows.
  std::span<const std::byte> bytes() const { return bytes_; }
  const FileMetadata& metadata() const { return metadata_; }

 private:
  ParquetFile(std::span<const std::byte> bytes, const std::string& name);

  ParquetPlace place_;
  std::span<const std::byte> bytes_;
  std::shared_ptr<const engine::MappedFile> mapped_;  // null: the bytes are borrowed
  FileMetadata metadata_;
  ParquetSchema schema_;
};

}  // namespace tandem::training
