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

// Which tensors of a target are written, for a conversion that goes on after a kill: one line each,
//
//   <CRC-32C of the rest, 8 hex digits> <file>/<tensor>[ <note>]
//
// `tensor` being a number that the writer of the file knows it by, `note` what else it needs to go
// on: one line of text. A line is written only after the tensor's bytes have reached the disk; one
// that is not whole counts for nothing, and of two for one tensor the later counts. One thread.
class Journal {
 public:
  // Reads what is there; throws kIo.
  explicit Journal(std::filesystem::path path);

  bool Has(const std::string& file, int64_t tensor) const { return Find(file, tensor) != nullptr; }
  // The note; null where the tensor is not written.
  const std::string* Find(const std::string& file, int64_t tensor) const;

  struct Entry {
    std::string file;  // without spaces
    int64_t tensor;
    std::string note = {};
  };
  // Adds the lines and syncs them.
  void Add(std::span<const Entry> entries);
  // Of the file no tensor from this one on is written any more; to be called before they are made
  // anew.
  void Drop(const std::string& file, int64_t from = 0);

 private:
  void Take(std::string_view line);
  void Open();

  const std::filesystem::path path_;
  std::map<std::pair<std::string, int64_t>, std::string> notes_;
  engine::FileDescriptor file_;  // opened by the first Add
};

}  // namespace tandem::convert
