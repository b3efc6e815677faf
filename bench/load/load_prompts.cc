#include "bench/load/load_prompts.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "bench/measure/random_source.h"
#include "engine/base/error.h"

namespace tandem::bench {
namespace {

using Json = nlohmann::ordered_json;

// One random stream per purpose, so that an answer's length does not depend on its prompt.
constexpr uint64_t kPromptStream = 1;
constexpr uint64_t kOutputStream = 2;
constexpr uint64_t kAbortStream = 3;
constexpr uint64_t kSharedStream = 4;

constexpr std::array<std::string_view, 64> kWords = {
    "about",  "after",  "again",   "answer",  "apple",  "autumn", "because", "before",
    "bread",  "bridge", "bring",   "brother", "call",   "carry",  "city",    "clear",
    "cold",   "come",   "corner",  "door",    "dream",  "early",  "evening", "every",
    "find",   "fire",   "first",   "forest",  "friend", "garden", "give",    "green",
    "hand",   "house",  "keep",    "kitchen", "large",  "letter", "light",   "little",
    "long",   "market", "morning", "mother",  "never",  "night",  "open",    "paper",
    "people", "quiet",  "rain",    "river",   "road",   "school", "sister",  "sleep",
    "small",  "stone",  "street",  "summer",  "table",  "travel", "water",   "winter"};

void AppendId(std::string& out, int64_t id) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, id).ptr;
  if (!out.empty()) out.push_back(',');
  out.append(digits, static_cast<size_t>(end - digits));
}

std::string Ids(int64_t count, const IntRange& range, RandomSource random) {
  std::string out;
  for (int64_t i = 0; i < count; ++i) AppendId(out, random.Integer(range.low, range.high));
  return out;
}

std::string Words(int64_t count, RandomSource random) {
  std::string out;
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0) out.push_back(' ');
    out += kWords[static_cast<size_t>(random.Integer(0, kWords.size() - 1))];
  }
  return out;
}

int64_t Bounded(int64_t value, int64_t low) { return std::max(value, low); }

}  // namespace

IntRange ParseIntRange(const std::string& text, const std::string& flag) {
  IntRange range;
  const char* const end = text.data() + text.size();
  auto [at, fault] = std::from_chars(text.data(), end, range.low);
  range.high = range.low;
  if (fault == std::errc() && at != end && *at == '-') {
    const auto second = std::from_chars(at + 1, end, range.high);
    at = second.ptr;
    fault = second.ec;
  }
  if (fault != std::errc() || at != end || range.low < 0 || range.high < range.low) {
    throw Error(ErrorCode::kInvalidArgument,
                flag + " must be a number or a range such as 16-128, got '" + text + "'");
  }
  return range;
}

PromptMaker::PromptMaker(PromptOptions options, TextLength text_length)
    : options_(std::move(options)), text_length_(text_length) {
  if (options_.endpoint == PromptOptions::Endpoint::kChat &&
      options_.kind == PromptOptions::Kind::kIds) {
    throw Error(ErrorCode::kInvalidArgument,
                "--prompt-kind ids needs --endpoint completions, because chat messages are text");
  }
  if (options_.abort_fraction > 0 && !options_.stream) {
    throw Error(ErrorCode::kInvalidArgument,
                "--abort needs streamed responses: leave out --no-stream");
  }
  if (options_.output_tokens.low < 1) {
    throw Error(ErrorCode::kInvalidArgument, "--output-tokens must be at least 1");
  }
  if (options_.kind == PromptOptions::Kind::kIds &&
      options_.prompt_tokens.low + options_.shared_prefix_tokens < 1) {
    throw Error(ErrorCode::kInvalidArgument, "a prompt needs at least one token");
  }
  const RandomSource random(options_.seed, kSharedStream, 0);
  if (options_.shared_prefix_tokens > 0) {
    shared_ = options_.kind == PromptOptions::Kind::kIds
                  ? Ids(options_.shared_prefix_tokens, options_.token_ids, random)
                  : Words(std::llround(static_cast<double>(options_.shared_prefix_tokens) /
                                       text_length_.tokens_per_word),
                          random);
  }

  Json tail{{"temperature", options_.temperature}};
  if (options_.ignore_eos) tail["ignore_eos"] = true;
  if (!options_.extra_json.empty()) {
    const Json extra = Json::parse(options_.extra_json, nullptr, false);
    if (!extra.is_object()) {
      throw Error(ErrorCode::kInvalidArgument, "--extra must be a JSON object");
    }
    tail.update(extra);
  }
  tail_ = tail.dump().substr(1);  // without the opening brace
}

std::string PromptMaker::Body(const std::string& prompt_json, int64_t output_tokens,
                              bool stream) const {
  std::string body = "{\"model\":" + Json(options_.model).dump();
  if (options_.endpoint == PromptOptions::Endpoint::kChat) {
    body += ",\"messages\":[{\"role\":\"user\",\"content\":" + prompt_json + "}]";
  } else {
    body += ",\"prompt\":" + prompt_json;
  }
  body += ",\"max_tokens\":" + std::to_string(output_tokens);
  if (stream) body += ",\"stream\":true,\"stream_options\":{\"include_usage\":true}";
  return body + "," + tail_;
}

// Returns the prompt as JSON.
std::string PromptMaker::Prompt(int64_t prompt_idx) const {
  RandomSource random(options_.seed, kPromptStream, static_cast<uint64_t>(prompt_idx));
  const int64_t tokens = random.Integer(options_.prompt_tokens.low, options_.prompt_tokens.high);
  if (options_.kind == PromptOptions::Kind::kIds) {
    const std::string own = Ids(tokens, options_.token_ids, random);
    return "[" + shared_ + (shared_.empty() || own.empty() ? "" : ",") + own + "]";
  }
  const double own_tokens = static_cast<double>(tokens) - text_length_.tokens_around;
  const std::string own =
      Words(Bounded(std::llround(own_tokens / text_length_.tokens_per_word), 1), random);
  return "\"" + shared_ + (shared_.empty() ? "" : " ") + own + "\"";  // nothing to escape
}

LoadRequest PromptMaker::Make(int64_t request_idx) const {
  const auto stream_of = [&](uint64_t purpose) {
    return RandomSource(options_.seed, purpose, static_cast<uint64_t>(request_idx));
  };
  LoadRequest request;
  request.output_tokens =
      stream_of(kOutputStream).Integer(options_.output_tokens.low, options_.output_tokens.high);
  RandomSource abort = stream_of(kAbortStream);
  if (abort.Uniform() < options_.abort_fraction) {
    request.leaves_after_pieces = abort.Integer(1, Bounded(request.output_tokens / 2, 1));
  }
  const int64_t prompt_idx =
      options_.distinct_prompts > 0 ? request_idx % options_.distinct_prompts : request_idx;
  request.body = Body(Prompt(prompt_idx), request.output_tokens, options_.stream);
  return request;
}

std::string PromptMaker::CalibrationBody(int64_t words) const {
  return Body("\"" + Words(words, RandomSource(options_.seed)) + "\"", 1, false);
}

}  // namespace tandem::bench
