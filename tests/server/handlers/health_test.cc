#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "server/handlers/handlers.h"
#include "server/http/response_channel.h"

namespace tandem::server {
namespace {

Response AnswerOf(void (*handler)(const HandlerContext&, Request, ResponseWriter),
                  const HandlerContext& context) {
  const auto channel = std::make_shared<ResponseChannel>(
      1 << 20, [] {}, [](const std::shared_ptr<ResponseChannel>&) {});
  handler(context, Request(), ResponseWriter(channel, [] { return ResponseWriter::Abandoned(); }));
  return channel->Take().head.value();
}

TEST(Ready, SaysWhichStateItIsInAndAsksToComeBack) {
  ModelRegistry models(false);
  std::atomic<bool> is_loading{true};
  std::atomic<bool> is_draining{false};
  const HandlerContext context{.models = models,
                               .is_loading = is_loading,
                               .is_draining = is_draining,
                               .model_root = {},
                               .base_url = ""};

  const Response loading = AnswerOf(Ready, context);
  is_loading = false;
  const Response no_model = AnswerOf(Ready, context);
  is_draining = true;
  const Response draining = AnswerOf(Ready, context);

  EXPECT_EQ(loading.body, R"({"status":"loading"})");
  EXPECT_EQ(no_model.body, R"({"status":"no_model"})");
  EXPECT_EQ(draining.body, R"({"status":"draining"})");
  for (const Response* response : {&loading, &no_model, &draining}) {
    EXPECT_EQ(response->status, 503);  // the connection adds retry-after
  }
  // A server without models is alive.
  EXPECT_EQ(AnswerOf(Health, context).status, 200);
}

}  // namespace
}  // namespace tandem::server
