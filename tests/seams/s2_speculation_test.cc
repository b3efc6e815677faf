// S2 with guesses: drafts of next tokens change no token, text or bit of a log-probability.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/constrain/grammar.h"
#include "engine/constrain/json_schema.h"
#include "engine/constrain/text_grammars.h"
#include "engine/engine.h"
#include "engine/formats/model_dir.h"
#include "engine/kv/block_table.h"
#include "engine/model/model.h"
#include "tests/support/engine_client.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

using tests::Answer;
using tests::Bits;

constexpr int64_t kLongestText = 192;

// Texts that repeat themselves, greedy and drawn, with penalties, stops, choices and scores.
std::vector<GenerationRequest> RepeatingRequests() {
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 8; ++i) {
    GenerationRequest request;
    for (int p = 0; p < 60; ++p) request.prompt.push_back(20 + (p * (3 + i)) % 17);
    request.stop.max_new_tokens = 24 + i;
    request.stop.ignore_end_tokens = i % 3 != 0;
    request.sampling.seed = static_cast<uint64_t>(70 + i);
    request.sampling.temperature = i % 2 == 0 ? 0 : 0.8f;
    if (i == 3) request.sampling.repetition_penalty = 1.3f;
    if (i == 4) request.n = 3;
    if (i == 5) request.stop.strings = {"e", " t"};
    if (i == 6) request.prompt_logprobs = 2;
    if (i == 7) request.sampling.logit_bias = {{40, 100.0f}};  // its text repeats
    request.top_logprobs = i % 3 - 1;
    requests.push_back(std::move(request));
  }
  return requests;
}

class S2Speculation : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    bench::RandomModelSpec spec;
    spec.config = bench::TinyModelConfig(GetParam());
    spec.seed = 11;
    spec.stored = DType::kF32;
    spec.with_tokenizer = true;
    bench::WriteRandomModel(spec, dir_.path() / "model");
    options_.max_model_len = kLongestText;
    options_.threads = 1;
    options_.max_seqs = 16;
    model_ = OpenModel(ModelDir::Open(dir_.path() / "model"), options_, "");
  }

  std::vector<Answer> AnswersAlone(const std::vector<GenerationRequest>& requests) {
    options_.draft_rows = 0;
    Engine engine(model_, options_);
    std::vector<Answer> answers;
    for (const GenerationRequest& request : requests) {
      answers.push_back(tests::Run(engine, request));
    }
    EXPECT_EQ(engine.stats().draft_tokens_total, 0);
    return answers;
  }

  // Runs all at once, or one after the other; compares with `alone`, and returns the statistics.
  EngineStats ExpectSame(const std::vector<GenerationRequest>& requests,
                         const std::vector<Answer>& alone, bool together) {
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

  bool HasState() const { return ModelRunner::StateFloats(*model_.model) > 0; }

  tests::TemporaryDir dir_;
  EngineOptions options_;
  LoadedModel model_;
};

TEST_P(S2Speculation, DraftsChangeNoBit) {
  std::vector<GenerationRequest> requests = RepeatingRequests();
  const std::vector<Answer> alone = AnswersAlone(requests);
  options_.draft_rows = 16;
  const EngineStats looked_up = ExpectSame(requests, alone, false);
  EXPECT_EQ(looked_up.accepted_draft_tokens_total > 0, !HasState());

  // Every second prediction is right, the others leave the answer half way.
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prediction = alone[i].choices.at(0).token_ids;
    std::vector<TokenId>& prediction = requests[i].prediction;
    if (i % 2 == 1 && prediction.size() > 8) prediction[prediction.size() / 2] ^= 1;
  }
  const EngineStats predicted = ExpectSame(requests, alone, false);
  if (!HasState()) {
    EXPECT_GT(predicted.accepted_draft_tokens_total, 50);
    EXPECT_LT(predicted.accepted_draft_tokens_total, predicted.draft_tokens_total);
    // Drafted rows replace steps.
    EXPECT_LT(predicted.steps_total, predicted.generation_tokens_total);
  }
  options_.threads = 2;
  ExpectSame(requests, alone, true);

  // Memory for little more than one sequence: drafts never take another sequence's blocks.
  const KvCache::Shape shape = ModelRunner::WindowedKvShape(*model_.model, kLongestText);
  const int64_t one = MostBlocksOfSequence(shape.windows, kLongestText, 64);
  options_.prefill_chunk_tokens = 64;
  options_.kv_cache_bytes = shape.block_bytes() * (one + 3);
  ExpectSame(requests, alone, true);
}

INSTANTIATE_TEST_SUITE_P(Families, S2Speculation,
                         testing::Values("llama", "gemma2", "gpt2", "qwen3_moe", "gpt_oss",
                                         "mamba2"),
                         [](const auto& which) { return which.param; });

using S2ConstrainedSpeculation = S2Speculation;

TEST_P(S2ConstrainedSpeculation, GrammarsAcceptDraftsTokenByToken) {
  if (LlguidanceVersion().empty()) GTEST_SKIP() << "built without Rust";
  std::vector<GenerationRequest> requests = RepeatingRequests();
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].grammar =
        model_.grammars->Compile(i % 2 == 0 ? RegexGrammar("([a-c]{3} )+", "regex")
                                            : JsonObjectGrammar({.is_compact = true}));
    requests[i].stop.ignore_end_tokens = false;
    requests[i].stop.strings.clear();
    requests[i].sampling.logit_bias.clear();
  }
  const std::vector<Answer> alone = AnswersAlone(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prediction = alone[i].choices.at(0).token_ids;
  }
  options_.draft_rows = 16;
  EXPECT_GT(ExpectSame(requests, alone, false).accepted_draft_tokens_total, 0);
  ExpectSame(requests, alone, true);
}

INSTANTIATE_TEST_SUITE_P(Families, S2ConstrainedSpeculation, testing::Values("llama"));

}  // namespace
}  // namespace tandem::engine
