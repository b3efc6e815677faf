#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/attempt.h"
#include "server/wire/llama_server/completion.h"

namespace tandem::server {
namespace {

constexpr ModelLimits kServerLimits = {128, 1000, false, true};

LlamaServerCompletion CompletionOf(const std::string& fields,
                                   LlamaServerRoute route = LlamaServerRoute::kCompletion) {
  return ParseLlamaServerCompletion(ParseJsonObject("{" + fields + "}"), route, kServerLimits);
}

TEST(LlamaServerCompletion, DefaultsToTheEndOfTheContext) {
  EXPECT_EQ(CompletionOf(R"("prompt": "a")").completion.max_tokens, 128);
  EXPECT_EQ(CompletionOf(R"("prompt": "a", "n_predict": -1)").completion.max_tokens, 128);
  EXPECT_EQ(CompletionOf(R"("prompt": "a", "n_predict": 5)").completion.max_tokens, 5);
  EXPECT_EQ(CompletionOf(R"("prompt": "a", "n_predict": 0)").completion.max_tokens, 0);
  EXPECT_EQ(CompletionOf(R"("prompt": "a", "n_predict": 500)").completion.max_tokens, 128);
}

TEST(LlamaServerCompletion, FieldsBecomeThoseOfCompletions) {
  const LlamaServerCompletion parsed = CompletionOf(R"("prompt": "a", "temperature": 0.5,
      "repeat_penalty": 1.2, "seed": 7, "stop": ["x"], "n_probs": 3, "stream": true,
      "ignore_eos": true, "logit_bias": [[5, 2.0], [6, false]], "return_tokens": true)");
  const GenerationFields& fields = parsed.completion.generation;
  EXPECT_EQ(fields.seed, 7);
  EXPECT_EQ(fields.stop.strings, std::vector<std::string>{"x"});
  EXPECT_TRUE(fields.stop.ignore_end_tokens);
  EXPECT_TRUE(fields.stream);
  EXPECT_EQ(parsed.completion.top_logprobs, 3);
  EXPECT_EQ(fields.logit_bias, (std::vector<std::pair<TokenId, float>>{{5, 2.0f}, {6, -100.0f}}));
  EXPECT_TRUE(parsed.returns_tokens);
}

TEST(LlamaServerCompletion, RandomSeedsAreNone) {
  EXPECT_FALSE(CompletionOf(R"("prompt": "a", "seed": -1)").completion.generation.seed);
  EXPECT_FALSE(CompletionOf(R"("prompt": "a", "seed": 4294967295)").completion.generation.seed);
}

TEST(LlamaServerCompletion, APromptIsATextOrTokens) {
  const auto prompt = [](const std::string& text) {
    return CompletionOf("\"prompt\": " + text).completion.prompts.front();
  };
  EXPECT_EQ(std::get<std::string>(prompt(R"("a")")), "a");
  EXPECT_EQ(std::get<std::string>(prompt(R"(["a"])")), "a");
  EXPECT_EQ(std::get<std::vector<TokenId>>(prompt("[1, 2]")), (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(std::get<std::vector<TokenId>>(prompt("[[1, 2]]")), (std::vector<TokenId>{1, 2}));
}

TEST(LlamaServerCompletion, RefusesWhatChangesTheAnswer) {
  const std::vector<std::pair<std::string, std::string>> kCases = {
      {R"("prompt": ["a", "b"])", "prompt"},
      {R"("prompt": [1, "b"])", "prompt"},
      {R"("prompt": {"prompt_string": "a"})", "prompt"},
      {R"("prompt": "a", "grammar": "root ::= \"a\"")", "grammar"},
      {R"("prompt": "a", "mirostat": 2)", "mirostat"},
      {R"("prompt": "a", "dry_multiplier": 0.8)", "dry_multiplier"},
      {R"("prompt": "a", "n_probs": 2, "post_sampling_probs": true)", "post_sampling_probs"},
      {R"("prompt": "a", "n_cmpl": 2)", "n_cmpl"},
      {R"("prompt": "a", "n_probs": 21)", "n_probs"},
      {R"("prompt": "a", "logit_bias": [["text", 1]])", "logit_bias[0]"},
      {R"("prompt": "a", "logit_bias": [[5, 1], [5, 2]])", "logit_bias[1]"},
      {R"("n_predict": 5)", "prompt"}};
  for (const auto& [fields, param] : kCases) {
    const std::optional<Error> error = ErrorOf([&] { CompletionOf(fields); });
    ASSERT_TRUE(error) << fields;
    EXPECT_EQ(error->param(), param) << fields;
  }
}

TEST(LlamaServerCompletion, TuningIsNamedAsIgnored) {
  const LlamaServerCompletion parsed = CompletionOf(R"("prompt": "a", "samplers": ["top_k"],
      "t_max_predict_ms": 500, "cache_prompt": true, "id_slot": -1, "timings_per_token": true)");
  EXPECT_EQ(parsed.completion.ignored,
            (std::vector<std::string>{"timings_per_token", "samplers", "t_max_predict_ms"}));
}

TEST(LlamaServerCompletion, InfillAsksForTheTextBetween) {
  const LlamaServerCompletion parsed =
      CompletionOf(R"("input_prefix": "a", "prompt": "b", "input_suffix": "c", "input_extra": [])",
                   LlamaServerRoute::kInfill);
  EXPECT_EQ(std::get<std::string>(parsed.completion.prompts.front()), "ab");
  EXPECT_EQ(parsed.completion.suffix, "c");
}

}  // namespace
}  // namespace tandem::server
