#include "server/client/server_client.h"

#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/sse_parser.h"
#include "engine/base/url.h"
#include "engine/hub/http_client.h"
#include "engine/io/atomic_write.h"
#include "server/terminal/visible_text.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;
using namespace std::chrono_literals;

constexpr size_t kMaxAnswerBytes = size_t{64} << 20;
constexpr size_t kMaxUploadBytes = size_t{512} << 20;
constexpr size_t kMaxShownBytes = 4000;
// The first token of a long prompt, or the check of a large file, can take minutes.
constexpr std::chrono::milliseconds kAnswerPatience = 600s;

engine::HubOptions OptionsFor(const std::string& url) {
  engine::HubOptions options;
  options.endpoint = url;
  options.idle_timeout = kAnswerPatience;
  options.answer_timeout = kAnswerPatience;
  return options;
}

ErrorCode CodeOfStatus(int status) {
  switch (status) {
    case 400:
    case 413:
    case 422:
      return ErrorCode::kInvalidArgument;
    case 401:
      return ErrorCode::kUnauthenticated;
    case 403:
      return ErrorCode::kPermissionDenied;
    case 404:
      return ErrorCode::kNotFound;
    case 409:
      return ErrorCode::kAlreadyExists;
    case 429:
    case 503:
      return ErrorCode::kUnavailable;
    default:
      return ErrorCode::kFailedPrecondition;
  }
}

std::string TextAt(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// The error of an answer or event; `status` is 0 within a stream.
Error ServerFault(const std::string& where, int status, const Json& body) {
  std::string message;
  std::string reason;
  if (body.is_object() && body.contains("error")) {
    const Json& error = body["error"];
    if (error.is_string()) message = error.get<std::string>();
    if (error.is_object()) {
      message = TextAt(error, "message");
      reason = TextAt(error, "code");
    }
  }
  if (message.empty())
    message = status == 0 ? "the server failed" : "status " + std::to_string(status);
  std::string text = where + ": " + VisibleLine(message, kMaxShownBytes);
  if (status == 401 || status == 403) {
    const bool is_admin = where.find("/admin") != std::string::npos;
    text += std::string("; give ") + (is_admin ? "an admin key" : "a key") +
            " of the server with --key-file FILE or " +
            (is_admin ? "TANDEM_ADMIN_KEY" : "TANDEM_API_KEY");
  }
  const ErrorCode code = status == 0 ? ErrorCode::kFailedPrecondition : CodeOfStatus(status);
  return Error(code, text).WithReason(VisibleLine(reason, 200));
}

std::string RandomBoundary() {
  std::random_device random;
  std::string out = "tandem-";
  for (int i = 0; i < 4; ++i) out += std::to_string(random());
  return out;
}

}  // namespace

// One request and its answer.
class ServerClient::Exchange {
 public:
  Exchange(const ServerAddress& address, std::string path, std::stop_token stop)
      : address_(address),
        where_(address.url + path.substr(0, path.find('?'))),
        path_(std::move(path)),
        shared_(OptionsFor(address.url), std::move(stop)),
        client_(shared_) {}

  // Sends the request and returns the status.
  int Send(const std::string& method, std::string body, const std::string& content_type) {
    std::optional<Url> url = ParseUrl(address_.url + path_);
    if (!url) throw Error(ErrorCode::kInvalidArgument, "not a URL: " + VisibleLine(where_, 400));
    engine::HttpClient::Request request{method, std::move(*url), {}, false};
    const bool is_admin = path_.starts_with("/admin") && !address_.admin_key.empty();
    const std::string& key = is_admin ? address_.admin_key : address_.api_key;
    if (!key.empty()) request.fields.emplace_back("Authorization", "Bearer " + key);
    if (!body.empty()) request.fields.emplace_back("Content-Type", content_type);
    if (body.empty() && method != "GET") request.fields.emplace_back("Content-Length", "0");
    request.body = std::move(body);
    const auto fault = ExceptionOf<engine::TransientFault>([&] { head_ = client_.Send(request); });
    if (!fault) return head_.status;
    throw Error(ErrorCode::kIo, "no server at " + address_.url + " (" + Cause(*fault) +
                                    "): start one with `tandem serve`, or name another with --url");
  }

  std::string Body() {
    return Reading([&] { return client_.ReadWholeBody(kMaxAnswerBytes); });
  }

  size_t Read(std::span<char> buffer) {
    return Reading([&] { return client_.ReadBody(buffer); });
  }

  bool is_event_stream() const {
    return head_.Find("content-type").starts_with("text/event-stream");
  }

  Json CheckedJson() {
    const std::string text = Body();
    Json body = Json::parse(text, nullptr, false);
    if (head_.status < 200 || head_.status >= 300) throw ServerFault(where_, head_.status, body);
    if (!body.is_object()) ThrowNotTandem();
    return body;
  }

  [[noreturn]] void ThrowNotTandem() const {
    throw Error(ErrorCode::kDataLoss,
                where_ + " answers, but not as a tandem server does (status " +
                    std::to_string(head_.status) + "): give the URL of a tandem server with --url");
  }

  const std::string& where() const { return where_; }

 private:
  // The text of a fault without the address, which the message names anyway.
  std::string Cause(const Error& fault) const {
    std::string_view text = fault.what();
    for (const std::string& prefix : {where_ + ": ", address_.url + ": "}) {
      if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
    }
    return VisibleLine(text, 400);
  }

  template <class Action>
  auto Reading(const Action& action) -> decltype(action()) {
    std::optional<decltype(action())> result;
    const auto fault = ExceptionOf<engine::TransientFault>([&] { result = action(); });
    if (!fault) return *std::move(result);
    throw Error(ErrorCode::kIo, "the server at " + address_.url +
                                    " has gone in the middle of its answer (" + Cause(*fault) +
                                    ")");
  }

  const ServerAddress& address_;
  const std::string where_;
  const std::string path_;
  engine::HttpShared shared_;
  engine::HttpClient client_;
  engine::HttpHead head_;
};

ServerClient::ServerClient(ServerAddress address) : address_(std::move(address)) {}

Json ServerClient::Get(const std::string& path, std::stop_token stop) const {
  Exchange exchange(address_, path, std::move(stop));
  exchange.Send("GET", "", "");
  return exchange.CheckedJson();
}

Json ServerClient::Post(const std::string& path, const Json& body, std::stop_token stop) const {
  Exchange exchange(address_, path, std::move(stop));
  exchange.Send("POST", body.dump(-1, ' ', false, Json::error_handler_t::replace),
                "application/json");
  return exchange.CheckedJson();
}

std::string ServerClient::GetText(const std::string& path, std::stop_token stop) const {
  Exchange exchange(address_, path, std::move(stop));
  const int status = exchange.Send("GET", "", "");
  std::string text = exchange.Body();
  if (status == 200) return text;
  throw ServerFault(exchange.where(), status, Json::parse(text, nullptr, false));
}

Json ServerClient::Upload(const std::string& path, const std::filesystem::path& file,
                          const std::string& purpose, std::stop_token stop) const {
  const std::string content = engine::ReadWholeFile(file, kMaxUploadBytes);
  std::string boundary;
  do {
    boundary = RandomBoundary();
  } while (content.find(boundary) != std::string::npos);
  // The name is for people; quotes and line breaks would end the header.
  std::string name = VisibleLine(file.filename().string(), 200);
  for (char& c : name) {
    if (c == '"' || c == '\\') c = '_';
  }
  std::string body =
      "--" + boundary + "\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n" + purpose +
      "\r\n--" + boundary + "\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" +
      name + "\"\r\nContent-Type: application/octet-stream\r\n\r\n";
  body += content;
  body += "\r\n--" + boundary + "--\r\n";
  Exchange exchange(address_, path, std::move(stop));
  exchange.Send("POST", std::move(body), "multipart/form-data; boundary=" + boundary);
  return exchange.CheckedJson();
}

void ServerClient::Stream(const std::string& path, const Json* body, const OnEvent& on_event,
                          std::stop_token stop) const {
  Exchange exchange(address_, path, std::move(stop));
  const int status =
      body == nullptr
          ? exchange.Send("GET", "", "")
          : exchange.Send("POST", body->dump(-1, ' ', false, Json::error_handler_t::replace),
                          "application/json");
  if (status != 200) {
    throw ServerFault(exchange.where(), status, Json::parse(exchange.Body(), nullptr, false));
  }
  if (!exchange.is_event_stream()) exchange.ThrowNotTandem();
  SseParser parser(kMaxAnswerBytes);
  const auto take = [&](const SseParser::Event& event) {
    if (event.data == "[DONE]") return;
    const Json data = Json::parse(event.data, nullptr, false);
    if (data.is_discarded()) exchange.ThrowNotTandem();
    if (data.is_object() && data.contains("error") && !data["error"].is_null()) {
      throw ServerFault(exchange.where(), 0, data);
    }
    on_event(event.type, data);
  };
  std::array<char, 16384> buffer;
  while (const size_t n = exchange.Read(buffer)) parser.Feed({buffer.data(), n}, take);
}

}  // namespace tandem::server
