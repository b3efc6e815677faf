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

// Most lines of one batch, as OpenAI's.
inline constexpr int64_t kMaxBatchLines = 50'000;

// Place of one line in the input file, without its line end.
struct LineSpan {
  int64_t number = 0;  // from 1
  int64_t offset = 0;
  int64_t bytes = 0;
};

// The input file of a batch, read piece by piece. One thread at a time. Throws kIo.
class BatchInput {
 public:
  // Throws kIo and kNotFound.
  BatchInput(std::filesystem::path file, int64_t max_line_bytes);

  // Calls `use` for each line in order, without blank lines; null text: longer than the bound. Ends
  // early if `use` returns false.
  void ForEach(const std::function<bool(const LineSpan& span, const std::string* text)>& use) const;
  std::string Read(const LineSpan& span) const;

 private:
  const std::filesystem::path path_;
  const int64_t max_line_bytes_;
  engine::FileDescriptor file_;
  int64_t bytes_ = 0;
};

// One line: a request to the API.
struct BatchLine {
  std::string custom_id;
  std::string model;  // of the body; empty: none
  std::string body;   // JSON, with the fields in the order of the line
};
// Throws kInvalidArgument with OpenAI's code as reason, and the field as param.
BatchLine ParseBatchLine(std::string_view text, std::string_view endpoint);

struct CheckedInput {
  std::vector<LineSpan> lines;
  std::optional<std::string> model;  // if all lines name the same one
  std::vector<BatchError> errors;    // empty: the input is valid
};
// Checks all lines, and lists the first faults. Throws kIo, and kCancelled once `is_stopping`
// returns true.
CheckedInput CheckBatchInput(const BatchInput& input, std::string_view endpoint,
                             const std::function<bool()>& is_stopping);

// The places of all lines of a checked input.
std::vector<LineSpan> LinesOf(const BatchInput& input);

}  // namespace tandem::server
