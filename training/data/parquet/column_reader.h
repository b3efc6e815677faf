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

// What may still be held of a row group once decoded. Taken before it is allocated.
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

// One column of one row group. An entry is a value, a null or an empty list; levels are in the
// order of entries, values (without nulls) in an order of their own. Strings are views into the
// file or into `pages`.
struct DecodedColumn {
  std::vector<uint8_t> definitions;  // empty: all 0
  std::vector<uint8_t> repetitions;  // empty: all 0
  // By the kind of the leaf, one of these. Unsigned numbers lie in `integers` as their bits.
  std::vector<int64_t> integers;  // also booleans
  std::vector<double> doubles;
  std::vector<std::string_view> strings;
  // [n_rows + 1], where each row begins; empty: row i is entry i, or value i.
  std::vector<uint32_t> row_entries;
  std::vector<uint32_t> row_values;
  std::vector<std::unique_ptr<std::byte[]>> pages;
};

// Why the column cannot be read here, without reading it; empty: it can, as far as the footer says.
// The text names what is missing and what to do.
std::string RefusalOf(const ColumnChunk& chunk);

// REQUIRES: RefusalOf(chunk) is empty and the leaf's field has no refusal. `file` is the whole file
// and must outlive the result; `data_end` is where its footer begins.
DecodedColumn DecodeColumn(std::span<const std::byte> file, size_t data_end,
                           const ColumnChunk& chunk, const ParquetLeaf& leaf, int64_t n_rows,
                           const ParquetPlace& place, DecodeBudget& budget);

}  // namespace tandem::training
