#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::bench {

// A number drawn uniformly from [low, high].
struct IntRange {
  int64_t low = 0;
  int64_t high = 0;
};

// Parses "64" or "16-128". Throws kInvalidArgument naming `flag`.
IntRange ParseIntRange(const std::string& text, const std::string& flag);

// Settings of the requests. The n-th request of a seed has the same bytes on every machine and for
// every server.
struct PromptOptions {
  enum class Endpoint { kChat, kCompletions };
  enum class Kind { kIds, kText };

  Endpoint endpoint = Endpoint::kChat;
  Kind kind = Kind::kText;
  std::string model;
  IntRange prompt_tokens{128, 128};  // per request, after the shared prefix
  IntRange output_tokens{64, 64};
  int64_t shared_prefix_tokens = 0;
  int64_t distinct_prompts = 0;   // number of different prompts, used in turn; 0: one per request
  IntRange token_ids{300, 2000};  // range of ids in prompts of ids
  bool stream = true;
  bool ignore_eos = true;
  double temperature = 0;
  std::string extra_json;     // JSON object merged into each body; or empty
  double abort_fraction = 0;  // share of requests whose client leaves mid-answer
  uint64_t seed = 1;
};

// Tokens of a text of common words. They depend on tokenizer and chat template together, so the
// server measures them.
struct TextLength {
  double tokens_per_word = 1;
  double tokens_around = 0;  // of the template
};

struct LoadRequest {
  std::string body;  // JSON
  int64_t output_tokens = 0;
  int64_t leaves_after_pieces = 0;  // text pieces until the client leaves; 0: never
};

class PromptMaker {
 public:
  // Throws kInvalidArgument for contradictory options.
  PromptMaker(PromptOptions options, TextLength text_length);

  LoadRequest Make(int64_t request_idx) const;

  // Returns a request of `words` words for one token, from which TextLength is measured.
  std::string CalibrationBody(int64_t words) const;

 private:
  std::string Body(const std::string& prompt_json, int64_t output_tokens, bool stream) const;
  std::string Prompt(int64_t prompt_idx) const;

  PromptOptions options_;
  TextLength text_length_;
  std::string tail_;    // end of every body
  std::string shared_;  // the shared prefix as in each body
};

}  // namespace tandem::bench
