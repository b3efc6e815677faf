#include "server/http/body_budget.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "server/http/request_parser.h"
#include "tests/server/http/http_server_fixture.h"

namespace tandem::server {
namespace {

const HttpOptions kDefaults{};

constexpr size_t kBody = 90'000;

std::string Head(size_t n, const std::string& more = "") {
  return "POST /echo HTTP/1.1\r\nHost: localhost\r\n" + more +
         "Content-Length: " + std::to_string(n) + "\r\n\r\n";
}

TEST(BodyBudget, WhatABodyTakesIsGivenBackWithIt) {
  auto budget = std::make_shared<BodyBudget>(100'000);
  auto first = std::make_unique<BodyShare>(budget);
  EXPECT_TRUE(first->GrowTo(40'000));
  EXPECT_TRUE(first->GrowTo(60'000));
  EXPECT_EQ(budget->used_bytes(), 60'000u);
  EXPECT_FALSE(budget->HasRoomFor(40'001));

  BodyShare second(budget);
  EXPECT_FALSE(second.GrowTo(40'001));
  EXPECT_TRUE(second.GrowTo(BodyBudget::kFreeBytes)) << "small bodies do not count";
  EXPECT_EQ(budget->used_bytes(), 60'000u);

  first.reset();
  EXPECT_EQ(budget->used_bytes(), 0u);
  EXPECT_TRUE(second.GrowTo(100'000));
}

TEST(BodyBudget, ABurstIsReportedOnce) {
  auto budget = std::make_shared<BodyBudget>(100 << 20);
  EXPECT_FALSE(budget->TakeBurst());
  std::make_unique<BodyShare>(budget)->GrowTo(BodyBudget::kBurstBytes - 1);
  EXPECT_FALSE(budget->TakeBurst());
  std::make_unique<BodyShare>(budget)->GrowTo(1 << 20);
  EXPECT_TRUE(budget->TakeBurst());
  EXPECT_FALSE(budget->TakeBurst());
}

TEST(BodyBudget, ADroppedBodyHoldsNoMemory) {
  auto budget = std::make_shared<BodyBudget>(1 << 20);
  RequestParser parser(kDefaults, {}, budget);
  parser.Append(Head(500'000));
  EXPECT_TRUE(std::holds_alternative<RequestParser::HeadReady>(parser.Next()));
  EXPECT_EQ(budget->used_bytes(), 0u) << "an announced length costs nothing";
  parser.Append(std::string(300'000, ' '));
  EXPECT_TRUE(std::holds_alternative<RequestParser::NeedMore>(parser.Next()));
  EXPECT_GE(budget->used_bytes(), 300'000u);

  parser.DropBody();

  EXPECT_EQ(budget->used_bytes(), 0u);
  EXPECT_LT(parser.head().body.capacity(), 1'000u);
}

TEST(BodyBudget, ABodyThatArrivesInPiecesTakesNoMoreThanItAnnounced) {
  auto budget = std::make_shared<BodyBudget>(1 << 20);
  RequestParser parser(kDefaults, {}, budget);
  parser.Append(Head(300'000));
  EXPECT_TRUE(std::holds_alternative<RequestParser::HeadReady>(parser.Next()));
  for (int i = 0; i < 29; ++i) {
    parser.Append(std::string(10'000, ' '));
    EXPECT_TRUE(std::holds_alternative<RequestParser::NeedMore>(parser.Next()));
    EXPECT_LE(budget->used_bytes(), 300'000u);
  }
}

class BodyBudgetServerTest : public HttpServerTest {
 protected:
  void StartWithBudget() {
    HttpOptions options;
    options.body_memory_bytes = 100'000;
    StartServer(options);
  }
  // Repeats until the reply has this status: another connection's bytes are still arriving.
  RawClient::Reply AskUntil(int status, const std::string& bytes) {
    for (;;) {
      RawClient::Reply reply = Ask(bytes);
      if (reply.status == status) return reply;
    }
  }
};

TEST_F(BodyBudgetServerTest, ABodyBeyondTheBudgetOfAllGets503UntilThereIsRoom) {
  StartWithBudget();
  const std::string body(kBody, 'x');
  const std::string large = Head(kBody) + body;
  RawClient holder(server_->port());
  holder.Send(Head(kBody) + body.substr(1));

  const auto refused = AskUntil(503, large);
  EXPECT_NE(refused.body.find("--body-memory"), std::string::npos);
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  const std::string small(10'000, 'y');
  EXPECT_EQ(Ask(Head(small.size()) + small).body, small);

  holder.Send("x");
  EXPECT_EQ(holder.Read().body, body);
  EXPECT_EQ(AskUntil(200, large).body, body);
}

TEST_F(BodyBudgetServerTest, ARefusedBodyLeavesTheConnectionUsable) {
  StartWithBudget();
  RawClient holder(server_->port());
  holder.Send(Head(kBody) + std::string(kBody - 1, 'x'));
  AskUntil(503, Head(kBody) + std::string(kBody, 'x'));

  RawClient client(server_->port());
  std::string chunked =
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 9; ++i) chunked += "2710\r\n" + std::string(10'000, 'z') + "\r\n";
  client.Send(chunked + "0\r\n\r\n" + Head(2) + "ok");
  EXPECT_EQ(client.Read().status, 503);
  EXPECT_EQ(client.Read().body, "ok");

  // A client that waits for 100 Continue is refused at once.
  RawClient asking(server_->port());
  asking.Send(Head(kBody, "Expect: 100-continue\r\n"));
  EXPECT_EQ(asking.Read().status, 503);
}

TEST_F(BodyBudgetServerTest, AnAnnouncedLengthTakesNoRoom) {
  StartWithBudget();
  RawClient silent(server_->port());
  silent.Send(Head(kBody) + "x");
  EXPECT_EQ(Ask(Head(2) + "ok").body, "ok");
  EXPECT_EQ(Ask(Head(kBody) + std::string(kBody, 'x')).status, 200);
}

TEST_F(BodyBudgetServerTest, AClientThatLeavesGivesItsRoomBack) {
  StartWithBudget();
  const std::string large = Head(kBody) + std::string(kBody, 'x');
  {
    RawClient holder(server_->port());
    holder.Send(large.substr(0, large.size() - 1));
    AskUntil(503, large);
  }
  EXPECT_EQ(AskUntil(200, large).status, 200);
}

}  // namespace
}  // namespace tandem::server
