// Bounds on the work and the reply of one request.

#include "tests/server/app/app_fixture.h"

namespace tandem::server {
namespace {

constexpr int64_t kMostListed = 1 << 20;

// Four tokens per character: no merge of the tiny model's tokenizer has these bytes.
std::string TextOfManyTokens() {
  std::string text;
  for (int64_t i = 0; i < kMostListed / 4 + 1; ++i) text += "\U0001F9FF";
  return text;
}

class AppLimitsTest : public AppTest {
 protected:
  void ExpectTooMany(const Json& reply, const std::string& param) {
    EXPECT_EQ(reply["error"]["param"], param);
    const auto message = reply["error"]["message"].get<std::string>();
    EXPECT_NE(message.find("a reply lists at most 1048576: send the text in parts"),
              std::string::npos)
        << message;
  }
};

TEST_F(AppLimitsTest, AReplyListsABoundedNumberOfTokens) {
  StartApp();
  const std::string text = TextOfManyTokens();
  const Json chat = Json::array({{{"role", "user"}, {"content", text}}});

  ExpectTooMany(PostJson("/tokenize", {{"prompt", text}, {"return_token_strs", true}}, 400),
                "prompt");
  ExpectTooMany(PostJson("/tokenize", {{"messages", chat}}, 400), "messages");
  ExpectTooMany(PostJson("/v1/render", {{"messages", chat}}, 400), "messages");
}

// The template rewrites earlier turns, so the samples would have 25 million tokens: the chat up to
// each of its answers.
TEST_F(AppLimitsTest, ASmallBodyCannotMakeTrainingRenderGigabytes) {
  const std::filesystem::path directory = directory_->path() / "rewrites";
  std::filesystem::create_directory(directory);
  tests::TinyModelOptions model;
  model.chat_template =
      "{% for m in messages %}<turn>{{ m.role ~ '\\n' }}"
      "{% if loop.last and m.role == 'assistant' %}"
      "{{ '<think>' ~ m.reasoning_content ~ '</think>' }}{% endif %}{{ m.content }}<end>{{ '\\n' }}"
      "{% endfor %}{% if add_generation_prompt %}<turn>{{ 'assistant\\n' }}{% endif %}";
  tests::WriteTinyModel(directory, model);
  AppOptions options = Defaults();
  options.models = {{"", directory.string()}};
  StartApp(std::move(options));
  Json messages = Json::array();
  const auto add_turn = [&] {
    messages.push_back({{"role", "user"}, {"content", "a"}});
    messages.push_back({{"role", "assistant"}, {"content", "b"}, {"reasoning_content", "c"}});
  };
  add_turn();
  add_turn();
  const Json split = PostJson("/v1/render", {{"train", true}, {"messages", messages}});
  EXPECT_EQ(split["earlier_samples"].size(), 1);
  for (int i = 2; i < 2048; ++i) add_turn();

  const Json reply = PostJson("/v1/render", {{"train", true}, {"messages", messages}}, 400);

  EXPECT_EQ(reply["error"]["param"], "messages");
  EXPECT_EQ(reply["error"]["message"],
            "the samples of these messages have more than 1048576 tokens, and a reply lists no "
            "more: send fewer or shorter messages");
}

// One sample, but every answer is sought in two renderings of the messages before it.
TEST_F(AppLimitsTest, TheWorkOnOneSampleIsBoundedToo) {
  StartApp();
  Json messages = Json::array();
  for (int i = 0; i < 2048; ++i) {
    messages.push_back({{"role", "user"}, {"content", "a"}});
    messages.push_back({{"role", "assistant"}, {"content", "b"}});
  }

  const Json reply = PostJson("/v1/render", {{"train", true}, {"messages", messages}}, 400);

  EXPECT_EQ(reply["error"]["param"], "messages");
  EXPECT_EQ(reply["error"]["message"],
            "train: true renders and tokenises at most 128 MiB of text, and these messages need "
            "more, because every answer repeats all messages before it: send fewer or shorter "
            "messages");
}

TEST_F(AppLimitsTest, TokensAreListedWithTheirStrings) {
  StartApp();
  const Json reply =
      PostJson("/tokenize",
               {{"prompt", "é\n\""}, {"add_special_tokens", false}, {"return_token_strs", true}});

  EXPECT_EQ(reply["count"], reply["tokens"].size());
  EXPECT_EQ(reply["token_strs"].size(), reply["tokens"].size());
  EXPECT_GT(reply["max_model_len"], 0);
  EXPECT_EQ(reply["token_strs"].back(), "\"");
  EXPECT_EQ(PostJson("/tokenize", {{"prompt", "a"}})["token_strs"], nullptr);
}

}  // namespace
}  // namespace tandem::server
