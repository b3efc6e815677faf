#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "training/data/parquet/parquet_file.h"

namespace tandem::training {

struct ParquetOptions {
  // Limit for the decoded columns of one row group; a larger group is refused.
  int64_t row_group_bytes = int64_t{2} << 30;
  // Limit for decoded row groups kept for later rows. The last group is always kept.
  int64_t cache_bytes = int64_t{256} << 20;
};

// The columns that the footer shows to be readable. Excludes columns of bytes that are not declared
// as text (images, for example); they must be named explicitly.
std::vector<std::string> ReadableColumns(const ParquetFile& file);

// Rows of some top-level columns of a file, by number. Decodes a row group at its first row and
// caches it; in file order every page is decoded once. One thread at a time; several threads may
// share a ParquetFile with one ParquetRows each.
class ParquetRows {
 public:
  // Without `columns`: all. Throws kInvalidArgument for an absent column, and kUnsupported with the
  // remedy for one that cannot be read.
  ParquetRows(std::shared_ptr<const ParquetFile> file, std::span<const std::string> columns = {},
              ParquetOptions options = {});
  ~ParquetRows();
  ParquetRows(ParquetRows&&) noexcept;
  ParquetRows& operator=(ParquetRows&&) = delete;

  int64_t size() const { return file_->n_rows(); }
  // Row i as an object of the columns, in the requested order: null, booleans, numbers, strings,
  // arrays and objects. Strings are UTF-8. NaN and infinities stay numbers, although JSON text
  // would write null. Throws kDataLoss and kUnsupported, naming file, row group and column.
  // REQUIRES: 0 <= i < size().
  nlohmann::ordered_json JsonRow(int64_t i);

  int64_t cached_bytes() const { return cached_bytes_; }
  void DropCache();

 private:
  struct DecodedGroup;
  const DecodedGroup& Group(size_t group_idx);
  DecodedGroup Decode(size_t group_idx) const;

  std::shared_ptr<const ParquetFile> file_;
  std::vector<const ParquetField*> columns_;
  ParquetOptions options_;
  std::vector<int64_t> group_ends_;  // for each row group, the number after its last row
  std::list<DecodedGroup> cache_;    // most recently used first
  int64_t cached_bytes_ = 0;
};

}  // namespace tandem::training
