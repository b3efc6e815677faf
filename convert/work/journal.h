#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/io/posix_file.h"

namespace tandem::convert {

// Journal of the tensors already written, so that a conversion can resume after a kill. One line
// each:
//
//   <CRC-32C of the rest, 8 hex digits> <file>/<tensor>[ <note>]
//
// `tensor` is the number by which the file's writer knows it. `note` is one line of text with
// anything else the writer needs to resume. A line is added only after the tensor's bytes have
// reached the disk. Damaged or incomplete lines are ignored; of two lines for one tensor the later
// wins. One thread.
class Journal {
 public:
  // Reads an existing journal; throws kIo.
  explicit Journal(std::filesystem::path path);

  bool Has(const std::string& file, int64_t tensor) const { return Find(file, tensor) != nullptr; }
  // Returns the note, or null if the tensor is not written.
  const std::string* Find(const std::string& file, int64_t tensor) const;

  struct Entry {
    std::string file;  // without spaces
    int64_t tensor;
    std::string note = {};
  };
  // Appends the lines and syncs the file.
  void Add(std::span<const Entry> entries);
  // Forgets the file's tensors numbered `from` and above. Call it before they are written again.
  void Drop(const std::string& file, int64_t from = 0);

 private:
  void Take(std::string_view line);
  void Open();

  const std::filesystem::path path_;
  std::map<std::pair<std::string, int64_t>, std::string> notes_;
  engine::FileDescriptor file_;  // opened by the first Add
};

}  // namespace tandem::convert
