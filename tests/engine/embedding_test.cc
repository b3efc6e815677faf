// Requests with `pooling`: their values against a direct forward pass, their end, and their limits.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <latch>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/engine.h"
#include "engine/formats/model_dir.h"
#include "engine/model/model.h"
#include "tests/support/adapters.h"
#include "tests/support/engine_client.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/golden.h"
#include "tests/support/model_harness.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

using tests::Answer;

class EmbeddingTest : public testing::Test {
 protected:
  EmbeddingTest() {
    spec_.config = bench::TinyLlamaConfig();
    spec_.with_tokenizer = true;
    bench::WriteRandomModel(spec_, path());
    options_.threads = 1;
    options_.max_seqs = 4;
    options_.kv_cache_bytes = 8 << 20;
  }

  std::filesystem::path path() const { return dir_.path() / "model"; }
  LoadedModel Open() const { return OpenModel(ModelDir::Open(path()), options_, ""); }

  static GenerationRequest Pooled(Pooling pooling, int64_t length) {
    GenerationRequest request;
    for (int64_t i = 0; i < length; ++i) {
      request.prompt.push_back(static_cast<TokenId>('a' + i % 26));
    }
    request.pooling = pooling;
    request.stop.max_new_tokens = 0;
    return request;
  }
  static std::vector<float> Embed(Engine& engine, Pooling pooling, int64_t length) {
    return tests::Run(engine, Pooled(pooling, length)).embeddings.at(0);
  }

  bench::RandomModelSpec spec_;
  tests::TemporaryDir dir_;
  EngineOptions options_;
};

TEST_F(EmbeddingTest, OneEmbeddingThenUsageThenTheEnd) {
  Engine engine(Open(), options_);

  const Answer answer = tests::Run(engine, Pooled(Pooling::kMean, 20));

  ASSERT_EQ(answer.embeddings.size(), 1u);
  EXPECT_EQ(std::ssize(answer.embeddings[0]), engine.loaded().hidden_dim);
  EXPECT_TRUE(answer.only().token_ids.empty());
  EXPECT_EQ(answer.only().finished->usage.prompt_tokens, 20);
  EXPECT_EQ(answer.only().finished->usage.completion_tokens, 0);
  EXPECT_EQ(answer.end.outcome, RequestFinished::Outcome::kCompleted);
  EXPECT_EQ(answer.terminal_events, 1);
  EXPECT_EQ(engine.stats().prompt_tokens_total, 20);
  EXPECT_EQ(engine.stats().generation_tokens_total, 0);
  EXPECT_EQ(engine.stats().kv_blocks_used, 0);
}

// The last position of every prefix gives every position's state; the mean and cls follow.
TEST_F(EmbeddingTest, MeanAndClsAreMadeOfTheStatesThatLastReturns) {
  Engine engine(Open(), options_);
  constexpr int64_t kLength = 37;
  std::vector<double> sum(static_cast<size_t>(engine.loaded().hidden_dim));
  for (int64_t n = 1; n <= kLength; ++n) {
    const std::vector<float> state = Embed(engine, Pooling::kLast, n);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(state[i]);
  }
  std::vector<float> mean;
  for (const double value : sum) mean.push_back(static_cast<float>(value / kLength));

  EXPECT_EQ(Embed(engine, Pooling::kMean, kLength), mean);
  EXPECT_EQ(Embed(engine, Pooling::kCls, kLength), Embed(engine, Pooling::kLast, 1));
  EXPECT_NE(Embed(engine, Pooling::kLast, kLength), mean);
}

TEST_F(EmbeddingTest, OnlyLastReadsThePrefixCache) {
  Engine engine(Open(), options_);
  const auto cached = [&](Pooling pooling) {
    return tests::Run(engine, Pooled(pooling, 40)).only().finished->usage.cached_tokens;
  };

  EXPECT_EQ(cached(Pooling::kMean), 0);
  EXPECT_EQ(cached(Pooling::kMean), 0);
  EXPECT_EQ(cached(Pooling::kCls), 0);
  EXPECT_EQ(cached(Pooling::kLast), 32);
}

TEST_F(EmbeddingTest, APromptMayFillTheContextButNotExceedIt) {
  options_.max_model_len = 64;
  Engine engine(Open(), options_);

  EXPECT_EQ(tests::Run(engine, Pooled(Pooling::kMean, 64)).end.outcome,
            RequestFinished::Outcome::kCompleted);
  try {
    engine.Check(Pooled(Pooling::kMean, 65));
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.reason(), "context_length_exceeded");
  }
}

TEST_F(EmbeddingTest, AnAdapterChangesTheEmbedding) {
  tests::WriteRandomAdapter(path(), 4, 1, dir_.path() / "adapter");
  const LoadedModel model = Open();
  const auto adapter = OpenAdapter(dir_.path() / "adapter", model, options_);
  Engine engine(model, options_);
  GenerationRequest adapted = Pooled(Pooling::kMean, 20);
  adapted.adapter = adapter;

  const std::vector<float> with = tests::Run(engine, adapted).embeddings.at(0);

  EXPECT_NE(with, Embed(engine, Pooling::kMean, 20));
}

TEST_F(EmbeddingTest, ACancelledRequestSendsNoEmbeddingAndFreesItsBlocks) {
  options_.prefill_chunk_tokens = 1;
  Engine engine(Open(), options_);
  std::vector<std::shared_ptr<tests::PendingAnswer>> pending;
  for (int i = 0; i < 8; ++i) {
    pending.push_back(tests::Start(engine, Pooled(Pooling::kMean, 60 + i)));
    engine.Cancel(pending.back()->id);
  }

  for (const auto& one : pending) {
    const Answer answer = one->Wait();
    EXPECT_EQ(answer.terminal_events, 1);
    if (answer.end.outcome == RequestFinished::Outcome::kCancelled) {
      EXPECT_TRUE(answer.embeddings.empty());
    }
  }
  EXPECT_EQ(engine.stats().kv_blocks_used, 0);
}

// A stream gets a token in every step while embeddings are computed.
TEST_F(EmbeddingTest, EmbeddingsTakeNoStepFromAStream) {
  options_.prefill_chunk_tokens = 8;
  options_.max_seqs = 16;
  Engine engine(Open(), options_);
  const EngineFigures figures = engine.figures();
  std::vector<std::shared_ptr<tests::PendingAnswer>> embedded;
  for (int i = 0; i < 6; ++i) {
    embedded.push_back(tests::Start(engine, Pooled(Pooling::kMean, 70)));
  }
  GenerationRequest stream = Pooled(Pooling::kMean, 8);
  stream.pooling.reset();
  stream.stop.max_new_tokens = 30;
  stream.stop.ignore_end_tokens = true;
  std::vector<int64_t> steps;  // of each token
  std::latch ended(1);
  bool embeds_at_end = false;
  engine.Submit(stream, [&](RequestId, const GenerationEvent& event) {
    if (std::holds_alternative<TextDelta>(event)) steps.push_back(figures.stats().steps_total);
    if (!std::holds_alternative<RequestFinished>(event)) return;
    embeds_at_end = !embedded.back()->done();
    ended.count_down();
  });

  ended.wait();
  for (const auto& one : embedded) one->Wait();

  EXPECT_EQ(steps.back() - steps.front(), 29);
  EXPECT_TRUE(embeds_at_end);
}

TEST_F(EmbeddingTest, NextTokensHaveTheLogprobsThatTheyHaveInAPrompt) {
  Engine engine(Open(), options_);
  GenerationRequest request = Pooled(Pooling::kLast, 20);
  request.pooling.reset();
  request.next_tokens = {7, 99};

  const Answer answer = tests::Run(engine, request);

  ASSERT_EQ(answer.next_scores.size(), 2u);
  EXPECT_EQ(answer.end.outcome, RequestFinished::Outcome::kCompleted);
  EXPECT_EQ(answer.terminal_events, 1);
  for (size_t i = 0; i < 2; ++i) {
    GenerationRequest scored = Pooled(Pooling::kLast, 20);
    scored.pooling.reset();
    scored.prompt.push_back(request.next_tokens[i]);
    scored.prompt_logprobs = 0;
    const TokenLogprob expected = tests::Run(engine, scored).prompt_scores->tokens.back();
    EXPECT_EQ(answer.next_scores[i].token, request.next_tokens[i]);
    EXPECT_EQ(answer.next_scores[i].logprob, expected.logprob);
  }
  request.next_tokens = {static_cast<TokenId>(engine.loaded().vocab_size)};
  EXPECT_THROW(engine.Check(request), Error);
}

void WritePooling(const std::filesystem::path& model, const std::string& json) {
  std::filesystem::create_directories(model / "1_Pooling");
  std::ofstream(model / "1_Pooling" / "config.json") << json;
}

TEST_F(EmbeddingTest, TheModelsOwnPoolingComesFromItsFiles) {
  EXPECT_EQ(Open().pooling, Pooling::kLast);

  WritePooling(path(), R"({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false})");
  EXPECT_EQ(Open().pooling, Pooling::kMean);
  WritePooling(path(), R"({"pooling_mode_cls_token": true})");
  EXPECT_EQ(Open().pooling, Pooling::kCls);
  WritePooling(path(), R"({"pooling_mode_lasttoken": true})");
  EXPECT_EQ(Open().pooling, Pooling::kLast);
  WritePooling(path(), R"({"pooling_mode": "mean"})");
  EXPECT_EQ(Open().pooling, Pooling::kMean);
  EXPECT_EQ(Open().pooling_error, "");
}

TEST_F(EmbeddingTest, APoolingThatIsNotSupportedIsNamedAndDoesNotStopTheModel) {
  WritePooling(path(), R"({"pooling_mode_max_tokens": true})");
  EXPECT_NE(Open().pooling_error.find("max"), std::string::npos);
  WritePooling(path(), R"({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true})");
  EXPECT_NE(Open().pooling_error.find("joined"), std::string::npos);

  WritePooling(path(), R"(["mean"])");
  EXPECT_THROW(Open(), Error);
  WritePooling(path(), R"({"pooling_mode_mean_tokens": 1})");
  EXPECT_THROW(Open(), Error);
  WritePooling(path(), "{");
  EXPECT_THROW(Open(), Error);
}

TEST(EmbeddingGguf, ThePoolingTypeOfAFileIsTheModelsOwn) {
  const tests::TemporaryDir dir;
  const tests::Golden golden = tests::LoadGolden("qwen3-tiny");
  const auto open = [&](uint32_t type) {
    tests::GgufWriter writer = tests::ConvertToGguf(golden.dir, {});
    writer.Add("qwen3.pooling_type", type);
    writer.Write(dir.path() / "m.gguf");
    EngineOptions options;
    options.threads = 1;
    return OpenModel(ModelDir::Open(dir.path() / "m.gguf"), options, "");
  };

  EXPECT_EQ(open(0).pooling, Pooling::kLast);
  EXPECT_EQ(open(1).pooling, Pooling::kMean);
  EXPECT_EQ(open(2).pooling, Pooling::kCls);
  EXPECT_EQ(open(3).pooling, Pooling::kLast);
  EXPECT_EQ(open(3).pooling_error, "");
  EXPECT_NE(open(4).pooling_error.find("rank"), std::string::npos);
  EXPECT_THROW(open(5), Error);
}

// The rows of the head by their names; families differ.
const Weight& HeadOf(const Model& model) {
  const std::vector<WeightSpec>& specs = model.weight_specs();
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].name == "lm_head.weight") return model.weights()[i];
  }
  return model.weights()[0];  // tied to the embedding table
}

// The recorded logits of the goldens are the head's product with the hidden states.
TEST(EmbeddingGolden, TheHeadTurnsTheLastStateIntoTheRecordedLogits) {
  for (const std::string name : {"llama2-tiny-two-shards", "qwen2-tiny", "qwen3-tiny"}) {
    SCOPED_TRACE(name);
    const tests::Golden golden = tests::LoadGolden(name);
    EngineOptions options;
    options.dtype = DType::kF32;
    options.threads = 1;
    options.kv_cache_bytes = 8 << 20;
    Engine engine(OpenModel(ModelDir::Open(golden.dir), options, ""), options);
    const Model& model = *engine.loaded().model;
    ThreadPool pool(1);
    OpsContext ops(Kernels(), pool);
    const auto vocab = static_cast<size_t>(engine.loaded().vocab_size);
    for (const tests::GoldenSequence& sequence : golden.sequences) {
      GenerationRequest request;
      request.prompt = sequence.input_ids;
      request.pooling = Pooling::kLast;
      request.stop.max_new_tokens = 0;

      std::vector<float> state = tests::Run(engine, request).embeddings.at(0);

      std::vector<float> logits(vocab);
      const auto width = static_cast<int64_t>(state.size());
      MatMul(ops, {state.data(), DType::kF32, 1, width, width}, HeadOf(model).panels, nullptr,
             logits.data(), static_cast<int64_t>(vocab));
      const size_t last = sequence.logits.size() - vocab;
      for (size_t i = 0; i < vocab; ++i) {
        EXPECT_NEAR(logits[i], sequence.logits[last + i], 1e-4 * sequence.logits_max_abs);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::engine
