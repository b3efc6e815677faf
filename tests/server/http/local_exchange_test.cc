#include "server/http/local_exchange.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "server/http/response_writer.h"

namespace tandem::server {
namespace {

class LocalExchangeTest : public testing::Test {
 protected:
  LocalExchangeTest() {
    auto policy = std::make_shared<HttpPolicy>();
    policy->refusal = [](int status, std::string_view code, std::string_view message) {
      return Response{status, std::string(message), "text/plain", {}, std::string(code)};
    };
    policy->failure = [](const Error& error, const Request& request) {
      return Response{400, request.path + ": " + error.what(), "text/plain", {}};
    };
    policy_ = std::move(policy);
  }
  std::unique_ptr<LocalExchange> Begin(Handler handler) {
    route_.handler = std::move(handler);
    Request request;
    request.id = "req_1";
    request.path = "/p";
    request.body = "the body";
    return std::make_unique<LocalExchange>(policy_, route_, std::move(request),
                                           [this] { ++n_notified_; });
  }

  std::shared_ptr<const HttpPolicy> policy_;
  Route route_;
  int n_notified_ = 0;
};

TEST_F(LocalExchangeTest, AWholeAnswerIsReturnedOnce) {
  const auto exchange = Begin([](Request request, ResponseWriter writer) {
    writer.AddHeader("x-a", "b");
    writer.Json(201, request.body);
  });
  EXPECT_EQ(n_notified_, 1);

  const std::optional<Response> answer = exchange->Advance();

  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 201);
  EXPECT_EQ(answer->body, "the body");
  EXPECT_EQ(answer->headers, (Headers{{"x-a", "b"}}));
  EXPECT_FALSE(exchange->Advance());
}

TEST_F(LocalExchangeTest, PostedTasksRunInAdvanceAndTheirFaultsBecomeTheAnswer) {
  std::vector<ResponseWriter> kept;
  const auto exchange =
      Begin([&](Request, ResponseWriter writer) { kept.push_back(std::move(writer)); });
  EXPECT_FALSE(exchange->Advance());
  EXPECT_EQ(n_notified_, 0);

  bool has_run = false;
  kept[0].Post([&] { has_run = true; });
  EXPECT_EQ(n_notified_, 1);
  EXPECT_FALSE(has_run);
  EXPECT_FALSE(exchange->Advance());
  EXPECT_TRUE(has_run);

  kept[0].Post([] { throw Error(ErrorCode::kInternal, "a fault"); });
  const std::optional<Response> answer = exchange->Advance();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->body, "/p: a fault");
}

TEST_F(LocalExchangeTest, AnExceptionOfTheHandlerBecomesTheAnswer) {
  const auto exchange =
      Begin([](Request, ResponseWriter) { throw Error(ErrorCode::kInvalidArgument, "no"); });
  const std::optional<Response> answer = exchange->Advance();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 400);
  EXPECT_EQ(answer->body, "/p: no");
}

TEST_F(LocalExchangeTest, ARequestThatNobodyAnswersIsAnInternalError) {
  const auto exchange = Begin([](Request, ResponseWriter) {});
  const std::optional<Response> answer = exchange->Advance();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 500);
  EXPECT_EQ(answer->error_code, "internal_error");
}

TEST_F(LocalExchangeTest, AnAnswerThatIsGivenUpIsAnInternalError) {
  const auto exchange = Begin([](Request, ResponseWriter writer) { writer.GiveUp(); });
  const std::optional<Response> answer = exchange->Advance();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 500);
}

TEST_F(LocalExchangeTest, AStreamIsCollectedBeyondTheBoundOfUnsentBytes) {
  std::optional<EventStream> stream;
  const auto exchange =
      Begin([&](Request, ResponseWriter writer) { stream = writer.StartEventStream(); });
  const std::string piece(600'000, 'x');
  for (int i = 0; i < 10; ++i) {
    stream->Send(piece);
    EXPECT_FALSE(exchange->Advance());
  }
  stream->Close();
  const std::optional<Response> answer = exchange->Advance();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body.size(), 10 * (piece.size() + std::string("data: \n\n").size()));
}

TEST_F(LocalExchangeTest, ItsEndCancelsAnIncompleteAnswer) {
  std::vector<ResponseWriter> kept;
  bool is_cancelled = false;
  auto exchange = Begin([&](Request, ResponseWriter writer) {
    writer.OnDisconnect([&] { is_cancelled = true; });
    kept.push_back(std::move(writer));
  });
  exchange.reset();

  EXPECT_TRUE(is_cancelled);
  EXPECT_TRUE(kept[0].disconnected());
  kept[0].Json(200, "too late");
}

}  // namespace
}  // namespace tandem::server
