#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tandem::training {

// A file of rows, JSON objects of columns, with random access by number. Const and thread-safe. One
// implementation per container: JSON lines, a JSON array, columns of a binary file.
class RowFile {
 public:
  virtual ~RowFile() = default;
  virtual int64_t size() const = 0;
  // Throws Error with the reason when the row is no usable object; the caller adds the place.
  virtual nlohmann::ordered_json Read(int64_t i) const = 0;
  virtual std::string Where(int64_t i) const = 0;  // "line 7"
  virtual const std::string& name() const = 0;     // of the file
};

}  // namespace tandem::training
