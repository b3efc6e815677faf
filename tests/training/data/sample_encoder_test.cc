// Chats and plain examples as tokens, and which of them are trained.

#include "training/data/sample_encoder.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "tests/training/data/chat_tokenizer.h"

namespace tandem::training {
namespace {

using nlohmann::ordered_json;
using tests::kChatMl;

class SampleEncoderTest : public testing::Test {
 protected:
  SampleEncoder Encoder(const std::string& source, EncoderOptions options = {}) const {
    return {source.empty() ? nullptr : engine::ChatTemplate::Compile(source), *tokenizer_, options};
  }

  static Example Chat(const std::string& messages) {
    Example example;
    example.chat = ParseConversation(ordered_json::parse(messages), nullptr, "messages", true,
                                     LastMessage::kAssistant);
    return example;
  }

  // The text with trained parts in brackets.
  std::string Marked(const Sample& sample) const {
    std::string text;
    bool open = false;
    for (size_t i = 0; i < sample.tokens.size(); ++i) {
      if ((sample.trained[i] != 0) != open) text += open ? "]" : "[";
      open = sample.trained[i] != 0;
      text += tokenizer_->TokenBytes(sample.tokens[i]);
    }
    return open ? text + "]" : text;
  }

  std::string Fault(const SampleEncoder& encoder, const Example& example) const {
    try {
      encoder.Encode(example);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  std::unique_ptr<engine::Tokenizer> tokenizer_ = tests::ChatTokenizer();
};

constexpr const char* kTwoAnswers =
    R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},
        {"role":"user","content":"c"},{"role":"assistant","content":"d"}])";

TEST_F(SampleEncoderTest, TheBytesOfEveryRenderingAndTokenisationAreReported) {
  int64_t n_calls = 0;
  int64_t n_bytes = 0;
  EncoderOptions options;
  options.is_cancelled = [&](int64_t n) {
    ++n_calls;
    n_bytes += n;
    return false;
  };
  const Sample sample = Encoder(kChatMl, options).Encode(Chat(kTwoAnswers));

  // The whole chat, two prompts and one earlier answer are rendered. The whole is tokenised, and
  // the texts up to three boundaries of answers.
  EXPECT_EQ(n_calls, 2 * 4 + 4);
  EXPECT_GT(n_bytes, 5 * std::ssize(sample.tokens));
}

TEST_F(SampleEncoderTest, AnswersAndTheEndOfTheirTurnAreTrained) {
  EXPECT_EQ(Marked(Encoder(kChatMl).Encode(Chat(kTwoAnswers))),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n"
            "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n[d<|im_end|>]\n");
}

TEST_F(SampleEncoderTest, MessagesOfWeightZeroAreRead) {
  EXPECT_EQ(Marked(Encoder(kChatMl).Encode(Chat(
                R"([{"role":"user","content":"a"},{"role":"assistant","content":"b","weight":0},
                         {"role":"user","content":"c"},{"role":"assistant","content":"d"}])"))),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
            "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n[d<|im_end|>]\n");
}

TEST_F(SampleEncoderTest, ToolCallsAreTrainedWithTheirMarkup) {
  EXPECT_EQ(Marked(Encoder(kChatMl).Encode(Chat(
                R"([{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"function":
                    {"name":"f","arguments":"{\"x\":1}"}}]},{"role":"tool","content":"t"},
                    {"role":"assistant","content":"d"}])"))),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[f{\"x\": 1}<|im_end|>]\n"
            "<|im_start|>tool\nt<|im_end|>\n<|im_start|>assistant\n[d<|im_end|>]\n");
}

TEST_F(SampleEncoderTest, GenerationBlocksSayWhatIsTrained) {
  const std::string source =
      "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}"
      "{% generation %}{{ m.content }}{% endgeneration %}<|end|>{% else %}{{ m.content }}{% endif "
      "%}"
      "{{ '\n' }}{% endfor %}";

  EXPECT_EQ(Marked(Encoder(source).Encode(Chat(kTwoAnswers))),
            "user:a\nassistant:[b<|end|>]\nuser:c\nassistant:[d<|end|>]\n");
  EXPECT_EQ(Marked(Encoder(source).Encode(
                Chat(R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},
                         {"role":"assistant","content":"d","weight":0}])"))),
            "user:a\nassistant:[b<|end|>]\nassistant:d<|end|>\n");
}

TEST_F(SampleEncoderTest, AGenerationBlockInAMacroIsRefused) {
  const std::string source =
      "{% macro say(m) %}{% generation %}{{ m.content }}{% endgeneration %}{% endmacro %}"
      "{% for m in messages %}{{ say(m) }}{% endfor %}";

  EXPECT_NE(Fault(Encoder(source), Chat(kTwoAnswers)).find("inside a macro"), std::string::npos);
}

TEST_F(SampleEncoderTest, AChatWhoseEarlierAnswersAreRewrittenHasNoWholeSample) {
  const SampleEncoder encoder = Encoder(tests::kDropsThoughts);

  EXPECT_FALSE(encoder.EncodeWhole(Chat(kTwoAnswers).chat));
  const std::string fault = Fault(encoder, Chat(kTwoAnswers));
  EXPECT_TRUE(fault.starts_with("messages[1]: ")) << fault;
  EXPECT_NE(fault.find("data.turns=auto"), std::string::npos);
}

TEST_F(SampleEncoderTest, OneAnswerIsTrainedAsTheTemplateWritesItWhenNothingFollows) {
  const SampleEncoder encoder = Encoder(tests::kDropsThoughts);
  const Conversation chat = Chat(kTwoAnswers).chat;

  EXPECT_EQ(
      Marked(encoder.EncodeChat(UpTo(chat, 1))),
      "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[<think>\n</think>\n\nb<|im_end|>"
      "]\n");
  EXPECT_EQ(
      Marked(encoder.EncodeChat(UpTo(chat, 3))),
      "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
      "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n[<think>\n</think>\n\nd<|im_end|>"
      "]\n");
}

TEST_F(SampleEncoderTest, AnswersStandBehindTheThoughtThatThePromptOpens) {
  const SampleEncoder encoder = Encoder(tests::kOpensThought);
  const std::string begin = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\n";
  const auto marked = [&](const std::string& answer) {
    return Marked(encoder.Encode(
        Chat(R"([{"role":"user","content":"a"},{"role":"assistant",)" + answer + "}]")));
  };

  EXPECT_EQ(marked(R"("content":"b")"), begin + "[</think>\n\nb<|im_end|>]\n");
  EXPECT_EQ(marked(R"("content":"<think>\nhm\n</think>\nb")"),
            begin + "[hm\n</think>\nb<|im_end|>]\n");
  EXPECT_EQ(marked(R"("content":"b","reasoning":"hm")"), begin + "[hm\n</think>\n\nb<|im_end|>]\n");
}

TEST_F(SampleEncoderTest, AChatOfSeveralAnswersBehindOpenedThoughtsHasNoWholeSample) {
  const SampleEncoder encoder = Encoder(tests::kOpensThought);
  const Conversation chat = Chat(kTwoAnswers).chat;

  EXPECT_FALSE(encoder.EncodeWhole(chat));
  EXPECT_EQ(Marked(encoder.EncodeChat(UpTo(chat, 3))),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
            "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n<think>\n"
            "[</think>\n\nd<|im_end|>]\n");
}

TEST_F(SampleEncoderTest, ATemplateThatAsksForOtherWordsThanItWritesIsRefused) {
  const std::string source =
      "{% for m in messages %}{{ m.role }}:{{ m.content }}<|end|>{% endfor %}"
      "{% if add_generation_prompt %}assistant:Sure, {% endif %}";
  const std::string fault = Fault(Encoder(source), Chat(kTwoAnswers));

  EXPECT_TRUE(fault.starts_with("messages[1]: ")) << fault;
  EXPECT_NE(fault.find("{% generation %}"), std::string::npos);
}

TEST_F(SampleEncoderTest, ATokenThatIsHalfPromptHalfAnswerIsRefused) {
  const std::string fault = Fault(Encoder(kChatMl), Chat(R"([{"role":"user","content":"a"},
                                       {"role":"assistant","content":"\nb"}])"));

  EXPECT_TRUE(fault.starts_with("messages[1]: ")) << fault;
  EXPECT_NE(fault.find("share a token"), std::string::npos);
}

TEST_F(SampleEncoderTest, WhatClientsWriteIsNoControlToken) {
  const Sample sample = Encoder(kChatMl).Encode(Chat(
      R"([{"role":"user","content":"<|im_end|>"},{"role":"assistant","content":"<|im_end|>"}])"));

  EXPECT_EQ(std::count(sample.tokens.begin(), sample.tokens.end(), 258), 2);
  EXPECT_TRUE(Marked(sample).ends_with("assistant\n[<|im_end|><|im_end|>]\n"));
}

TEST_F(SampleEncoderTest, AChatWithoutAnEndGetsOne) {
  const std::string source =
      "{% for m in messages %}{{ m.role + ':' + m.content + '\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}";
  EncoderOptions options;
  options.eos = 259;

  EXPECT_EQ(Marked(Encoder(source, options).Encode(Chat(kTwoAnswers))),
            "user:a\nassistant:[b\n]user:c\nassistant:[d\n<|end|>]");
}

TEST_F(SampleEncoderTest, EverythingIsTrainedWhereThatIsAskedFor) {
  EncoderOptions options;
  options.completion_only = false;
  options.eos = 259;

  EXPECT_EQ(Marked(Encoder(kChatMl, options).Encode(Chat(R"([{"role":"user","content":"a"},
                                        {"role":"assistant","content":"b"}])"))),
            "[<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n]");
}

TEST_F(SampleEncoderTest, OfPlainExamplesTheCompletionIsTrained) {
  EncoderOptions options;
  options.bos = 257;
  options.eos = 259;
  Example example;
  example.plain = {"ab\n", "\nc"};
  const SampleEncoder encoder = Encoder("", options);

  const Sample sample = encoder.Encode(example);

  EXPECT_EQ(Marked(sample), "<|im_start|>ab\n[\nc<|end|>]");
  EXPECT_EQ(std::count(sample.tokens.begin(), sample.tokens.end(), 256), 0);
  EXPECT_NE(Fault(encoder, Chat(kTwoAnswers)).find("no chat template"), std::string::npos);
}

// A template's clock is fixed, so that a resumed run sees the same text.
TEST_F(SampleEncoderTest, ATemplatesClockStandsStill) {
  EncoderOptions options;
  options.now_unix_s = 1721952000;
  const std::string source = std::string("{{ strftime_now('%d %b %Y') }}") + kChatMl;

  EXPECT_TRUE(
      Marked(Encoder(source, options).Encode(Chat(kTwoAnswers))).starts_with("26 Jul 2024<|"));
}

}  // namespace
}  // namespace tandem::training
