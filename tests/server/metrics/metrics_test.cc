#include "server/metrics/metrics.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "engine/formats/model_dir.h"
#include "tests/support/engine_client.h"
#include "tests/support/temporary_dir.h"
#include "tests/support/tiny_model.h"

namespace tandem::server {
namespace {

class MetricsTest : public testing::Test {
 protected:
  MetricsTest() {
    tests::WriteTinyModel(dir_.path(), {});
    options_.threads = 1;
    options_.kv_cache_bytes = 1 << 20;
    loaded_ = engine::OpenModel(engine::ModelDir::Open(dir_.path()), options_, "");
  }
  std::unique_ptr<engine::Engine> StartEngine() {
    auto engine = std::make_unique<engine::Engine>(loaded_, options_);
    metrics_.Track(
        {.name = "m", .figures = engine->figures(), .prefix_cache = true, .kv_dtype = "f32"});
    return engine;
  }
  static void Generate(engine::Engine& engine, int64_t n_tokens) {
    engine::GenerationRequest request;
    request.prompt = {3, 4, 5};
    request.stop.max_new_tokens = n_tokens;
    request.stop.ignore_end_tokens = true;
    tests::Run(engine, request);
  }
  // The value on the model's line, or nullopt without one. There is at most one line.
  std::optional<double> ValueOf(const std::string& metric) {
    const std::string text = metrics_.Text({});
    const std::string begin = "\ntandem:" + metric + "{";
    const size_t at = text.find(begin);
    if (at == std::string::npos) return std::nullopt;
    EXPECT_EQ(text.find(begin, at + 1), std::string::npos) << metric;
    return std::stod(text.substr(text.find("} ", at) + 2));
  }

  tests::TemporaryDir dir_;
  engine::EngineOptions options_;
  engine::LoadedModel loaded_;
  Metrics metrics_{"tandem"};
};

TEST_F(MetricsTest, AModelThatNobodyLookedAtIsCounted) {
  auto engine = StartEngine();
  Generate(*engine, 7);
  engine.reset();

  EXPECT_EQ(ValueOf("generation_tokens_total"), 7);
  EXPECT_EQ(ValueOf("e2e_request_latency_seconds_count"), 1);
}

TEST_F(MetricsTest, CountersGoOnWithTheNextEngineOfAName) {
  for (int i = 1; i <= 3; ++i) {
    auto engine = StartEngine();
    Generate(*engine, 5);
    engine.reset();
    if (i != 2) {  // the counters need no scrape of each engine
      EXPECT_EQ(ValueOf("generation_tokens_total"), 5 * i);
    }
  }
}

TEST_F(MetricsTest, AModelIsMeasuredUntilItHasEnded) {
  auto old = StartEngine();
  EXPECT_EQ(ValueOf("num_requests_running"), 0);
  // A new engine replaces the old one, which still serves its requests: one line for both.
  auto fresh = StartEngine();
  EXPECT_EQ(ValueOf("num_requests_running"), 0);

  old.reset();
  EXPECT_EQ(ValueOf("num_requests_running"), 0);
  fresh.reset();
  EXPECT_EQ(ValueOf("num_requests_running"), std::nullopt);
  EXPECT_EQ(ValueOf("generation_tokens_total"), 0);
}

TEST_F(MetricsTest, SeriesOfADepartedModelEndFiveMinutesAfterIt) {
  StartEngine().reset();
  metrics_.EndsOf("adapter-of-m");
  Metrics::Snapshot snapshot;
  snapshot.now = std::chrono::steady_clock::time_point(std::chrono::hours(1));
  const auto shows = [&](const char* name) {
    return metrics_.Text(snapshot).find("model_name=\"" + std::string(name) + "\"") !=
           std::string::npos;
  };
  snapshot.served = {"m", "adapter-of-m"};
  EXPECT_TRUE(shows("m"));

  snapshot.served = {};
  EXPECT_TRUE(shows("m")) << "its last values are read";
  snapshot.now += std::chrono::minutes(4);
  EXPECT_TRUE(shows("adapter-of-m"));
  snapshot.served = {"m"};  // back again
  snapshot.now += std::chrono::minutes(2);
  EXPECT_FALSE(shows("adapter-of-m"));
  EXPECT_TRUE(shows("m"));

  snapshot.served = {};
  EXPECT_TRUE(shows("m"));
  snapshot.now += std::chrono::minutes(6);
  EXPECT_FALSE(shows("m"));
}

TEST_F(MetricsTest, ModelsThatAReaderMayNotSeeAreOneModelWithoutTheirNames) {
  auto visible = StartEngine();
  auto first = std::make_unique<engine::Engine>(loaded_, options_);
  auto second = std::make_unique<engine::Engine>(loaded_, options_);
  metrics_.Track({.name = "secret-1", .figures = first->figures(), .kv_dtype = "f32"});
  metrics_.Track({.name = "secret-2", .figures = second->figures(), .kv_dtype = "f32"});
  Generate(*visible, 3);
  Generate(*first, 5);
  Generate(*second, 7);
  Metrics::Count(*metrics_.EndsOf("secret-1"), FinishedReason::kStop);
  Metrics::Count(*metrics_.EndsOf("secret-2"), FinishedReason::kStop);
  first.reset();
  second.reset();
  visible.reset();
  Metrics::Snapshot snapshot;
  snapshot.visible = {"m"};
  snapshot.memory.push_back({"secret-1", {}});

  const std::string text = metrics_.Text(snapshot);

  EXPECT_EQ(text.find("secret"), std::string::npos) << text;
  for (const char* line : {
           "tandem:generation_tokens_total{model_name=\"m\"} 3\n",
           "tandem:generation_tokens_total{model_name=\"other\"} 12\n",
           "tandem:request_success_total{finished_reason=\"stop\",model_name=\"other\"} 2\n",
           "tandem:model_memory_bytes{kind=\"kv\",model_name=\"other\"} 0\n",
       }) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
  snapshot.visible.reset();
  EXPECT_NE(metrics_.Text(snapshot).find("secret-2"), std::string::npos);
}

TEST_F(MetricsTest, TheSumOfHiddenModelsKeepsTheCountsOfADepartedOne) {
  auto first = std::make_unique<engine::Engine>(loaded_, options_);
  auto second = std::make_unique<engine::Engine>(loaded_, options_);
  metrics_.Track({.name = "secret-1", .figures = first->figures(), .kv_dtype = "f32"});
  metrics_.Track({.name = "secret-2", .figures = second->figures(), .kv_dtype = "f32"});
  Generate(*first, 5);
  Generate(*second, 7);
  Metrics::Count(*metrics_.EndsOf("secret-1"), FinishedReason::kStop);
  Metrics::Count(*metrics_.EndsOf("adapter"), FinishedReason::kStop);
  Metrics::Snapshot snapshot;
  snapshot.now = std::chrono::steady_clock::time_point(std::chrono::hours(1));
  snapshot.visible.emplace();
  const auto expect_sums = [&] {
    const std::string text = metrics_.Text(snapshot);
    for (const char* line : {
             "tandem:generation_tokens_total{model_name=\"other\"} 12\n",
             "tandem:e2e_request_latency_seconds_count{model_name=\"other\"} 2\n",
             "tandem:request_success_total{finished_reason=\"stop\",model_name=\"other\"} 2\n",
         }) {
      EXPECT_NE(text.find(line), std::string::npos) << line << text;
    }
  };
  snapshot.served = {"secret-1", "secret-2", "adapter"};
  expect_sums();

  first.reset();
  snapshot.served = {"secret-2"};
  expect_sums();
  snapshot.now += std::chrono::minutes(6);
  expect_sums();
  second.reset();
  snapshot.served = {};
  expect_sums();
  snapshot.now += std::chrono::minutes(6);
  expect_sums();
  snapshot.visible.reset();
  EXPECT_EQ(metrics_.Text(snapshot).find("model_name=\"other\""), std::string::npos);
}

TEST_F(MetricsTest, AModelThatIsLoadedAgainWasNeverAHiddenOne) {
  Generate(*StartEngine(), 5);
  Metrics::Snapshot snapshot;
  snapshot.now = std::chrono::steady_clock::time_point(std::chrono::hours(1));
  snapshot.served = {"m"};
  snapshot.visible = {"m"};
  EXPECT_NE(metrics_.Text(snapshot).find("generation_tokens_total{model_name=\"m\"} 5\n"),
            std::string::npos);

  snapshot.served = {};
  snapshot.visible = std::set<std::string>();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(metrics_.Text(snapshot).find("model_name=\"other\""), std::string::npos);
    snapshot.now += std::chrono::minutes(6);
  }
}

TEST_F(MetricsTest, JobsHaveALineForEveryStatusBeforeThereIsOne) {
  Metrics::Snapshot snapshot;
  snapshot.jobs = {{{"train", "failed"}, 2}, {{"model_load", "succeeded"}, 1}};
  snapshot.finetune_steps = 17;
  snapshot.is_ready = true;

  const std::string text = metrics_.Text(snapshot);

  for (const char* line : {
           "tandem:jobs{status=\"failed\",type=\"train\"} 2\n",
           "tandem:jobs{status=\"failed\",type=\"fine_tune\"} 0\n",
           "tandem:jobs{status=\"running\",type=\"fine_tune\"} 0\n",
           "tandem:jobs{status=\"succeeded\",type=\"model_load\"} 1\n",
           "tandem:finetune_steps_total 17\n",
           "tandem:ready 1\n",
           "tandem:healthy 0\n",
       }) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
  EXPECT_EQ(text.find("data_disk"), std::string::npos) << "there is no data directory";
}

}  // namespace
}  // namespace tandem::server
