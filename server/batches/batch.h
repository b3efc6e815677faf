#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tandem::server {

enum class BatchStatus {
  kValidating,  // the lines of the input are being checked
  kFailed,      // the input is invalid, or the key was revoked
  kInProgress,
  kFinalizing,  // all lines are done; the result files are being written
  kCompleted,
  kExpired,
  kCancelling,
  kCancelled,
};

inline bool IsTerminal(BatchStatus status) {
  return status == BatchStatus::kFailed || status == BatchStatus::kCompleted ||
         status == BatchStatus::kExpired || status == BatchStatus::kCancelled;
}

// A fault of the input or of the batch.
struct BatchError {
  std::string code;
  std::string message;
  std::string param = {};            // empty: none
  std::optional<int64_t> line = {};  // from 1; none: not about one line
};

// Tokens of all answered lines.
struct BatchUsage {
  int64_t input_tokens = 0;
  int64_t cached_tokens = 0;  // of input_tokens
  int64_t output_tokens = 0;
  int64_t reasoning_tokens = 0;  // of output_tokens
};

struct BatchCounts {
  int64_t total = 0;
  int64_t completed = 0;
  int64_t failed = 0;
};

// Times are seconds since 1970.
struct BatchTimes {
  int64_t created = 0;
  int64_t expires = 0;
  std::optional<int64_t> in_progress = {};
  std::optional<int64_t> finalizing = {};
  std::optional<int64_t> completed = {};
  std::optional<int64_t> failed = {};
  std::optional<int64_t> expired = {};
  std::optional<int64_t> cancelling = {};
  std::optional<int64_t> cancelled = {};
};

// A batch as the API shows it, and what a restarted server needs besides.
struct Batch {
  std::string id;                // "batch_" and 32 hexadecimal digits
  std::optional<int64_t> owner;  // client number of the key that made it; nullopt: nobody's
  BatchStatus status = BatchStatus::kValidating;
  std::string endpoint;
  std::string input_file_id;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::optional<std::string> model;  // if all lines name the same one
  BatchTimes times;
  BatchCounts counts;
  BatchUsage usage;
  std::vector<BatchError> errors;
  std::optional<std::string> output_file_id;  // of a batch that has ended
  std::optional<std::string> error_file_id;

  // The terminal status that the batch will have. Decided once: no line starts afterwards.
  std::optional<BatchStatus> outcome;
  std::optional<int64_t> output_expires_after_s;
  // Ids of the result files, chosen before they exist, so that a restarted server finds them.
  std::string planned_output_id;
  std::string planned_error_id;

  // How often this process had adopted the batch when the store returned it; not stored.
  int64_t adoptions = 0;
};

// A checked body of POST /v1/batches.
struct NewBatch {
  std::string input_file_id;
  std::string endpoint;
  std::vector<std::pair<std::string, std::string>> metadata = {};
  std::optional<int64_t> output_expires_after_s = {};
  std::vector<std::string> ignored = {};  // unknown fields
};

}  // namespace tandem::server
