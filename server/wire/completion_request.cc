#include "server/wire/completion_request.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxPrompts = 2048;

// An empty suffix means none, as in requests of clients that always send the field.
std::optional<std::string> ReadSuffix(FieldReader& reader, const ModelLimits& limits, bool echo) {
  std::optional<std::string> suffix = reader.String("suffix");
  if (!suffix || suffix->empty()) return std::nullopt;
  if (!limits.fills_in) {
    throw UnsupportedField("suffix", "suffix is not supported: the model has no infill tokens");
  }
  if (echo) {
    throw BadValue("suffix", "suffix and echo exclude each other: the answer is the text between");
  }
  return suffix;
}

}  // namespace

std::vector<Prompt> ReadPrompts(const Json& value, const std::string& param, int64_t vocab_size) {
  std::vector<Prompt> out;
  if (value.is_string()) {
    out.emplace_back(value.get<std::string>());
    return out;
  }
  if (!value.is_array()) {
    throw WrongType(param, "a string, an array of strings, or one or more arrays of token ids",
                    value);
  }
  if (value.empty()) throw BadValue(param, param + " must not be an empty array");
  if (value[0].is_number()) {
    out.emplace_back(ReadTokenIds(value, param, vocab_size));
    return out;
  }
  if (value.size() > kMaxPrompts) {
    throw BadValue(param, param + " must have at most " + std::to_string(kMaxPrompts) +
                              " entries, got " + std::to_string(value.size()));
  }
  const bool is_text = value[0].is_string();
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string element = param + "[" + std::to_string(i) + "]";
    const Json& prompt = value[i];
    if (is_text) {
      if (!prompt.is_string()) throw WrongType(element, "a string like the first", prompt);
      out.emplace_back(prompt.get<std::string>());
    } else {
      if (!prompt.is_array()) throw WrongType(element, "an array of token ids", prompt);
      if (prompt.empty()) throw BadValue(element, element + " must not be empty");
      out.emplace_back(ReadTokenIds(prompt, element, vocab_size));
    }
  }
  return out;
}

CompletionRequest ParseCompletionRequest(const Json& body, const ModelLimits& limits) {
  FieldReader reader(body);
  reader.Accept({"model"});
  CompletionRequest request;
  const Json* prompt = reader.Any("prompt");
  if (prompt == nullptr) throw MissingField("prompt");
  request.prompts = ReadPrompts(*prompt, "prompt", limits.vocab_size);

  const auto max_completion = reader.Int("max_completion_tokens", 1, limits.max_model_len);
  const auto max_tokens = reader.Int("max_tokens", 0, limits.max_model_len);
  request.max_tokens = max_completion.value_or(max_tokens.value_or(request.max_tokens));
  request.generation = ReadSamplingFields(reader, limits, request.max_tokens);
  if (const auto logprobs = reader.Int("logprobs", 0, 20)) {
    request.top_logprobs = static_cast<int>(*logprobs);
  }
  ReadPromptLogprobs(reader, request.generation);
  request.echo = reader.Bool("echo").value_or(false);
  const auto best_of = reader.Int("best_of", 1, 20);
  request.best_of = std::max(request.generation.n, static_cast<int>(best_of.value_or(1)));
  if (best_of && *best_of < request.generation.n) {
    throw BadValue("best_of", "best_of must be at least n (" +
                                  std::to_string(request.generation.n) + "), got " +
                                  std::to_string(*best_of));
  }
  if (request.prompts.size() * static_cast<size_t>(request.best_of) > kMaxPrompts) {
    throw BadValue("n", "prompts times max(n, best_of) must be at most " +
                            std::to_string(kMaxPrompts) + ", got " +
                            std::to_string(request.prompts.size()) + " times " +
                            std::to_string(request.best_of));
  }
  request.suffix = ReadSuffix(reader, limits, request.echo);
  request.generation.structured = ReadStructuredOutput(reader);
  ReadStreamFields(reader, request.generation);
  if (best_of && *best_of > 1 && request.generation.stream) {
    throw BadValue("best_of", "best_of greater than 1 cannot be streamed");
  }
  request.plain_prompt = ReadPlainPromptOptions(reader);
  ReadOutputFields(reader, request.generation);
  ReadPrediction(reader, request.generation);
  ReadFieldsWithoutEffect(reader, GenerationRoute::kCompletions);
  request.ignored = reader.unknown();
  return request;
}

}  // namespace tandem::server
