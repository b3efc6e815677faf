#pragma once

#include <memory>
#include <vector>

#include "training/data/row_file.h"

namespace tandem::training {

// The rows of several files, concatenated.
class JoinedRows final : public RowFile {
 public:
  // REQUIRES: at least one file.
  explicit JoinedRows(std::vector<std::shared_ptr<const RowFile>> files);

  int64_t size() const override { return ends_.back(); }
  nlohmann::ordered_json Read(int64_t i) const override;
  std::string Where(int64_t i) const override;  // "train-00001-of-00002.jsonl, line 7"
  const std::string& name() const override { return files_.front()->name(); }

 private:
  size_t FileOf(int64_t i) const;
  int64_t BeginOf(size_t file_idx) const { return file_idx == 0 ? 0 : ends_[file_idx - 1]; }

  std::vector<std::shared_ptr<const RowFile>> files_;
  std::vector<int64_t> ends_;  // for each file, the number after its last row
};

}  // namespace tandem::training
