#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/http_server.h"
#include "server/http/response_writer.h"
#include "tests/server/http/raw_client.h"

namespace tandem::server {

using namespace std::chrono_literals;

inline HttpPolicy TestPolicy() {
  HttpPolicy policy;
  policy.refusal = [](int status, std::string_view code, std::string_view message) {
    Response response;
    response.status = status;
    response.body =
        "{\"code\":\"" + std::string(code) + "\",\"message\":\"" + std::string(message) + "\"}";
    return response;
  };
  policy.failure = [](const Error&, const Request&) {
    Response response;
    response.status = 500;
    response.body = "{\"code\":\"internal_error\"}";
    return response;
  };
  policy.gate = [](const Request& request, Access access) -> std::optional<Response> {
    if (access != Access::kAdminKey || request.FindHeader("authorization")) return std::nullopt;
    Response response;
    response.status = 401;
    return response;
  };
  return policy;
}

// A server whose handlers the test controls.
class HttpServerTest : public testing::Test {
 protected:
  void StartServer(HttpOptions options = {}) {
    options.port = 0;
    std::vector<Route> routes;
    routes.push_back(
        {"GET", "/health",
         [](Request, ResponseWriter writer) { writer.Json(200, "{\"status\":\"ok\"}"); },
         Access::kOpen, RunsOn::kIoThread});
    routes.push_back({"POST", "/echo",
                      [](Request request, ResponseWriter writer) {
                        writer.AddHeader("x-path", request.path);
                        writer.Json(200, request.body);
                      },
                      Access::kOpen});
    routes.push_back({"GET", "/v1/models/{id+}",
                      [](Request request, ResponseWriter writer) {
                        writer.Text(200, request.path_params.at("id"));
                      },
                      Access::kApiKey});
    routes.push_back({"POST", "/secret",
                      [](Request, ResponseWriter writer) { writer.Json(200, "{}"); },
                      Access::kAdminKey});
    routes.push_back({"POST", "/throw",
                      [](Request, ResponseWriter) { throw std::runtime_error("private detail"); },
                      Access::kOpen});
    routes.push_back({"POST", "/forget", [](Request, ResponseWriter) {}, Access::kOpen});
    routes.push_back({"GET", "/held",
                      [this](Request, ResponseWriter writer) {
                        writer.OnDisconnect([this] { left_.release(); });
                        held_.set_value(std::move(writer));
                      },
                      Access::kApiKey});
    routes.push_back({"GET", "/stream",
                      [this](Request, ResponseWriter writer) {
                        writer.OnDisconnect([this] { left_.release(); });
                        stream_.set_value(writer.StartEventStream());
                      },
                      Access::kApiKey});
    server_ = std::make_unique<HttpServer>(options, std::move(routes), TestPolicy());
    server_->Start();
  }

  RawClient::Reply Ask(std::string_view bytes) {
    RawClient client(server_->port());
    client.Send(bytes);
    return client.Read(bytes.starts_with("HEAD"));
  }

  // Waits until the client's disconnect is reported.
  bool Left() { return left_.try_acquire_for(10s); }

  std::promise<ResponseWriter> held_;
  std::promise<EventStream> stream_;
  std::counting_semaphore<100> left_{0};
  std::unique_ptr<HttpServer> server_;
};

}  // namespace tandem::server
