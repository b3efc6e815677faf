#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "training/data/scanned_rows.h"

namespace tandem::training {

// Rows of a JSON file: one object per line, or one array of objects.
class JsonRows final : public ScannedRows {
 public:
  static constexpr size_t kMaxRowBytes = size_t{16} << 20;

  // Throws kNotFound / kIo. Throws kDataLoss for a file without rows or of another kind
  // (compressed, Parquet, binary).
  static std::shared_ptr<const JsonRows> Open(const std::filesystem::path& path);
  // Reads from bytes that outlive the object; for tests.
  static std::shared_ptr<const JsonRows> Of(std::string_view text, const std::string& name);

  nlohmann::ordered_json Read(int64_t i) const override;

 private:
  JsonRows(std::shared_ptr<const void> file, std::string_view text, std::string name);
  bool Next(Cursor* at, Row* row) const override;
  bool NextLine(Cursor* at, Row* row) const;
  bool NextElement(Cursor* at, Row* row) const;

  bool is_array_ = false;
};

}  // namespace tandem::training
