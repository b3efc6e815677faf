// A Parquet file: its footer, and every row of every column that can be read.

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "tests/fuzz/strangers_file.h"
#include "training/data/parquet/parquet_file.h"
#include "training/data/parquet/parquet_rows.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::training;
  using tandem::engine::ReadStrangersFile;
  using tandem::engine::Require;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  ReadStrangersFile([&] {
    const auto file = ParquetFile::FromBytes(bytes, "fuzz");
    ParquetOptions options;
    options.row_group_bytes = 1 << 20;
    options.cache_bytes = 1 << 19;
    // One column at a time, so that a refused one does not hide the others.
    for (const std::string& name : file->column_names()) {
      ReadStrangersFile([&] {
        ParquetRows rows(file, std::vector<std::string>{name}, options);
        for (int64_t i = 0; i < rows.size() && i < 2000; ++i) {
          const auto row = rows.JsonRow(i);
          Require(row.is_object() && row.size() == 1);
          Require(!row.dump().empty());  // throws for text that is not UTF-8
        }
      });
    }
  });
  return 0;
}
