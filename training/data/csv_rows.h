#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/io/mapped_file.h"
#include "training/data/row_file.h"

namespace tandem::training {

// Rows of a CSV file (RFC 4180): fields separated by commas, a header line of column names, quoted
// fields that may hold commas, line ends and doubled quotes. Every value is a text; an empty field
// without quotes is null. The file is mapped. Stores the place of every 32nd row only.
class CsvRows final : public RowFile {
 public:
  static constexpr size_t kMaxCsvRowBytes = size_t{16} << 20;
  static constexpr size_t kMaxCsvColumns = 256;

  // Throws kNotFound / kIo. Throws kDataLoss for a file without rows, of another kind, or with an
  // unusable header.
  static std::shared_ptr<const CsvRows> Open(const std::filesystem::path& path);
  // Reads from bytes that outlive the object; for tests.
  static std::shared_ptr<const CsvRows> Of(std::string_view text, const std::string& name);

  int64_t size() const override { return n_rows_; }
  // Throws kInvalidArgument for a row with another number of fields than the header, an open quote,
  // text after a closing quote, invalid UTF-8, or more than kMaxCsvRowBytes.
  nlohmann::ordered_json Read(int64_t i) const override;
  std::string Where(int64_t i) const override;  // "line 7", where the row begins
  const std::string& name() const override { return name_; }
  const std::vector<std::string>& columns() const { return columns_; }

 private:
  // A place between two rows.
  struct Cursor {
    size_t offset = 0;
    int64_t line = 1;
  };
  struct Row {
    std::string_view text;  // without its line end
    int64_t line = 0;       // on which the row begins, from 1
  };
  struct Field {
    std::string value;
    bool is_quoted = false;
  };

  CsvRows(std::shared_ptr<const engine::MappedFile> file, std::string_view text, std::string name);
  // Returns the next row that is not blank and moves the cursor behind it; false at the end.
  bool Next(Cursor* at, Row* row) const;
  // Throws for a fault of the row's quotes or for more than kMaxCsvColumns fields.
  static std::vector<Field> Split(std::string_view row);
  void ReadHeader(const Row& row);
  Row Find(int64_t i) const;

  std::shared_ptr<const engine::MappedFile> file_;
  std::string_view text_;
  std::string name_;
  std::vector<std::string> columns_;
  std::vector<Cursor> places_;  // before rows 0, 32, 64, …
  int64_t n_rows_ = 0;
};

}  // namespace tandem::training
