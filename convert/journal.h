#pragma once

#include <filesystem>
#include <set>
#include <span>
#include <string>

#include "engine/io/posix_file.h"

namespace tandem::convert {

// Which tensors of a target are written, for a conversion that goes on after a kill: one line each,
//
//   <CRC-32C of the rest, 8 hex digits> <file>/<tensor>
//
// `tensor` being its place in the source. A line is written only after the tensor's bytes have
// reached the disk; one that is not whole counts for nothing. One thread.
class Journal {
 public:
  // Reads what is there; throws kIo.
  explicit Journal(std::filesystem::path path);

  bool Has(const std::string& file, int64_t tensor) const;

  struct Entry {
    std::string file;
    int64_t tensor;
  };
  // Adds the lines and syncs them.
  void Add(std::span<const Entry> entries);
  // Nothing of the file is written any more; to be called before it is made anew.
  void Drop(const std::string& file);

 private:
  void Open();

  const std::filesystem::path path_;
  std::set<std::string> entries_;
  engine::FileDescriptor file_;  // opened by the first Add
};

}  // namespace tandem::convert
