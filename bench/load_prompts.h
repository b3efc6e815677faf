#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::bench {

// A number drawn evenly from [low, high].
struct IntRange {
  int64_t low = 0;
  int64_t high = 0;
};

// "64" or "16-128". Throws kInvalidArgument naming `flag`.
IntRange ParseIntRange(const std::string& text, const std::string& flag);

// What the requests of a load ask for. The n-th request of a seed is the same bytes every time, on
// every machine, whoever is asked.
struct PromptOptions {
  enum class Endpoint { kChat, kCompletions };
  enum class Kind { kIds, kText };

  Endpoint endpoint = Endpoint::kChat;
  Kind kind = Kind::kText;
  std::string model;
  IntRange prompt_tokens{128, 128};  // of a request's own, after the shared prefix
  IntRange output_tokens{64, 64};
  int64_t shared_prefix_tokens = 0;
  int64_t distinct_prompts = 0;   // requests take turns with so many; 0: each has its own
  IntRange token_ids{300, 2000};  // what prompts of ids are drawn from
  bool stream = true;
  bool ignore_eos = true;
  double temperature = 0;
  std::string extra_json;     // members of one more object, merged into each body; or empty
  double abort_fraction = 0;  // of the requests, whose client vanishes mid-answer
  uint64_t seed = 1;
};

// How many tokens a text of common words has: measured on the server, for the two together differ
// per tokenizer and chat template.
struct TextLength {
  double tokens_per_word = 1;
  double tokens_around = 0;  // the template's, whatever the text
};

struct LoadRequest {
  std::string body;  // JSON
  int64_t output_tokens = 0;
  int64_t leaves_after_pieces = 0;  // pieces of text after which the client vanishes; 0: stays
};

class PromptMaker {
 public:
  // Throws kInvalidArgument for options that contradict each other.
  PromptMaker(PromptOptions options, TextLength text_length);

  LoadRequest Make(int64_t request_idx) const;

  // A request of `words` words for one token, to measure TextLength with.
  std::string CalibrationBody(int64_t words) const;

 private:
  std::string Body(const std::string& prompt_json, int64_t output_tokens, bool stream) const;
  std::string Prompt(int64_t prompt_idx) const;

  PromptOptions options_;
  TextLength text_length_;
  std::string tail_;    // what every body ends with
  std::string shared_;  // the prefix, as it stands in each body
};

}  // namespace tandem::bench
