#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::bench {

// Token counts as servers report them.
struct CompletionUsage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, taken from a cache
};

// What a load generator wants to know of one body, or of one event of a stream, of
// /v1/chat/completions or /v1/completions.
struct CompletionPiece {
  bool has_text = false;      // text, reasoning or a tool call, not just a role
  bool has_finished = false;  // a finish_reason
  std::optional<CompletionUsage> usage;
  std::optional<std::string> error;  // the server's message
};

// Keeps the JSON parser's buffers between calls. One thread.
class CompletionParser {
 public:
  CompletionParser();
  ~CompletionParser();

  // Throws kDataLoss when `json` is no JSON object.
  CompletionPiece Parse(std::string_view json);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::bench
