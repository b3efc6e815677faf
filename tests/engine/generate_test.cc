#include "engine/generate.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

#include "bench/models/random_model.h"
#include "engine/formats/model_dir.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/support/engine_client.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

class GenerateTest : public testing::Test {
 protected:
  GenerateTest() {
    bench::RandomModelSpec spec;
    spec.config = bench::TinyLlamaConfig();
    spec.with_tokenizer = true;
    bench::WriteRandomModel(spec, dir_.path() / "model");
    options_.threads = 1;
    options_.max_seqs = 4;
    options_.kv_cache_bytes = 8 << 20;
  }

  LoadedModel Open() const {
    return OpenModel(ModelDir::Open(dir_.path() / "model"), options_, "");
  }

  static GenerationRequest Request(int64_t max_new_tokens) {
    GenerationRequest request;
    for (const char c : std::string("Once upon a time")) {
      request.prompt.push_back(static_cast<TokenId>(c));
    }
    request.sampling.temperature = 1;
    request.sampling.seed = 7;
    request.stop.max_new_tokens = max_new_tokens;
    request.stop.ignore_end_tokens = true;
    return request;
  }

  // More than an engine computes before the caller sees the first piece.
  static GenerationRequest LongRequest() {
    GenerationRequest request = Request(200);
    request.n = 64;
    return request;
  }

  tests::TemporaryDir dir_;
  EngineOptions options_;
};

ErrorCode CodeOf(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorCode::kInternal;
}

TEST_F(GenerateTest, PiecesJoinToTheAnswersOfAllChoices) {
  Engine engine(Open(), options_);
  GenerationRequest request = Request(12);
  request.n = 2;
  std::map<int, std::string> texts;

  const std::vector<ChoiceFinished> choices =
      Generate(engine, request, [&](const TextDelta& delta) { texts[delta.choice] += delta.text; });

  const tests::Answer answer = tests::Run(engine, request);
  ASSERT_EQ(choices.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    const auto index = static_cast<size_t>(i);
    EXPECT_EQ(texts.at(i), answer.choices.at(i).text);
    EXPECT_EQ(choices[index].choice, i);
    EXPECT_EQ(choices[index].reason, ChoiceFinished::Reason::kLength);
    EXPECT_EQ(choices[index].usage.completion_tokens, 12);
  }
}

TEST_F(GenerateTest, PiecesArriveOnTheCallingThread) {
  Engine engine(Open(), options_);
  int pieces = 0;

  Generate(engine, Request(8), [&, caller = std::this_thread::get_id()](const TextDelta&) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    ++pieces;
  });

  EXPECT_GT(pieces, 0);
}

TEST_F(GenerateTest, NeedsNoFunctionForThePieces) {
  Engine engine(Open(), options_);

  EXPECT_EQ(Generate(engine, Request(3)).at(0).usage.completion_tokens, 3);
}

TEST_F(GenerateTest, AnExceptionFromTheCallersFunctionEndsTheRequest) {
  Engine engine(Open(), options_);
  const auto stop = [](const TextDelta&) { throw std::length_error("enough"); };

  EXPECT_THROW(Generate(engine, LongRequest(), stop), std::length_error);

  while (engine.stats().requests_running > 0) std::this_thread::yield();
  EXPECT_LT(engine.stats().generation_tokens_total, 64 * 200);
}

TEST_F(GenerateTest, ARequestThatFailsThrowsItsCodeAndMessage) {
  Engine engine(Open(), options_);
  const auto end_all = [&](const TextDelta&) { engine.EndAll("the model leaves"); };

  try {
    Generate(engine, LongRequest(), end_all);
    FAIL() << "completed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_STREQ(error.what(), "the model leaves");
  }
}

TEST_F(GenerateTest, ThrowsForARequestThatSubmitRefuses) {
  Engine engine(Open(), options_);

  EXPECT_EQ(CodeOf([&] { Generate(engine, {}); }), ErrorCode::kInvalidArgument);
}

TEST_F(GenerateTest, APromptBeginsWithBosIfTheModelWantsOneAndTheCallerDoes) {
  LoadedModel model = Open();
  const std::vector<TokenId> text = model.tokenizer->Encode("A dog", SpecialTokens::kPlainText);
  std::vector<TokenId> with_bos = {9};
  with_bos.insert(with_bos.end(), text.begin(), text.end());
  model.bos = 9;

  model.add_bos = false;
  EXPECT_EQ(EncodePrompt(model, "A dog"), text);
  model.add_bos = true;
  EXPECT_EQ(EncodePrompt(model, "A dog"), with_bos);
  EXPECT_EQ(EncodePrompt(model, "A dog", false), text);
  EXPECT_EQ(EncodePrompt(model, ""), std::vector<TokenId>{9});
}

TEST_F(GenerateTest, APromptForAModelWithoutATokenizerIsRefused) {
  LoadedModel model = Open();
  model.tokenizer = nullptr;

  EXPECT_EQ(CodeOf([&] { EncodePrompt(model, "A dog"); }), ErrorCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tandem::engine
