#pragma once

#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/io/mapped_file.h"
#include "training/data/row_file.h"

namespace tandem::training {

// Rows of a JSON file: one object per line, or one array of objects. The file is mapped. Stores the
// place of every 32nd row only: 5 MB for ten million lines.
class JsonRows final : public RowFile {
 public:
  static constexpr size_t kMaxRowBytes = size_t{16} << 20;

  // Throws kNotFound / kIo. Throws kDataLoss for a file without rows or of another kind
  // (compressed, Parquet, binary).
  static std::shared_ptr<const JsonRows> Open(const std::filesystem::path& path);
  // Reads from bytes that outlive the object; for tests.
  static std::shared_ptr<const JsonRows> Of(std::string_view text, const std::string& name);

  int64_t size() const override { return n_rows_; }
  nlohmann::ordered_json Read(int64_t i) const override;
  std::string Where(int64_t i) const override;
  const std::string& name() const override { return name_; }

 private:
  // A place between two rows.
  struct Cursor {
    size_t offset = 0;
    int64_t line = 1;
  };
  struct Row {
    std::string_view text;
    int64_t line = 0;  // on which the row begins, from 1
  };

  JsonRows(std::shared_ptr<const engine::MappedFile> file, std::string_view text, std::string name);
  void Index();
  // Returns the next row and moves the cursor behind it; false at the end.
  bool Next(Cursor* at, Row* row) const;
  bool NextLine(Cursor* at, Row* row) const;
  bool NextElement(Cursor* at, Row* row) const;
  Row Find(int64_t i) const;

  std::shared_ptr<const engine::MappedFile> file_;
  std::string_view text_;
  std::string name_;
  bool is_array_ = false;
  Cursor begin_;
  std::vector<Cursor> places_;  // before rows 0, 32, 64, …
  int64_t n_rows_ = 0;
};

}  // namespace tandem::training
