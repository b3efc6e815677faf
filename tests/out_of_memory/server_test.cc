// A server out of memory: at every allocation from accepting a connection to the response.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/engine.h"
#include "engine/formats/model_dir.h"
#include "server/http/http_server.h"
#include "server/http/response_writer.h"
#include "server/wire/error_body.h"
#include "server/wire/field_reader.h"
#include "server/wire/generation_fields.h"
#include "server/wire/json_text.h"
#include "tests/out_of_memory/failing_new.h"
#include "tests/server/http/raw_client.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

Response ToResponse(ErrorReply reply) {
  Response response;
  response.status = reply.status;
  response.body = std::move(reply.body);
  return response;
}

HttpPolicy Policy() {
  HttpPolicy policy;
  policy.refusal = [](int status, std::string_view code, std::string_view message) {
    return ToResponse(MakeErrorReply(status, code, message));
  };
  policy.failure = [](const Error& error, const Request& request) {
    return ToResponse(MakeErrorReply(error, request.id));
  };
  return policy;
}

class ServerOutOfMemoryTest : public testing::Test {
 protected:
  ServerOutOfMemoryTest() {
    bench::RandomModelSpec spec;
    spec.config = bench::TinyLlamaConfig();
    bench::WriteRandomModel(spec, dir_.path() / "model");
    engine::EngineOptions options;
    options.threads = 1;
    options.max_seqs = 4;
    options.kv_cache_bytes = 8 << 20;
    engine_ = std::make_shared<engine::Engine>(
        engine::OpenModel(engine::ModelDir::Open(dir_.path() / "model"), options, ""), options);
    std::vector<Route> routes;
    routes.push_back(
        {"POST", "/complete",
         [this](Request request, ResponseWriter writer) { Complete(request, std::move(writer)); },
         Access::kOpen});
    HttpOptions http;
    http.port = 0;
    server_ = std::make_unique<HttpServer>(http, std::move(routes), Policy());
    server_->Start();
  }
  ~ServerOutOfMemoryTest() override {
    server_->Stop();
    engine_.reset();
  }

  // Completes a prompt of token ids as a handler does: parse, submit, respond at the end.
  void Complete(const Request& request, ResponseWriter writer) {
    const nlohmann::ordered_json body = ParseJsonObject(request.body);
    engine::GenerationRequest wanted;
    wanted.prompt = ReadTokenIds(body["prompt"], "prompt", engine_->loaded().vocab_size);
    wanted.sampling.temperature = 0;
    wanted.stop.max_new_tokens = 4;
    wanted.stop.ignore_end_tokens = true;
    auto tokens = std::make_shared<std::vector<TokenId>>();
    engine_->Submit(std::move(wanted), [tokens, writer](RequestId, engine::GenerationEvent event) {
      if (const auto* delta = std::get_if<engine::TextDelta>(&event)) {
        tokens->insert(tokens->end(), delta->token_ids.begin(), delta->token_ids.end());
      }
      const auto* end = std::get_if<engine::RequestFinished>(&event);
      if (end == nullptr) return;
      if (end->outcome != engine::RequestFinished::Outcome::kCompleted) {
        const Error error = Error(end->code, end->message).WithReason(end->reason);
        return writer.Send(ToResponse(MakeErrorReply(error, "req")));
      }
      writer.Post([tokens, writer] {
        std::string text;
        AppendJsonInts(text, *tokens);
        writer.Json(200, std::move(text));
      });
    });
  }

  RawClient::Reply Ask() const {
    RawClient client(server_->port());
    const std::string body = R"({"prompt":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20]})";
    client.Send("POST /complete HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                std::to_string(body.size()) + "\r\n\r\n" + body);
    return client.Read();
  }

  tests::TemporaryDir dir_;
  std::shared_ptr<engine::Engine> engine_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(ServerOutOfMemoryTest, AFailedAllocationCostsAtMostTheAnswerOfOneRequest) {
  const tests::SpareThisThread spared;
  const RawClient::Reply expected = Ask();
  ASSERT_EQ(expected.status, 200) << expected.body;
  int n_answered = 0;
  int64_t k = 0;
  for (bool has_failed = true; has_failed && k < 5000;) {
    {
      const tests::FailAllocation failure(++k);
      const RawClient::Reply reply = Ask();
      has_failed = failure.has_failed();
      if (reply.complete && reply.status == 200) {
        ASSERT_EQ(reply.body, expected.body) << "allocation " << k;
      } else if (reply.complete) {
        ++n_answered;
        ASSERT_TRUE(reply.status == 503 || reply.status == 500) << reply.status << reply.body;
      }
    }
    const RawClient::Reply next = Ask();
    ASSERT_EQ(next.status, 200) << "behind allocation " << k << ": " << next.body;
    ASSERT_EQ(next.body, expected.body) << "behind allocation " << k;
  }
  EXPECT_GT(k, 50);
  EXPECT_GT(n_answered, 0);
  // A client has its answer shortly before the server forgets the request.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (server_->running_requests() > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_EQ(server_->running_requests(), 0u);
  EXPECT_EQ(engine_->stats().requests_running, 0);
}

}  // namespace
}  // namespace tandem::server
