// Faults between the admission of a request and the beginning of its reply.

#include "server/handlers/generate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "engine/formats/model_dir.h"
#include "server/admission/admission.h"
#include "server/handlers/handlers.h"
#include "server/http/response_channel.h"
#include "server/metrics/metrics.h"
#include "tests/support/engine_client.h"
#include "tests/support/temporary_dir.h"
#include "tests/support/tiny_model.h"

namespace tandem::server {
namespace {

constexpr int64_t kTokensPerMinute = 40000;
constexpr int64_t kLongAnswer = 30000;
constexpr uint64_t kClient = 7;

class GenerateTest : public testing::Test {
 protected:
  GenerateTest() {
    tests::TinyModelOptions tiny;
    tiny.max_context_len = 32768;
    tests::WriteTinyModel(dir_.path(), tiny);
    engine::EngineOptions options;
    options.threads = 1;
    options.max_seqs = 1;
    options.kv_cache_bytes = 64 << 20;
    auto model = std::make_shared<ServedModel>();
    model->id = "m";
    model->engine = std::make_shared<engine::Engine>(
        engine::OpenModel(engine::ModelDir::Open(dir_.path()), options, ""), options);
    model_ = std::move(model);
    context_.admission = &admission_;
    context_.metrics = &metrics_;
    request_.client = kClient;
  }

  // Ends the connections, which drops the tasks that hold their writers.
  ~GenerateTest() override {
    is_ending_ = true;
    for (const auto& channel : channels_) {
      std::vector<std::function<void()>> ran;
      channel->Disconnect();
      channel->RunTasks(ran);
    }
  }

  // A connection whose answer thread is out of order.
  ResponseWriter BrokenWriter() {
    const auto channel = std::make_shared<ResponseChannel>(
        1 << 20, [] {},
        [this](const std::shared_ptr<ResponseChannel>&) {
          if (!is_ending_) throw Error(ErrorCode::kInternal, "the answer thread is out of order");
        });
    channels_.push_back(channel);
    return ResponseWriter(channel, [] { return ResponseWriter::Abandoned(); });
  }
  static engine::GenerationRequest Asking(int64_t n_tokens) {
    engine::GenerationRequest request;
    request.prompt = {3, 4, 5};
    request.stop.max_new_tokens = n_tokens;
    request.stop.ignore_end_tokens = true;
    return request;
  }
  void Ask(const ResponseWriter& writer) {
    std::vector<engine::GenerationRequest> requests;
    requests.push_back(Asking(kLongAnswer));
    ReplyShape shape;
    shape.prompts.resize(1);
    Generate(context_, model_, std::move(requests), std::move(shape), request_, writer);
  }
  bool HasTokensLeft(int64_t n) {
    try {
      admission_.ChargeTokens(kClient, n, BrokenWriter());
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), "rate_limit_exceeded");
      return false;
    }
    return true;
  }

  tests::TemporaryDir dir_;
  ModelRegistry models_{false};
  std::atomic<bool> is_loading_{false};
  std::atomic<bool> is_draining_{false};
  HandlerContext context_{.models = models_,
                          .is_loading = is_loading_,
                          .is_draining = is_draining_,
                          .model_root = {},
                          .base_url = ""};
  Metrics metrics_{"tandem"};
  KeyUsage usage_;
  Admission admission_{{.tokens = kTokensPerMinute},
                       models_,
                       [] { return int64_t{0}; },
                       [] { return std::chrono::steady_clock::time_point(std::chrono::hours(1)); },
                       usage_};
  std::shared_ptr<const ServedModel> model_;
  Request request_;
  std::vector<std::shared_ptr<ResponseChannel>> channels_;
  bool is_ending_ = false;
};

TEST_F(GenerateTest, ARequestWhoseReplyCannotBeginIsNotGenerated) {
  EXPECT_THROW(Ask(BrokenWriter()), Error);

  // The batch has one place, so the next request runs after the end of the first.
  tests::Run(*model_->engine, Asking(1));
  EXPECT_TRUE(HasTokensLeft(kTokensPerMinute - kLongAnswer / 2));
  const std::string text = metrics_.Text({});
  EXPECT_NE(text.find("request_success_total{finished_reason=\"abort\",model_name=\"m\"} 1\n"),
            std::string::npos)
      << text;
}

TEST_F(GenerateTest, ARequestThatRunsOutOfMemoryBeforeTheQueueCostsNoTokens) {
  request_.admission =
      std::make_shared<Reservation>([](const std::function<void()>&) { throw std::bad_alloc(); });

  EXPECT_THROW(Ask(BrokenWriter()), std::bad_alloc);

  EXPECT_TRUE(HasTokensLeft(kTokensPerMinute));
}

}  // namespace
}  // namespace tandem::server
