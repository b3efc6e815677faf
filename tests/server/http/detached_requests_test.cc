#include "server/http/detached_requests.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <utility>

namespace tandem::server {
namespace {

Response FailureOf(const Error& error, const std::string& request_id) {
  return {500, request_id + ": " + error.what(), "text/plain", {}};
}

// Opens a request whose answer arrives in the future.
struct DetachedAnswer {
  explicit DetachedAnswer(DetachedRequests& requests)
      : answer(promise->get_future()),
        detached(requests.Open("req-1", [promise = promise](Response response) {
          promise->set_value(std::move(response));
        })) {}
  std::shared_ptr<std::promise<Response>> promise = std::make_shared<std::promise<Response>>();
  std::future<Response> answer;
  DetachedRequests::Detached detached;
};

TEST(DetachedRequests, ABodyReachesOnAnswer) {
  DetachedRequests requests(FailureOf);
  DetachedAnswer one(requests);

  one.detached.writer.Post([writer = one.detached.writer] { writer.Json(201, "{}"); });

  const Response response = one.answer.get();
  EXPECT_EQ(response.status, 201);
  EXPECT_EQ(response.body, "{}");
}

TEST(DetachedRequests, TheEventsOfAStreamAreTheBody) {
  DetachedRequests requests(FailureOf);
  DetachedAnswer one(requests);

  const EventStream stream = one.detached.writer.StartEventStream();
  stream.Send("1");
  stream.SendNamed("two", "2");
  stream.Close();

  EXPECT_EQ(one.answer.get().body, "data: 1\n\nevent: two\ndata: 2\n\n");
}

TEST(DetachedRequests, AnExceptionOfATaskBecomesTheAnswer) {
  DetachedRequests requests(FailureOf);
  DetachedAnswer one(requests);

  one.detached.writer.Post([] { throw Error(ErrorCode::kUnavailable, "no room"); });

  EXPECT_EQ(one.answer.get().body, "req-1: no room");
}

TEST(DetachedRequests, ADroppedWriterFailsTheRequest) {
  DetachedRequests requests(FailureOf);
  auto promise = std::make_shared<std::promise<Response>>();
  std::future<Response> answer = promise->get_future();

  requests.Open("req-2", [promise](Response response) { promise->set_value(std::move(response)); });

  EXPECT_EQ(answer.get().body, "req-2: the request was dropped");
}

TEST(DetachedRequests, ADisconnectTellsTheProducerAndDropsTheAnswer) {
  DetachedRequests requests(FailureOf);
  DetachedAnswer one(requests);
  bool was_told = false;
  one.detached.writer.OnDisconnect([&] { was_told = true; });

  one.detached.channel->Disconnect();
  one.detached.writer.Json(200, "{}");
  std::promise<void> ran;
  requests.Post([&] { ran.set_value(); });
  ran.get_future().wait();

  EXPECT_TRUE(was_told);
  EXPECT_EQ(one.answer.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
}

}  // namespace
}  // namespace tandem::server
