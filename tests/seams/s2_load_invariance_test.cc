// S2: a reply depends on its request alone. Tokens, text and the bits of every log-probability do
// not depend on batch, prefill chunk, prefix cache, preemption or threads.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/constrain/grammar.h"
#include "engine/constrain/json_schema.h"
#include "engine/constrain/text_grammars.h"
#include "engine/engine.h"
#include "engine/formats/model_dir.h"
#include "engine/kernels/kernels.h"
#include "engine/kv/block_table.h"
#include "engine/model/model.h"
#include "tests/support/adapters.h"
#include "tests/support/emulated.h"
#include "tests/support/engine_client.h"
#include "tests/support/families.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

using tests::Answer;
using tests::Bits;

constexpr int64_t kMaxModelLen = 192;
constexpr int64_t kVocab = 272;

struct Case {
  std::string family;
  DType dtype;
  BlockFormat block;
  const KernelTable* kernels;
  KvFormat kv = KvFormat::kCompute;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  // Every family runs on the default table. Other tables share the families' code and differ in
  // kernels only. One family with windows and caps, and one with weights in blocks, cover them.
  // Under emulation the other families take the formats by turns.
  constexpr std::pair<DType, BlockFormat> kFormats[] = {{DType::kF32, BlockFormat::kNone},
                                                        {DType::kBF16, BlockFormat::kNone},
                                                        {DType::kBF16, BlockFormat::kInt8},
                                                        {DType::kBF16, BlockFormat::kInt4}};
  const std::vector<std::string> families = tests::FamilyNames();
  for (const KernelTable* kernels : RunnableKernelTables()) {
    for (size_t format = 0; format < std::size(kFormats); ++format) {
      const auto [dtype, block] = kFormats[format];
      const char* const covering = block == BlockFormat::kNone ? "gemma2" : "llama";
      for (size_t i = 0; i < families.size(); ++i) {
        const bool has_turn = !tests::IsEmulated() || i % std::size(kFormats) == format;
        if (families[i] == covering || (kernels == &Kernels() && has_turn)) {
          cases.push_back({families[i], dtype, block, kernels});
        }
      }
    }
  }
  // Keys and values in int8: all heads alike, windows, sinks, latent attention, chunks, recurrent
  // layers. The families share the code that differs from the compute type.
  for (const KernelTable* kernels : RunnableKernelTables()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const char* family :
           {"llama", "gemma2", "gpt_oss", "deepseek_v3", "llama4", "qwen3_next", "falcon_h1"}) {
        if (family == std::string_view("gemma2") || kernels == &Kernels()) {
          cases.push_back({family, dtype, BlockFormat::kNone, kernels, KvFormat::kInt8});
        }
      }
    }
  }
  return cases;
}

std::string CaseName(const testing::TestParamInfo<Case>& info) {
  const bool in_blocks = info.param.block != BlockFormat::kNone;
  std::string name =
      info.param.family + "_" +
      (in_blocks ? BlockFormatName(info.param.block) : std::string(DTypeName(info.param.dtype))) +
      "_" + std::string(info.param.kernels->key) +
      (info.param.kv == KvFormat::kInt8 ? "_int8_keys" : "");
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

// Prompts of all lengths with shared prefixes; greedy and seeded; one and several choices.
std::vector<GenerationRequest> Requests() {
  std::mt19937 random(20261120);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  std::vector<TokenId> shared;
  for (int i = 0; i < 120; ++i) shared.push_back(pick(0, kVocab - 1));
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 12; ++i) {
    GenerationRequest request;
    const int length = i == 0 ? 1 : pick(2, 130);
    for (int p = 0; p < length; ++p) {
      const bool from_shared = i % 2 == 0 && p < 100;
      request.prompt.push_back(from_shared ? shared[static_cast<size_t>(p)] : pick(0, kVocab - 1));
    }
    request.stop.max_new_tokens = pick(8, 40);
    request.stop.ignore_end_tokens = true;
    request.sampling.seed = static_cast<uint64_t>(1000 + i);
    switch (i % 4) {
      case 0:
        request.sampling.temperature = 0;
        break;
      case 1:
        request.n = 3;
        break;
      case 2:
        request.sampling.temperature = 1.4f;
        request.sampling.top_p = 0.9f;
        request.sampling.repetition_penalty = 1.2f;
        break;
      default:
        request.sampling.top_k = 40;
        request.sampling.presence_penalty = 0.5f;
    }
    request.top_logprobs = i % 3;
    if (i % 5 == 3) request.prompt_logprobs = 2;
    requests.push_back(std::move(request));
  }
  // Embeddings of prompts that share blocks with the others, and of one token; two next tokens.
  for (const Pooling pooling : {Pooling::kMean, Pooling::kLast, Pooling::kCls}) {
    for (const size_t length : {size_t{1}, size_t{40}, size_t{120}}) {
      GenerationRequest request;
      request.prompt.assign(shared.begin(), shared.begin() + static_cast<std::ptrdiff_t>(length));
      // Different even where only the first or the last position counts.
      const auto token = static_cast<TokenId>(length + 50 * static_cast<size_t>(pooling));
      request.prompt.back() = token;
      if (pooling == Pooling::kCls) request.prompt.front() = token;
      request.pooling = pooling;
      request.stop.max_new_tokens = 0;
      requests.push_back(std::move(request));
    }
  }
  GenerationRequest next;
  next.prompt.assign(shared.begin(), shared.begin() + 90);
  next.next_tokens = {3, 200};
  next.stop.max_new_tokens = 0;
  requests.push_back(std::move(next));
  return requests;
}

class S2LoadInvariance : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    bench::RandomModelSpec spec;
    spec.config = bench::TinyModelConfig(GetParam().family);
    spec.seed = 7;
    spec.stored = DType::kF32;
    spec.with_tokenizer = true;
    bench::WriteRandomModel(spec, dir_.path() / "model");
    options_.dtype = GetParam().dtype;
    options_.block = GetParam().block;
    options_.kernels = GetParam().kernels;
    options_.kv_format = GetParam().kv;
    options_.max_model_len = kMaxModelLen;
    options_.threads = 1;
    model_ = OpenModel(ModelDir::Open(dir_.path() / "model"), options_, "");
  }

  // One after the other, each in one chunk, without a cache.
  std::vector<std::string> Alone() {
    options_.prefix_cache = false;
    options_.max_seqs = 4;
    options_.prefill_chunk_tokens = 512;
    Engine engine(model_, options_);
    std::vector<std::string> bits;
    for (const GenerationRequest& request : Requests())
      bits.push_back(Bits(tests::Run(engine, request)));
    return bits;
  }

  static std::vector<Answer> Together(Engine& engine) {
    std::vector<std::shared_ptr<tests::PendingAnswer>> pending;
    for (const GenerationRequest& request : Requests()) {
      pending.push_back(tests::Start(engine, request));
    }
    std::vector<Answer> answers;
    for (const auto& one : pending) answers.push_back(one->Wait());
    return answers;
  }

  static void ExpectEqual(const std::vector<std::string>& alone,
                          const std::vector<Answer>& answers) {
    ASSERT_EQ(alone.size(), answers.size());
    for (size_t i = 0; i < alone.size(); ++i) {
      EXPECT_EQ(alone[i], Bits(answers[i])) << "request " << i;
      EXPECT_EQ(answers[i].end.outcome, RequestFinished::Outcome::kCompleted);
      EXPECT_EQ(answers[i].terminal_events, 1);
    }
  }

  tests::TemporaryDir dir_;
  EngineOptions options_;
  LoadedModel model_;
};

TEST_P(S2LoadInvariance, BatchChunkCachePreemptionAndThreadsChangeNoBit) {
  const std::vector<std::string> alone = Alone();

  // All at once, on one and two threads, then again from the cache.
  for (const int threads : {1, 2}) {
    for (const int64_t chunk : {int64_t{7}, int64_t{64}}) {
      SCOPED_TRACE("threads " + std::to_string(threads) + " chunk " + std::to_string(chunk));
      options_.threads = threads;
      options_.prefill_chunk_tokens = chunk;
      options_.max_seqs = 16;
      options_.prefix_cache = true;
      Engine engine(model_, options_);
      ExpectEqual(alone, Together(engine));

      const std::vector<Answer> again = Together(engine);

      ExpectEqual(alone, again);
      EXPECT_GT(again[2].only().finished->usage.cached_tokens, 0);
      EXPECT_EQ(engine.stats().preemptions_total, 0);
    }
  }

  // KV memory for slightly more than one sequence. Without layers that keep keys there is no such
  // memory to run out of.
  const KvCache::Shape shape =
      ModelRunner::WindowedKvShape(*model_.model, kMaxModelLen, options_.kv_format);
  const int64_t one =
      MostBlocksOfSequence(shape.windows, kMaxModelLen, options_.prefill_chunk_tokens);
  options_.kv_cache_bytes = shape.block_bytes() * (one + 4);
  Engine engine(model_, options_);
  ExpectEqual(alone, Together(engine));
  EXPECT_EQ(engine.stats().preemptions_total > 0, shape.block_bytes() > 0);
}

INSTANTIATE_TEST_SUITE_P(Everywhere, S2LoadInvariance, testing::ValuesIn(Cases()), CaseName);

// Constrained answers: alone, in a batch with free ones, and preempted.
class S2Grammars : public S2LoadInvariance {
 protected:
  std::vector<GenerationRequest> ConstrainedRequests() const {
    std::vector<GenerationRequest> requests = Requests();
    for (size_t i = 0; i < requests.size(); ++i) {
      if (i % 3 == 2 || requests[i].stop.max_new_tokens == 0) continue;
      const GrammarSource source = i % 3 == 0 ? RegexGrammar("[a-z ]{3,30}[.]", "regex")
                                              : JsonObjectGrammar({.is_compact = true});
      requests[i].grammar = model_.grammars->Compile(source);
      requests[i].stop.ignore_end_tokens = false;
    }
    return requests;
  }
};

TEST_P(S2Grammars, AMaskIsTheSameAloneBatchedAndPreempted) {
  if (LlguidanceVersion().empty()) GTEST_SKIP() << "built without Rust";
  const std::vector<GenerationRequest> requests = ConstrainedRequests();
  std::vector<std::string> alone;
  {
    Engine engine(model_, options_);
    for (const GenerationRequest& request : requests) {
      alone.push_back(Bits(tests::Run(engine, request)));
    }
  }
  const auto together = [&] {
    Engine engine(model_, options_);
    std::vector<std::shared_ptr<tests::PendingAnswer>> pending;
    for (const GenerationRequest& request : requests) {
      pending.push_back(tests::Start(engine, request));
    }
    std::vector<Answer> answers;
    for (const auto& one : pending) answers.push_back(one->Wait());
    ExpectEqual(alone, answers);
    for (size_t i = 0; i < requests.size(); i += 3) {
      if (!requests[i].grammar) continue;
      for (const auto& [number, choice] : answers[i].choices) {
        EXPECT_TRUE(std::regex_match(choice.text, std::regex("[a-z ]{0,30}[.]?"))) << choice.text;
        const bool is_whole = std::regex_match(choice.text, std::regex("[a-z ]{3,30}[.]"));
        EXPECT_EQ(choice.finished->reason == ChoiceFinished::Reason::kStop, is_whole);
      }
    }
    return engine.stats().preemptions_total;
  };

  options_.threads = 2;
  options_.max_seqs = 16;
  together();
  options_.kv_cache_bytes =
      ModelRunner::KvShape(*model_.model, 1).block_bytes() * (kMaxModelLen / 16 + 4);
  EXPECT_GT(together(), 0);
}

INSTANTIATE_TEST_SUITE_P(Llama, S2Grammars,
                         testing::Values(Case{"llama", DType::kF32, BlockFormat::kNone,
                                              &Kernels()}),
                         CaseName);

// Three adapters of different ranks and the base serve the same requests in one batch.
class S2Adapters : public S2LoadInvariance {
 protected:
  void SetUp() override {
    S2LoadInvariance::SetUp();
    for (const int64_t rank : {4, 16, 1}) {
      const auto dir = dir_.path() / ("adapter-" + std::to_string(rank));
      tests::WriteRandomAdapter(dir_.path() / "model", rank, static_cast<uint32_t>(rank), dir);
      adapters_.push_back(OpenAdapter(dir, model_, options_));
    }
  }

  std::vector<std::shared_ptr<const Adapter>> adapters_ = {nullptr};
};

TEST_P(S2Adapters, RequestsOfOtherAdaptersChangeNoBit) {
  // Each prompt by every adapter, so that all of them share prefixes.
  std::vector<GenerationRequest> requests;
  for (GenerationRequest& request : Requests()) {
    request.stop.max_new_tokens = std::min<int64_t>(request.stop.max_new_tokens, 12);
    for (const auto& adapter : adapters_) {
      request.adapter = adapter;
      requests.push_back(request);
    }
  }
  std::vector<std::string> alone;
  {
    options_.prefix_cache = false;
    options_.max_seqs = 4;
    options_.prefill_chunk_tokens = 512;
    Engine engine(model_, options_);
    for (const auto& request : requests) alone.push_back(Bits(tests::Run(engine, request)));
  }
  EXPECT_EQ(std::set<std::string>(alone.begin(), alone.end()).size(), alone.size());

  for (const auto& [threads, chunk] : {std::pair{1, 64}, {2, 7}}) {
    SCOPED_TRACE("threads " + std::to_string(threads) + " chunk " + std::to_string(chunk));
    options_.threads = threads;
    options_.prefill_chunk_tokens = chunk;
    options_.max_seqs = 16;
    options_.prefix_cache = true;
    Engine engine(model_, options_);
    for (int round = 0; round < 2; ++round) {
      std::vector<std::shared_ptr<tests::PendingAnswer>> pending;
      for (const auto& request : requests) pending.push_back(tests::Start(engine, request));
      for (size_t i = 0; i < requests.size(); ++i) {
        const Answer answer = pending[i]->Wait();
        EXPECT_EQ(alone[i], Bits(answer)) << "round " << round << " request " << i;
        if (round == 1 && i / adapters_.size() == 2) {
          EXPECT_GT(answer.only().finished->usage.cached_tokens, 0);
        }
      }
    }
  }
}

// Adapters do not depend on the family (engine_model_test covers all in mixed batches). Here: one
// family with windows and caps, one with fused layers, one in blocks.
std::vector<Case> AdapterCases() {
  std::vector<Case> cases = Cases();
  std::erase_if(cases, [](const Case& one) {
    if (one.block != BlockFormat::kNone) return one.family != "llama";
    return one.family != "gemma2" && one.family != "gpt2";
  });
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Everywhere, S2Adapters, testing::ValuesIn(AdapterCases()), CaseName);

// Keys and values of one adapter differ from those of another.
TEST(S2AdapterCache, APrefixIsSharedWithinOneAdapterOnly) {
  const tests::TemporaryDir dir;
  bench::RandomModelSpec spec;
  spec.config = bench::TinyLlamaConfig();
  spec.with_tokenizer = true;
  bench::WriteRandomModel(spec, dir.path() / "model");
  EngineOptions options;
  options.threads = 1;
  const LoadedModel model = OpenModel(ModelDir::Open(dir.path() / "model"), options, "");
  tests::WriteRandomAdapter(dir.path() / "model", 4, 1, dir.path() / "one");
  tests::WriteRandomAdapter(dir.path() / "model", 4, 2, dir.path() / "two");
  const auto one = OpenAdapter(dir.path() / "one", model, options);
  const auto same = OpenAdapter(dir.path() / "one", model, options);
  const auto two = OpenAdapter(dir.path() / "two", model, options);
  Engine engine(model, options);
  GenerationRequest request;
  for (int i = 0; i < 65; ++i) request.prompt.push_back(i);
  const auto cached = [&](const std::shared_ptr<const Adapter>& adapter) {
    request.adapter = adapter;
    return tests::Run(engine, request).only().finished->usage.cached_tokens;
  };

  EXPECT_EQ(cached(nullptr), 0);
  EXPECT_EQ(cached(one), 0);
  EXPECT_EQ(cached(two), 0);
  EXPECT_EQ(cached(nullptr), 64);
  EXPECT_EQ(cached(same), 64);
  EXPECT_EQ(cached(two), 64);
}

// A greedy and a seeded request, 500 times each, among random requests that start,
// end, fork and cancel. All replies have one completion and one set of bits.
TEST(S2CoLoad, ThousandRequestsHaveOneCompletionEach) {
  const tests::TemporaryDir dir;
  bench::RandomModelSpec spec;
  spec.config = bench::TinyLlamaConfig();
  spec.with_tokenizer = true;
  bench::WriteRandomModel(spec, dir.path() / "model");
  EngineOptions options;
  options.dtype = DType::kBF16;
  options.threads = 2;
  options.max_seqs = 12;
  options.prefill_chunk_tokens = 48;
  options.max_model_len = kMaxModelLen;
  const LoadedModel model = OpenModel(ModelDir::Open(dir.path() / "model"), options, "");
  options.kv_cache_bytes = ModelRunner::KvShape(*model.model, 1).block_bytes() * 30;
  Engine engine(model, options);

  std::mt19937 random(99);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  GenerationRequest greedy;
  for (int i = 0; i < 37; ++i) greedy.prompt.push_back(pick(0, kVocab - 1));
  greedy.stop.max_new_tokens = 20;
  greedy.stop.ignore_end_tokens = true;
  greedy.top_logprobs = 3;
  greedy.sampling.temperature = 0;
  GenerationRequest seeded = greedy;
  seeded.sampling.temperature = 1;
  seeded.sampling.seed = 4711;

  std::set<std::string> completions[2];
  std::vector<std::pair<int, std::shared_ptr<tests::PendingAnswer>>> flying;
  int64_t cancelled = 0;
  const auto collect = [&](size_t leave) {
    while (flying.size() > leave) {
      const size_t i = static_cast<size_t>(pick(0, static_cast<int>(flying.size()) - 1));
      const auto [kind, pending] = flying[i];
      flying.erase(flying.begin() + static_cast<std::ptrdiff_t>(i));
      const Answer answer = pending->Wait();
      EXPECT_EQ(answer.terminal_events, 1);
      if (kind < 2) {
        completions[kind].insert(Bits(answer));
      } else {
        cancelled += answer.end.outcome == RequestFinished::Outcome::kCancelled ? 1 : 0;
      }
    }
  };
  for (int i = 0; i < 1000; ++i) {
    GenerationRequest measured = i % 2 == 0 ? greedy : seeded;
    if (pick(0, 2) == 0) measured.work_class = WorkClass::kBatch;
    flying.emplace_back(i % 2, tests::Start(engine, std::move(measured)));
    if (pick(0, 1) == 0) {
      GenerationRequest other;
      for (int p = pick(1, 150); p > 0; --p) other.prompt.push_back(pick(0, kVocab - 1));
      if (pick(0, 2) == 0) other.prompt = {greedy.prompt.begin(), greedy.prompt.begin() + 33};
      other.stop.max_new_tokens = pick(0, 24);
      other.n = pick(0, 3) == 0 ? 3 : 1;
      other.sampling.seed = static_cast<uint64_t>(i);
      if (pick(0, 2) == 0) other.work_class = WorkClass::kBatch;
      if (pick(0, 5) == 0) other.prompt_logprobs = 1;
      if (pick(0, 4) == 0) {
        other.pooling = pick(0, 1) == 0 ? Pooling::kMean : Pooling::kLast;
        other.n = 1;
        other.stop.max_new_tokens = 0;
        other.prompt_logprobs = -1;
      }
      auto pending = tests::Start(engine, std::move(other));
      if (pick(0, 3) == 0) engine.Cancel(pending->id);
      flying.emplace_back(2, std::move(pending));
    }
    collect(static_cast<size_t>(pick(10, 30)));
  }
  collect(0);

  EXPECT_EQ(completions[0].size(), 1u);
  EXPECT_EQ(completions[1].size(), 1u);
  EXPECT_NE(completions[0], completions[1]);
  EXPECT_GT(cancelled, 0);
  const EngineStats stats = engine.stats();
  EXPECT_GT(stats.preemptions_total, 0);
  EXPECT_GT(stats.prefix_hit_tokens_total, 0);
  EXPECT_EQ(stats.requests_running, 0);
  EXPECT_EQ(stats.requests_waiting, 0);
  EXPECT_EQ(stats.batch_running, 0);
  EXPECT_EQ(stats.kv_blocks_used, 0);
}

}  // namespace
}  // namespace tandem::engine
