// S2 with sliding windows and chunks: blocks that a layer gave back change no bit of a long text.

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/engine.h"
#include "engine/formats/model_dir.h"
#include "engine/kv/block_table.h"
#include "engine/ops/softmax.h"
#include "tests/support/engine_client.h"
#include "tests/support/model_harness.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

constexpr int64_t kWindowVocab = 272;

// A prompt of a hundred windows and more than two chunks of keys. Layers with a window give their
// old blocks back; the reference keeps every position of every layer.
TEST(S2Window, ALongPromptHasTheBitsOfACacheThatForgetsNothing) {
  for (const char* family :
       {"mistral", "gemma2", "gemma3", "gemma4", "gpt_oss", "olmo3", "llama4"}) {
    SCOPED_TRACE(family);
    const tests::TemporaryDir dir;
    bench::RandomModelSpec spec;
    spec.config = bench::TinyModelConfig(family);
    spec.config.max_context_len = 2560;
    spec.with_tokenizer = true;
    bench::WriteRandomModel(spec, dir.path() / "model");
    std::mt19937 random(4);
    GenerationRequest request;
    for (int i = 0; i < 1500; ++i) {
      request.prompt.push_back(static_cast<TokenId>(random() % kWindowVocab));
    }
    request.stop.max_new_tokens = 30;
    request.stop.ignore_end_tokens = true;
    request.sampling.temperature = 0;
    request.top_logprobs = 0;
    EngineOptions options;
    options.dtype = DType::kBF16;
    options.threads = 1;
    options.max_seqs = 2;
    options.prefill_chunk_tokens = 96;
    const LoadedModel model = OpenModel(ModelDir::Open(dir.path() / "model"), options, "");
    const KvCache::Shape shape = ModelRunner::WindowedKvShape(*model.model, 2560);
    // For one sequence, with what its windows need.
    const int64_t one = MostBlocksOfSequence(shape.windows, 2560, options.prefill_chunk_tokens);
    options.kv_cache_bytes = shape.block_bytes() * one;
    EXPECT_LT(options.kv_cache_bytes, ModelRunner::KvShape(*model.model, 1).block_bytes() * 160);

    Engine engine(model, options);
    const tests::Answer answer = tests::Run(engine, request);
    tests::ModelHarness harness(dir.path() / "model", {.dtype = DType::kBF16, .max_rows = 1600});
    tests::ModelHarness::Sequence sequence;
    std::vector<float> logits =
        harness.Step({{&sequence, request.prompt}}, tests::ModelHarness::Rows::kLastOfEach);
    const auto& logprobs = answer.only().logprobs;
    ASSERT_EQ(logprobs.size(), 30u);
    for (const TokenLogprob& drawn : logprobs) {
      ASSERT_EQ(drawn.token, tests::ArgMax(logits));
      float lse = 0;
      LogSumExp(harness.ops(), logits.data(), 1, harness.vocab_size(), harness.vocab_size(), &lse);
      ASSERT_EQ(drawn.logprob, logits[static_cast<size_t>(drawn.token)] - lse);
      logits = harness.Step({{&sequence, {drawn.token}}}, tests::ModelHarness::Rows::kLastOfEach);
    }
  }
}

// Whole blocks of positions outside of a window come from the cache; attention reads none of them.
TEST(S2Window, ALongPromptFromTheCacheIsTheColdOne) {
  for (const char* family : {"mistral", "gemma3", "llama4"}) {
    SCOPED_TRACE(family);
    const tests::TemporaryDir dir;
    bench::RandomModelSpec spec;
    spec.config = bench::TinyModelConfig(family);
    spec.config.max_context_len = 2560;
    spec.with_tokenizer = true;
    bench::WriteRandomModel(spec, dir.path() / "model");
    EngineOptions options;
    options.dtype = DType::kBF16;
    options.threads = 1;
    options.max_seqs = 4;
    options.prefill_chunk_tokens = 512;
    const LoadedModel model = OpenModel(ModelDir::Open(dir.path() / "model"), options, "");
    std::mt19937 random(3);
    GenerationRequest request;
    for (int i = 0; i < 2400; ++i) {
      request.prompt.push_back(static_cast<TokenId>(random() % kWindowVocab));
    }
    request.stop.max_new_tokens = 40;
    request.stop.ignore_end_tokens = true;
    request.top_logprobs = 3;
    request.sampling.temperature = 0;
    // Differs in its last 300 tokens only: the hit ends in the middle of the prompt.
    GenerationRequest fork = request;
    for (size_t i = 2100; i < 2400; ++i)
      fork.prompt[i] = static_cast<TokenId>(random() % kWindowVocab);

    options.prefix_cache = false;
    std::vector<std::string> cold;
    {
      Engine engine(model, options);
      for (const GenerationRequest& each : {request, fork}) {
        cold.push_back(tests::Bits(tests::Run(engine, each)));
      }
    }
    options.prefix_cache = true;
    Engine engine(model, options);
    EXPECT_EQ(tests::Bits(tests::Run(engine, request)), cold[0]);
    const tests::Answer again = tests::Run(engine, request);
    const tests::Answer forked = tests::Run(engine, fork);

    EXPECT_EQ(tests::Bits(again), cold[0]);
    EXPECT_EQ(tests::Bits(forked), cold[1]);
    EXPECT_NE(cold[0], cold[1]);
    EXPECT_GE(again.only().finished->usage.cached_tokens, 2384);
    EXPECT_GE(forked.only().finished->usage.cached_tokens, 2080);
  }
}

// Llama 4's tiny chunks have 32 tokens. Prompts, their common beginnings and their answers end
// before, at and behind an edge, alone and in memory that preempts.
TEST(S2Window, PrefixesAndPreemptionsAtChunkEdgesHaveTheBitsOfAColdRun) {
  const tests::TemporaryDir dir;
  bench::RandomModelSpec spec;
  spec.config = bench::TinyModelConfig("llama4");
  ASSERT_EQ(spec.config.LayerAttention(0).chunk, 32);
  spec.with_tokenizer = true;
  bench::WriteRandomModel(spec, dir.path() / "model");
  EngineOptions options;
  options.dtype = DType::kBF16;
  options.threads = 1;
  options.max_seqs = 8;
  options.prefill_chunk_tokens = 24;
  options.max_model_len = 192;
  const LoadedModel model = OpenModel(ModelDir::Open(dir.path() / "model"), options, "");
  std::mt19937 random(8);
  std::vector<TokenId> text;
  for (int i = 0; i < 140; ++i) text.push_back(static_cast<TokenId>(random() % kWindowVocab));
  std::vector<GenerationRequest> requests;
  for (const size_t shared : {63, 64, 65, 79, 80, 95, 96, 97, 112, 128}) {
    GenerationRequest request;
    request.prompt.assign(text.begin(), text.begin() + static_cast<ptrdiff_t>(shared));
    for (size_t i = 0; i < shared % 3; ++i) request.prompt.push_back(static_cast<TokenId>(i));
    request.stop.max_new_tokens = 36;
    request.stop.ignore_end_tokens = true;
    request.top_logprobs = 2;
    request.n = shared == 96 ? 3 : 1;
    requests.push_back(request);
  }
  std::vector<std::string> cold;
  {
    EngineOptions plain = options;
    plain.prefix_cache = false;
    plain.prefill_chunk_tokens = 512;
    Engine engine(model, plain);
    for (const GenerationRequest& each : requests) {
      cold.push_back(tests::Bits(tests::Run(engine, each)));
    }
  }

  const KvCache::Shape shape = ModelRunner::WindowedKvShape(*model.model, 192);
  EXPECT_GT(shape.windows.size(), 1u);
  const int64_t one = MostBlocksOfSequence(shape.windows, 192, options.prefill_chunk_tokens);
  for (const int64_t spare : {int64_t{6}, 40 * one}) {
    SCOPED_TRACE(spare);
    options.kv_cache_bytes = shape.block_bytes() * (one + spare);
    Engine engine(model, options);
    int64_t cached = 0;
    for (int round = 0; round < 2; ++round) {
      std::vector<std::shared_ptr<tests::PendingAnswer>> pending;
      for (const GenerationRequest& each : requests) pending.push_back(tests::Start(engine, each));
      for (size_t i = 0; i < requests.size(); ++i) {
        const tests::Answer answer = pending[i]->Wait();
        EXPECT_EQ(tests::Bits(answer), cold[i]) << "round " << round << ", request " << i;
        cached += answer.choices.at(0).finished->usage.cached_tokens;
      }
    }
    EXPECT_GT(cached, 0);
    EXPECT_EQ(engine.stats().preemptions_total > 0, spare == 6);
  }
}

}  // namespace
}  // namespace tandem::engine
