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
  // Of the columns asked for in one row group, decoded; a larger one is refused.
  int64_t row_group_bytes = int64_t{2} << 30;
  // Of decoded row groups kept for the next row. The last one is kept whatever its size.
  int64_t cache_bytes = int64_t{256} << 20;
};

// The columns that can be read as far as the footer says, without those that hold bytes not
// declared as text (images and the like), which are read only when they are named.
std::vector<std::string> ReadableColumns(const ParquetFile& file);

// Rows of some top-level columns of a file, by number. A row group is decoded when its first row is
// asked for and kept as the cache allows; in the order of the file every page is decoded once.
// For one thread at a time; several may read one ParquetFile through a ParquetRows each.
class ParquetRows {
 public:
  // No columns: all of them. Throws kInvalidArgument for a column that is not there, kUnsupported
  // for one that cannot be read, with what to do about it.
  ParquetRows(std::shared_ptr<const ParquetFile> file, std::span<const std::string> columns = {},
              ParquetOptions options = {});
  ~ParquetRows();
  ParquetRows(ParquetRows&&) noexcept;
  ParquetRows& operator=(ParquetRows&&) = delete;

  int64_t size() const { return file_->n_rows(); }
  // Row i as an object of the columns, in the order they were asked for: null, booleans, numbers,
  // strings, arrays and objects. Strings are UTF-8. NaN and infinities stay numbers, which JSON
  // text would write as null. Throws kDataLoss and kUnsupported, naming file, row group and column.
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
  std::vector<int64_t> group_ends_;  // the row after each row group's last
  std::list<DecodedGroup> cache_;    // the last used first
  int64_t cached_bytes_ = 0;
};

}  // namespace tandem::training
