#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/io/posix_file.h"
#include "server/batches/batch.h"

namespace tandem::server {

// The results of a running batch, appended to one file in the order in which lines end. One thread
// at a time.
//
// A record is `CRC LINE KIND IN CACHED OUT REASONING BYTES\n`, BYTES bytes of JSON, and `\n`. CRC
// is the CRC-32C, in eight hexadecimal digits, of all bytes after it. LINE counts from 0, KIND is
// `o` for the output file or `e` for the error file. The rest are decimal numbers of tokens.
class BatchResults {
 public:
  struct Result {
    int64_t line = 0;  // from 0
    bool is_error = false;
    BatchUsage usage;
    std::string json;  // the line of the result file, without its end
  };

  // Throws if the batch belongs to another replica.
  using Check = std::function<void()>;

  // Opens the file, or creates it in an existing directory. Keeps the whole records of its
  // beginning and cuts off the rest, which a kill or a power loss has left. Throws kIo.
  //
  // With `check`, another replica may have written the file. That one may still write, since it
  // does not know yet that it has lost the batch. So the records are copied to a new file of the
  // same name, and its late writes reach a file without a name. `check` is called before the file
  // is opened and before the copy gets its name. If it throws, the constructor throws the same
  // error and leaves the file unchanged.
  BatchResults(std::filesystem::path file, int64_t n_lines, const Check& check = {});

  // Adds a result. On failure the file keeps its records, and the call may be repeated. Throws kIo;
  // a full disk has the reason kDiskFullReason. REQUIRES: the line has no result.
  void Append(const Result& result);
  // The results appended so far survive a power loss at return. Throws kIo.
  void Sync();

  bool Has(int64_t line) const { return places_[static_cast<size_t>(line)].bytes > 0; }
  bool IsError(int64_t line) const { return places_[static_cast<size_t>(line)].is_error; }
  // The JSON of a result. Throws kIo. REQUIRES: Has(line).
  std::string Read(int64_t line) const;

  int64_t n_lines() const { return static_cast<int64_t>(places_.size()); }
  const BatchCounts& counts() const { return counts_; }
  const BatchUsage& usage() const { return usage_; }

 private:
  struct Place {
    int64_t offset = 0;
    int64_t bytes = 0;  // of the JSON; 0: no result
    bool is_error = false;
  };

  void Recover(const Check& check);
  void MoveToOurFile(const Check& check);
  // Parses the record at end_. False if no whole record is there.
  bool TakeRecord(int64_t file_bytes);
  void Count(const Result& result, const Place& place, int64_t end);

  const std::filesystem::path path_;
  engine::FileDescriptor file_;
  int64_t end_ = 0;  // bytes of whole records
  std::vector<Place> places_;
  BatchCounts counts_;
  BatchUsage usage_;
};

}  // namespace tandem::server
