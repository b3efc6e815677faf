// S2 with a draft model: its guesses change no token, text or bit of a log-probability.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/constrain/grammar.h"
#include "engine/constrain/json_schema.h"
#include "engine/constrain/text_grammars.h"
#include "engine/draft.h"
#include "engine/engine.h"
#include "engine/formats/model_dir.h"
#include "engine/kv/block_table.h"
#include "engine/model/model.h"
#include "engine/speculation/guess_length.h"
#include "tests/support/adapters.h"
#include "tests/support/engine_client.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

using tests::Answer;
using tests::Bits;

constexpr int64_t kLongestDraftedText = 192;

// Greedy and drawn, with penalties, stops, choices, scores and biases.
std::vector<GenerationRequest> MixedRequests() {
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 8; ++i) {
    GenerationRequest request;
    for (int p = 0; p < 20 + 13 * i; ++p) request.prompt.push_back(20 + (p * (3 + i)) % 197);
    request.stop.max_new_tokens = 20 + i;
    request.stop.ignore_end_tokens = i % 3 != 0;
    request.sampling.seed = static_cast<uint64_t>(170 + i);
    request.sampling.temperature = i % 2 == 0 ? 0 : 0.9f;
    if (i == 1) request.sampling.top_p = 0.8f;
    if (i == 3) request.sampling.repetition_penalty = 1.3f;
    if (i == 4) request.n = 3;
    if (i == 5) request.stop.strings = {"e", " t"};
    if (i == 6) request.prompt_logprobs = 2;
    if (i == 7) request.sampling.logit_bias = {{40, 3.0f}};
    request.top_logprobs = i % 3 - 1;
    requests.push_back(std::move(request));
  }
  return requests;
}

class S2DraftModel : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    options_.max_model_len = kLongestDraftedText;
    options_.threads = 1;
    options_.max_seqs = 16;
    model_ = OpenRandom(GetParam(), 11, "model");
  }

  LoadedModel OpenRandom(const std::string& family, uint64_t seed, const std::string& name,
                         int64_t more_vocab = 0) {
    bench::RandomModelSpec spec;
    spec.config = bench::TinyModelConfig(family);
    spec.config.vocab_size += more_vocab;
    spec.seed = seed;
    spec.stored = DType::kF32;
    spec.with_tokenizer = true;
    bench::WriteRandomModel(spec, dir_.path() / name);
    return OpenModel(ModelDir::Open(dir_.path() / name), options_, "");
  }

  std::vector<Answer> AnswersAlone(const std::vector<GenerationRequest>& requests) {
    options_.draft_rows = 0;
    Engine engine(model_, options_);
    std::vector<Answer> answers;
    for (const GenerationRequest& request : requests) {
      answers.push_back(tests::Run(engine, request));
    }
    return answers;
  }

  // Runs all at once, or one after the other; compares with `alone`, and returns the statistics.
  EngineStats ExpectSame(const std::vector<GenerationRequest>& requests,
                         const std::vector<Answer>& alone, bool together) {
    options_.draft_rows = kDraftRows;
    Engine engine(model_, options_);
    std::vector<std::shared_ptr<tests::PendingAnswer>> pending;
    for (size_t i = 0; i < requests.size(); ++i) {
      pending.push_back(tests::Start(engine, requests[i]));
      if (!together) pending.back()->Wait();
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      const Answer answer = pending[i]->Wait();
      EXPECT_EQ(Bits(alone[i]), Bits(answer)) << "request " << i;
      EXPECT_EQ(answer.terminal_events, 1);
    }
    return engine.stats();
  }

  tests::TemporaryDir dir_;
  EngineOptions options_;
  LoadedModel model_;
};

TEST_P(S2DraftModel, AnyDraftModelChangesNoBit) {
  const std::vector<GenerationRequest> requests = MixedRequests();
  const std::vector<Answer> alone = AnswersAlone(requests);
  options_.looks_up = false;

  // A model that knows nothing of this one.
  AttachDraft(model_, "model", OpenRandom("llama", 5, "other"), "other");
  const EngineStats wrong = ExpectSame(requests, alone, false);
  EXPECT_GT(wrong.draft_tokens_total, 0);
  EXPECT_GT(wrong.draft_passes_total, 0);

  // The model itself: every guess is right unless a penalty that it cannot know decides.
  AttachDraft(model_, "model", model_, "model");
  const EngineStats right = ExpectSame(requests, alone, false);
  EXPECT_GT(right.accepted_draft_tokens_total, right.draft_tokens_total / 2);
  EXPECT_LT(right.steps_total, right.generation_tokens_total);
  options_.threads = 2;
  ExpectSame(requests, alone, true);

  // With look-up beside it.
  options_.looks_up = true;
  ExpectSame(requests, alone, true);

  // Little memory: draft texts lose their blocks, and sequences are preempted.
  options_.prefill_chunk_tokens = 64;
  const KvCache::Shape shape = ModelRunner::WindowedKvShape(*model_.model, kLongestDraftedText);
  const int64_t one = MostBlocksOfSequence(shape.windows, kLongestDraftedText, 64);
  const int64_t draft =
      ModelRunner::KvShape(*model_.draft, 1).block_bytes() * BlocksFor(kLongestDraftedText);
  options_.kv_cache_bytes = shape.block_bytes() * (one + 3) + draft;
  ExpectSame(requests, alone, true);
}

INSTANTIATE_TEST_SUITE_P(Families, S2DraftModel,
                         testing::Values("llama", "gemma2", "qwen3_moe", "gpt_oss", "deepseek_v3"),
                         [](const auto& which) { return which.param; });

using S2DraftModelOfLlama = S2DraftModel;

TEST_P(S2DraftModelOfLlama, EveryFreeGuessOfTheSameModelIsRight) {
  AttachDraft(model_, "model", model_, "model");
  options_.looks_up = false;
  options_.draft_rows = kDraftRows;
  for (const float temperature : {0.0f, 0.7f, 1.5f}) {
    Engine engine(model_, options_);
    GenerationRequest request;
    request.prompt = {20, 60, 30};
    request.stop.max_new_tokens = 60;
    request.stop.ignore_end_tokens = true;
    request.sampling.temperature = temperature;
    request.sampling.seed = 3;
    const Answer answer = tests::Run(engine, request);
    const Usage& usage = answer.only().finished->usage;
    // How many it guesses depends on measured times; the first guess does not.
    EXPECT_GE(usage.accepted_draft_tokens, GuessLength::kFirst) << temperature;
    EXPECT_EQ(usage.rejected_draft_tokens, 0) << temperature;
  }
}

// The prompt is cached but for one token, so the step that draws the first token of every choice
// has no prompt. All but one of the choices have no place yet.
TEST_P(S2DraftModelOfLlama, ManyChoicesOfACachedPromptChangeNoBit) {
  GenerationRequest many;
  for (int p = 0; p < 33; ++p) many.prompt.push_back(20 + p);
  many.n = 12;
  many.stop.max_new_tokens = 10;
  many.stop.ignore_end_tokens = true;
  many.sampling.temperature = 0.9f;
  many.sampling.seed = 4;
  GenerationRequest first = many;
  first.n = 1;
  const std::vector<GenerationRequest> requests = {first, many};
  const std::vector<Answer> alone = AnswersAlone(requests);
  AttachDraft(model_, "model", model_, "model");
  options_.looks_up = false;
  const EngineStats stats = ExpectSame(requests, alone, false);
  EXPECT_GT(stats.prefix_hit_tokens_total, 0);
  EXPECT_GT(stats.draft_passes_total, 0);
}

// Paddings of a vocabulary differ between the sizes of one family.
TEST_P(S2DraftModelOfLlama, TheNumbersOfLogitsMayDiffer) {
  const std::vector<GenerationRequest> requests = MixedRequests();
  const std::vector<Answer> alone = AnswersAlone(requests);
  const LoadedModel padded = OpenRandom("llama", 5, "padded", 16);
  AttachDraft(model_, "model", padded, "padded");
  EXPECT_GT(ExpectSame(requests, alone, true).draft_passes_total, 0);

  LoadedModel target = padded;
  AttachDraft(target, "padded", model_, "model");
  model_ = target;
  const std::vector<Answer> of_padded = AnswersAlone(requests);
  EXPECT_GT(ExpectSame(requests, of_padded, true).draft_passes_total, 0);
}

TEST_P(S2DraftModelOfLlama, GrammarsAndAdaptersKeepTheirBits) {
  std::vector<GenerationRequest> requests = MixedRequests();
  tests::WriteRandomAdapter(dir_.path() / "model", 4, 9, dir_.path() / "adapter");
  const std::shared_ptr<const Adapter> adapter =
      OpenAdapter(dir_.path() / "adapter", model_, options_);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i % 2 == 0) {
      requests[i].adapter = adapter;
      requests[i].adapter_name = "adapter";
    } else if (!LlguidanceVersion().empty()) {
      requests[i].grammar =
          model_.grammars->Compile(i % 4 == 1 ? RegexGrammar("([a-c]{3} )+", "regex")
                                              : JsonObjectGrammar({.is_compact = true}));
      requests[i].stop.ignore_end_tokens = false;
      requests[i].stop.strings.clear();
      requests[i].sampling.logit_bias.clear();
    }
  }
  const std::vector<Answer> alone = AnswersAlone(requests);
  AttachDraft(model_, "model", OpenRandom("llama", 5, "other"), "other");
  options_.looks_up = false;
  EXPECT_GT(ExpectSame(requests, alone, false).draft_passes_total, 0);
  ExpectSame(requests, alone, true);
}

INSTANTIATE_TEST_SUITE_P(Families, S2DraftModelOfLlama, testing::Values("llama"));

}  // namespace
}  // namespace tandem::engine
