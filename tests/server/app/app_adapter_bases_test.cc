// Golden adapters served on their base in every dtype for weights.

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/app/app_fixture.h"
#include "tests/support/adapters.h"
#include "tests/support/golden.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using tests::Golden;
using tests::GoldenSequence;

constexpr const char* kAdmin = "Authorization: Bearer root\r\n";

// One golden base in each dtype, with its golden adapter and a random one.
class AppAdapterBases : public AppTest, public testing::WithParamInterface<std::string> {
 protected:
  AppAdapterBases() : golden_(tests::LoadGolden(GetParam())) {
    const fs::path root = scratch_.path() / "root";
    fs::create_directory(root);
    fs::copy(golden_.dir, root / "base", fs::copy_options::recursive);
    tests::WriteRandomAdapter(golden_.dir, 7, 3, root / "random");
    AppOptions options = Defaults();
    options.admin_key = "root";
    options.data_dir = scratch_.path() / "data";
    options.model_root = root;
    options.engine.prefix_cache = false;  // so that every row is computed
    StartApp(std::move(options));
  }

  void Do(const std::string& path, const Json& body) {
    const auto reply = Ask(Post(path, body.dump(), kAdmin));
    ASSERT_EQ(reply.status, 200) << reply.body;
  }
  void Load(const std::string& dtype) {
    Do("/admin/models/load", {{"path", "base"}, {"id", dtype}, {"dtype", dtype}, {"wait", true}});
    for (const auto& [name, path] : {std::pair{"-golden", "base/lora"}, {"-random", "random"}}) {
      Do("/admin/adapters/load", {{"name", dtype + name}, {"path", path}, {"base", dtype}});
    }
  }
  Json Complete(const std::string& model, const GoldenSequence& sequence) {
    return PostJson("/v1/completions", {{"model", model},
                                        {"prompt", sequence.input_ids},
                                        {"max_tokens", sequence.greedy_ids.size()},
                                        {"temperature", 0},
                                        {"ignore_eos", true},
                                        {"logprobs", 5},
                                        {"return_tokens_as_token_ids", true},
                                        {"return_token_ids", true}})["choices"][0];
  }
  // Expects the fixture's tokens and log-probabilities, within its tolerances.
  static void ExpectGolden(const Json& choice, const GoldenSequence& sequence, double tolerance) {
    EXPECT_EQ(choice["token_ids"].get<std::vector<TokenId>>(), sequence.greedy_ids);
    const Json& logprobs = choice["logprobs"]["token_logprobs"];
    ASSERT_EQ(logprobs.size(), sequence.greedy_logprobs.size());
    for (size_t i = 0; i < logprobs.size(); ++i) {
      EXPECT_NEAR(logprobs[i].get<double>(), sequence.greedy_logprobs[i], tolerance);
    }
  }

  struct Question {
    std::string model;
    const GoldenSequence* sequence;
    std::string alone;  // the choice as JSON: tokens and log-probabilities, bit for bit
  };
  engine::EngineStats StatsOf(const std::string& model) {
    return app_->models().Look(model)->engine->stats();
  }
  // All at once, one client each.
  void ExpectAllAsAlone(const std::vector<Question>& questions) {
    std::vector<std::string> answers(questions.size());
    std::vector<std::thread> clients;
    for (size_t i = 0; i < questions.size(); ++i) {
      clients.emplace_back(
          [&, i] { answers[i] = Complete(questions[i].model, *questions[i].sequence).dump(); });
    }
    for (std::thread& client : clients) client.join();
    for (size_t i = 0; i < questions.size(); ++i) {
      EXPECT_EQ(answers[i], questions[i].alone) << questions[i].model;
    }
  }

  tests::TemporaryDir scratch_;
  const Golden golden_;
};

TEST_P(AppAdapterBases, AnswersInAMixedBatchAreThoseOfEachAlone) {
  for (const std::string dtype : {"f32", "bf16", "int8", "int4"}) {
    SCOPED_TRACE(dtype);
    ASSERT_NO_FATAL_FAILURE(Load(dtype));
    std::vector<Question> questions;
    for (const char* adapter : {"", "-golden", "-random"}) {
      for (const GoldenSequence& sequence : golden_.sequences) {
        const Json alone = Complete(dtype + adapter, sequence);
        // The tolerances are those of tests/golden/README.md, and golden_test's of bf16.
        // golden_test compares all logits of quantised weights with the fixture.
        if (adapter == std::string("-golden") && dtype == "f32") {
          ExpectGolden(alone, sequence, 1e-3);
        }
        if (adapter == std::string("-golden") && dtype == "bf16") {
          ExpectGolden(alone, sequence, 0.25);
        }
        for (const Question& other : questions) {
          EXPECT_NE(alone.dump(), other.alone) << "these prove nothing";
        }
        questions.push_back({dtype + adapter, &sequence, alone.dump()});
      }
    }
    const std::vector<Question> once = questions;
    questions.insert(questions.end(), once.rbegin(), once.rend());

    // Repeats until the requests share a step: a step of one sequence makes one token.
    bool met = false;
    for (int round = 0; round < 50 && !met; ++round) {
      const engine::EngineStats before = StatsOf(dtype);
      ExpectAllAsAlone(questions);
      const engine::EngineStats after = StatsOf(dtype);
      met = after.generation_tokens_total - before.generation_tokens_total >
            3 * (after.steps_total - before.steps_total);
    }
    EXPECT_TRUE(met) << "no batch held more than three sequences on the average";
    Do("/admin/models/unload", {{"id", dtype}, {"wait", true}});
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, AppAdapterBases, testing::ValuesIn(tests::AdapterGoldenNames()),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return c == '-' || c == '/'; }, '_');
                           return name;
                         });

}  // namespace
}  // namespace tandem::server
