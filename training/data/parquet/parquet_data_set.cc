#include "training/data/parquet/parquet_data_set.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"

namespace tandem::training {
namespace {

std::vector<std::string> TypesOf(const ParquetFile& file, const std::vector<std::string>& columns) {
  std::vector<std::string> types;
  for (const std::string& name : columns) {
    for (const ParquetField& column : file.schema().columns) {
      if (column.name == name) types.push_back(TypeText(column, file.schema()));
    }
  }
  return types;
}

}  // namespace

std::shared_ptr<const ParquetDataSet> ParquetDataSet::Open(
    const std::vector<std::filesystem::path>& files, const std::vector<std::string>& columns,
    ParquetOptions options) {
  TANDEM_CHECK(!files.empty());
  const std::shared_ptr<ParquetDataSet> set(new ParquetDataSet);
  set->columns_ = columns;
  set->options_ = options;
  set->name_ = files[0].string();
  for (const auto& file : files) set->Add(file);
  return set;
}

void ParquetDataSet::Add(const std::filesystem::path& path) {
  const auto file = ParquetFile::Open(path);
  if (columns_.empty()) columns_ = ReadableColumns(*file);
  if (columns_.empty()) {
    throw Error(ErrorCode::kInvalidArgument, file->name() +
                                                 ": none of its columns can be read; it has " +
                                                 Quoted(file->DescribeColumns(), 400));
  }
  rows_.emplace_back(file, columns_, options_);
  const std::vector<std::string> types = TypesOf(*file, columns_);
  if (types_.empty()) types_ = types;
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] == types_[i]) continue;
    throw Error(ErrorCode::kInvalidArgument, file->name() + ": column " + Quoted(columns_[i]) +
                                                 " is of type " + Quoted(types[i]) + ", in " +
                                                 name_ + " of " + Quoted(types_[i]));
  }
  names_.push_back(path.filename().string());
  ends_.push_back(size() + file->n_rows());
  last_use_.push_back(0);
}

size_t ParquetDataSet::FileOf(int64_t i) const {
  TANDEM_CHECK(i >= 0 && i < size());
  return static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), i) - ends_.begin());
}

nlohmann::ordered_json ParquetDataSet::Read(int64_t i) const {
  const size_t file_idx = FileOf(i);
  const std::lock_guard lock(mutex_);
  last_use_[file_idx] = ++n_uses_;
  auto row = rows_[file_idx].JsonRow(i - BeginOf(file_idx));
  MakeRoom(file_idx);
  return row;
}

// Each file limits its own cache. If all together exceed the limit, whole files are dropped, least
// recently used first.
void ParquetDataSet::MakeRoom(size_t keep) const {
  int64_t bytes = 0;
  for (const ParquetRows& rows : rows_) bytes += rows.cached_bytes();
  while (bytes > options_.cache_bytes) {
    size_t oldest = keep;
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (i == keep || rows_[i].cached_bytes() == 0) continue;
      if (oldest == keep || last_use_[i] < last_use_[oldest]) oldest = i;
    }
    if (oldest == keep) return;
    bytes -= rows_[oldest].cached_bytes();
    rows_[oldest].DropCache();
  }
}

std::string ParquetDataSet::Where(int64_t i) const {
  const size_t file_idx = FileOf(i);
  return names_[file_idx] + ", row " + std::to_string(i - BeginOf(file_idx) + 1);
}

}  // namespace tandem::training
