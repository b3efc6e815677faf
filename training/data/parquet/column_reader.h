#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "training/data/parquet/metadata.h"
#include "training/data/parquet/place.h"
#include "training/data/parquet/schema.h"

namespace tandem::training {

// The memory that a decoded row group may still use. Take before each allocation.
class DecodeBudget {
 public:
  explicit DecodeBudget(int64_t bytes) : limit_(bytes) {}
  // Throws kUnsupported beyond the limit.
  void Take(uint64_t bytes, const ParquetPlace& place);
  int64_t taken() const { return taken_; }

 private:
  int64_t limit_;
  int64_t taken_ = 0;
};

// One column of one row group. An entry is a value, a null or an empty list. Levels are in entry
// order; values have an order of their own, without nulls. Strings point into the file or into
// `pages`.
struct DecodedColumn {
  std::vector<uint8_t> definitions;  // empty: all 0
  std::vector<uint8_t> repetitions;  // empty: all 0
  // The leaf's kind selects one of these. Unsigned numbers are stored in `integers` bit by bit.
  std::vector<int64_t> integers;  // booleans too
  std::vector<double> doubles;
  std::vector<std::string_view> strings;
  // Index of each row's first entry and value, [n_rows + 1]. Empty: row i is entry i, or value i.
  std::vector<uint32_t> row_entries;
  std::vector<uint32_t> row_values;
  std::vector<std::unique_ptr<std::byte[]>> pages;
};

// The reason why the column cannot be read, and the remedy, from the footer alone; empty: it can be
// read.
std::string RefusalOf(const ColumnChunk& chunk);

// REQUIRES: RefusalOf(chunk) is empty and the leaf's field has no refusal. `file` is the whole file
// and must outlive the result; `data_end` is the begin of its footer.
DecodedColumn DecodeColumn(std::span<const std::byte> file, size_t data_end,
                           const ColumnChunk& chunk, const ParquetLeaf& leaf, int64_t n_rows,
                           const ParquetPlace& place, DecodeBudget& budget);

}  // namespace tandem::training
