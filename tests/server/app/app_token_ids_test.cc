#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/server/app/app_fixture.h"

namespace tandem::server {
namespace {

// Token ids in and out, and prompts that only token ids can write.
class AppTokenIdsTest : public AppTest {
 protected:
  static AppOptions WithModel(const tests::TinyModelOptions& tiny) {
    const std::filesystem::path dir = directory_->path() / "of_this_test";
    std::filesystem::remove_all(dir);
    std::filesystem::create_directory(dir);
    tests::WriteTinyModel(dir, tiny);
    AppOptions options = Defaults();
    options.models = {{"tiny", dir.string()}};
    return options;
  }
  Json IdsOf(const std::string& text) {
    return PostJson("/tokenize",
                    {{"model", "tiny"}, {"prompt", text}, {"add_special_tokens", false}})["tokens"];
  }
};

TEST_F(AppTokenIdsTest, AChatOfTokenIdsAnswersLikeItsMessages) {
  StartApp();
  Json body = Chat("Tell me a story.");
  body["return_token_ids"] = true;
  const Json by_messages = PostJson("/v1/chat/completions", body);
  body.erase("messages");
  body["prompt_token_ids"] = by_messages["prompt_token_ids"];

  const Json by_ids = PostJson("/v1/chat/completions", body);

  EXPECT_EQ(by_ids["prompt_token_ids"], by_messages["prompt_token_ids"]);
  EXPECT_EQ(by_ids["choices"], by_messages["choices"]);
  EXPECT_FALSE(by_ids["choices"][0]["token_ids"].empty());
}

TEST_F(AppTokenIdsTest, AChatOfTokenIdsNeedsNoTemplateButATokenizerAndRoom) {
  tests::TinyModelOptions tiny;
  tiny.chat_template = "";
  StartApp(WithModel(tiny));
  Json body = {{"model", "tiny"}, {"prompt_token_ids", {5, 6, 7}}, {"max_tokens", 4}};
  EXPECT_EQ(PostJson("/v1/chat/completions", body)["usage"]["prompt_tokens"], 3);

  body["prompt_token_ids"] = std::vector<int>(300, 5);
  const Json refused = PostJson("/v1/chat/completions", body, 400);
  EXPECT_EQ(refused["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(refused["error"]["param"], "prompt_token_ids");

  tiny.with_tokenizer = false;
  app_.reset();
  StartApp(WithModel(tiny));
  body["prompt_token_ids"] = {5, 6, 7};
  PostJson("/v1/chat/completions", body, 400);
}

TEST_F(AppTokenIdsTest, ASuffixIsInfilledBetweenItsMarks) {
  tests::TinyModelOptions tiny;
  tiny.special_tokens = {"<bos>",          "<end>",          "<turn>",     "<|fim_prefix|>",
                         "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"};
  StartApp(WithModel(tiny));
  const std::string before = "def f(", after = "<|fim_middle|> return 1";
  const Json prefix = IdsOf(before), suffix = IdsOf(after);
  Json body = {{"model", "tiny"},
               {"prompt", before},
               {"suffix", after},
               {"return_token_ids", true},
               {"max_tokens", 200},
               {"temperature", 0},
               {"add_special_tokens", false}};
  std::vector<int> expected = {3};
  expected.insert(expected.end(), prefix.begin(), prefix.end());
  expected.push_back(4);
  expected.insert(expected.end(), suffix.begin(), suffix.end());
  expected.push_back(5);

  const Json answer = PostJson("/v1/completions", body)["choices"][0];

  EXPECT_EQ(answer["prompt_token_ids"], Json(expected)) << "marks in the client's text stay text";
  body["prompt"] = prefix;
  EXPECT_EQ(PostJson("/v1/completions", body)["choices"][0]["text"], answer["text"]);
  body["prompt"] = expected;
  body.erase("suffix");
  body["stop_token_ids"] = {6};
  EXPECT_EQ(PostJson("/v1/completions", body)["choices"][0]["text"], answer["text"]);
}

TEST_F(AppTokenIdsTest, ASuffixIsRefusedWithoutInfillTokens) {
  StartApp();
  const Json answer =
      PostJson("/v1/completions", {{"model", "tiny"}, {"prompt", "a"}, {"suffix", "b"}}, 400);
  EXPECT_EQ(answer["error"]["code"], "unsupported_parameter");
  EXPECT_EQ(answer["error"]["param"], "suffix");
}

}  // namespace
}  // namespace tandem::server
