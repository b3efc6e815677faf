#pragma once

#include <filesystem>
#include <memory>

#include "training/data/array_record/array_record_file.h"
#include "training/data/row_file.h"

namespace tandem::training {

// Rows of an ArrayRecord file: each record is a JSON object or a serialised tf.train.Example, of at
// most JsonRows::kMaxRowBytes.
class ArrayRecordRows final : public RowFile {
 public:
  // Throws as ArrayRecordFile::Open does.
  static std::shared_ptr<const ArrayRecordRows> Open(const std::filesystem::path& path,
                                                     std::shared_ptr<ChunkCache> cache = nullptr);
  explicit ArrayRecordRows(std::shared_ptr<const ArrayRecordFile> file) : file_(std::move(file)) {}

  int64_t size() const override { return file_->size(); }
  nlohmann::ordered_json Read(int64_t i) const override;
  std::string Where(int64_t i) const override { return "record " + std::to_string(i + 1); }
  const std::string& name() const override { return file_->name(); }

 private:
  std::shared_ptr<const ArrayRecordFile> file_;
};

}  // namespace tandem::training
