#include "training/data/joined_rows.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/check.h"

namespace tandem::training {

JoinedRows::JoinedRows(std::vector<std::shared_ptr<const RowFile>> files)
    : files_(std::move(files)) {
  TANDEM_CHECK(!files_.empty());
  int64_t end = 0;
  for (const auto& file : files_) ends_.push_back(end += file->size());
}

size_t JoinedRows::FileOf(int64_t i) const {
  TANDEM_CHECK(i >= 0 && i < size());
  return static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), i) - ends_.begin());
}

nlohmann::ordered_json JoinedRows::Read(int64_t i) const {
  const size_t at = FileOf(i);
  return files_[at]->Read(i - BeginOf(at));
}

std::string JoinedRows::Where(int64_t i) const {
  const size_t at = FileOf(i);
  return std::filesystem::path(files_[at]->name()).filename().string() + ", " +
         files_[at]->Where(i - BeginOf(at));
}

}  // namespace tandem::training
