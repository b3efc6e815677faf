// Prints the rows of Parquet files as JSON lines, for oracle.py: `parquet_rows FILE [COLUMN…]`. Not
// part of the program.
#include "training/data/parquet/parquet_rows.h"

#include <cstdint>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "training/data/parquet/parquet_file.h"

int main(int argc, char** argv) {
  using namespace tandem::training;
  if (argc < 2) {
    std::cerr << "usage: parquet_rows FILE [COLUMN...]\n";
    return 2;
  }
  try {
    const std::vector<std::string> columns(argv + 2, argv + argc);
    ParquetRows rows(ParquetFile::Open(argv[1]), columns);
    for (int64_t i = 0; i < rows.size(); ++i) std::cout << rows.JsonRow(i).dump() << '\n';
  } catch (const tandem::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
