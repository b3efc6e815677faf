#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "training/data/row_file.h"

namespace tandem::training {

// Rows of a mapped text, found by reading it forward. Stores the place of every 32nd row only: 5 MB
// for ten million rows. A format derives from it, says how the next row is found, and calls Index
// in its constructor.
class ScannedRows : public RowFile {
 public:
  int64_t size() const final { return n_rows_; }
  std::string Where(int64_t i) const final;  // "line 7", where the row begins
  const std::string& name() const final { return name_; }

 protected:
  // A place between two rows.
  struct Cursor {
    size_t offset = 0;
    int64_t line = 1;
  };
  struct Row {
    std::string_view text;
    int64_t line = 0;  // on which the row begins, from 1
  };

  // `file`, if any, keeps `text` alive.
  ScannedRows(std::shared_ptr<const void> file, std::string_view text, std::string name);
  // Finds all rows behind `begin`.
  void Index(Cursor begin);
  // Returns the next row and moves the cursor behind it; false at the end.
  virtual bool Next(Cursor* at, Row* row) const = 0;
  Row Find(int64_t i) const;
  std::string_view text() const { return text_; }

 private:
  std::shared_ptr<const void> file_;
  std::string_view text_;
  std::string name_;
  std::vector<Cursor> places_;  // before rows 0, 32, 64, …
  int64_t n_rows_ = 0;
};

}  // namespace tandem::training
