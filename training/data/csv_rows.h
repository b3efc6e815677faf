#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "training/data/scanned_rows.h"

namespace tandem::training {

// Rows of a CSV file (RFC 4180): fields separated by commas, a header line of column names, quoted
// fields that may hold commas, line ends and doubled quotes. Every value is a text; an empty field
// without quotes is null.
class CsvRows final : public ScannedRows {
 public:
  static constexpr size_t kMaxCsvRowBytes = size_t{16} << 20;
  static constexpr size_t kMaxCsvColumns = 256;

  // Throws kNotFound / kIo. Throws kDataLoss for a file without rows, of another kind, or with an
  // unusable header.
  static std::shared_ptr<const CsvRows> Open(const std::filesystem::path& path);
  // Reads from bytes that outlive the object; for tests.
  static std::shared_ptr<const CsvRows> Of(std::string_view text, const std::string& name);

  // Throws kInvalidArgument for a row with another number of fields than the header, an open quote,
  // text after a closing quote, invalid UTF-8, or more than kMaxCsvRowBytes.
  nlohmann::ordered_json Read(int64_t i) const override;
  const std::vector<std::string>& columns() const { return columns_; }

 private:
  struct Field {
    std::string value;
    bool is_quoted = false;
  };

  CsvRows(std::shared_ptr<const void> file, std::string_view text, std::string name);
  // Skips blank rows; the text of a row is without its line end.
  bool Next(Cursor* at, Row* row) const override;
  // Throws for a fault of the row's quotes or for more than kMaxCsvColumns fields.
  static std::vector<Field> Split(std::string_view row);
  void ReadHeader(const Row& row);

  std::vector<std::string> columns_;
};

}  // namespace tandem::training
