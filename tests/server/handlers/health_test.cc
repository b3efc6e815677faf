#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "engine/base/attempt.h"
#include "server/handlers/endpoints.h"
#include "server/http/response_channel.h"

namespace tandem::server {
namespace {

Response AnswerOf(const std::string& path, const HandlerContext& context) {
  const auto channel = std::make_shared<ResponseChannel>(
      1 << 20, [] {}, [](const std::shared_ptr<ResponseChannel>&) {});
  const Router router(AllRoutes(context));
  router.Find("GET", path).route->handler(Request(), ResponseWriter(channel, [] {
                                            return ResponseWriter::Abandoned();
                                          }));
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

  const Response loading = AnswerOf("/ready", context);
  is_loading = false;
  const Response no_model = AnswerOf("/ready", context);
  is_draining = true;
  const Response draining = AnswerOf("/ready", context);

  EXPECT_EQ(loading.body, R"({"status":"loading"})");
  EXPECT_EQ(no_model.body, R"({"status":"no_model"})");
  EXPECT_EQ(draining.body, R"({"status":"draining"})");
  for (const Response* response : {&loading, &no_model, &draining}) {
    EXPECT_EQ(response->status, 503);  // the connection adds retry-after
  }
  // A server without models is alive.
  EXPECT_EQ(AnswerOf("/health", context).status, 200);
}

TEST(NotReady, SaysStartingOnlyWhileTheServerStarts) {
  ModelRegistry models(false);
  std::atomic<bool> is_loading{true};
  std::atomic<bool> is_draining{false};
  const HandlerContext context{.models = models,
                               .is_loading = is_loading,
                               .is_draining = is_draining,
                               .model_root = {},
                               .base_url = ""};
  const auto message = [&] {
    const std::optional<Error> error = ErrorOf([&] { RequireJobs(context); });
    return error ? std::string(error->what()) : "";
  };

  EXPECT_EQ(message(), "the server is still starting");
  is_loading = false;
  EXPECT_NE(message().find("keeps no files and no jobs"), std::string::npos) << message();
  is_draining = true;
  EXPECT_EQ(message(), "the server is stopping");
}

}  // namespace
}  // namespace tandem::server
