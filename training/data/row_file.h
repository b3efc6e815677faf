#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tandem::training {

// A file of rows, each a JSON object of columns, read at random by number. Const; any thread. One
// implementation per container: lines of JSON, a JSON array, columns of a binary file.
class RowFile {
 public:
  virtual ~RowFile() = default;
  virtual int64_t size() const = 0;
  // Throws Error with the reason alone when the row is no object that may be used; whoever asks
  // says where.
  virtual nlohmann::ordered_json Read(int64_t i) const = 0;
  virtual std::string Where(int64_t i) const = 0;  // "line 7"
  virtual const std::string& name() const = 0;     // of the file
};

}  // namespace tandem::training
