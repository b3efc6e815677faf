#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::bench {

// Token counts that a server reports.
struct CompletionUsage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;  // prompt tokens taken from a cache
};

// One response body, or one stream event, of /v1/chat/completions or /v1/completions.
struct CompletionPiece {
  bool has_text = false;      // text, reasoning or a tool call; a role alone does not count
  bool has_finished = false;  // has a finish_reason
  std::optional<CompletionUsage> usage;
  std::optional<std::string> error;  // the server's message
};

// Reuses the JSON parser's buffers between calls. One thread.
class CompletionParser {
 public:
  CompletionParser();
  ~CompletionParser();

  // Throws kDataLoss if `json` is not a JSON object.
  CompletionPiece Parse(std::string_view json);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::bench
