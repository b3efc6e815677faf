#include "server/pipeline/serving.h"

#include <array>
#include <chrono>
#include <nlohmann/json.hpp>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/base/url.h"
#include "engine/hub/http_client.h"
#include "engine/io/json.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr size_t kMaxAnswerBytes = 16 << 20;
constexpr std::chrono::milliseconds kPollInterval{100};
// The first token of a long prompt can take minutes on a busy server.
constexpr std::chrono::milliseconds kPatience{600'000};

engine::HubOptions ClientOptions(const std::string& server) {
  engine::HubOptions options;
  options.endpoint = server;
  options.idle_timeout = kPatience;
  options.answer_timeout = kPatience;
  return options;
}

// The model's path relative to model_root, as the admin API expects it.
std::string PathBelow(const std::string& model_root, const std::string& model) {
  std::error_code failed;
  const fs::path root = fs::weakly_canonical(fs::absolute(model_root), failed);
  const fs::path path = fs::weakly_canonical(fs::absolute(model), failed);
  const fs::path relative = path.lexically_relative(root);
  if (!relative.empty() && *relative.begin() != ".." && relative != ".") return relative.string();
  throw Error(ErrorCode::kInvalidArgument,
              "the model " + path.string() + " is not below model_root " + root.string() +
                  ": set model_root to the server's --model-root, and put the pipeline's directory "
                  "(--dir) or the model's `out` below it");
}

// A client of one server; requests and answers are JSON.
class Server {
 public:
  Server(const std::string& url, ServerKeys keys, std::stop_token stop)
      : url_(url),
        keys_(std::move(keys)),
        shared_(ClientOptions(url), std::move(stop)),
        client_(shared_) {}

  struct Answer {
    int status = 0;
    Json body = Json::object();

    std::string ErrorText() const {
      const auto error = body.find("error");
      if (error == body.end() || !error->is_object()) return "status " + std::to_string(status);
      return error->value("message", "status " + std::to_string(status));
    }
    std::string ErrorReason() const {
      const auto error = body.find("error");
      if (error == body.end() || !error->is_object() || !error->contains("code")) return "";
      return (*error)["code"].is_string() ? (*error)["code"].get<std::string>() : "";
    }
  };

  Answer Ask(const std::string& method, const std::string& path, const Json& body = {}) {
    Answer answer;
    answer.status = Send(method, path, body);
    const std::string text = Transported([&] { return client_.ReadWholeBody(kMaxAnswerBytes); });
    answer.body = Json::parse(text, nullptr, false);
    if (!answer.body.is_object()) {
      throw Error(ErrorCode::kDataLoss, url_ + path + ": status " + std::to_string(answer.status) +
                                            " with an answer that is not a JSON object: set "
                                            "`server` to the URL of a tandem server");
    }
    if (answer.status == 401 || answer.status == 403) {
      throw Error(ErrorCode::kPermissionDenied,
                  url_ + path + ": " + answer.ErrorText() +
                      "; set TANDEM_ADMIN_KEY for admin routes and TANDEM_API_KEY for the others");
    }
    return answer;
  }

  // Calls `on_event` for each event of the stream until it ends.
  void Stream(const std::string& path, const Json& body,
              const std::function<void(const Json& event)>& on_event) {
    const int status = Send("POST", path, body);
    std::string text;
    std::array<char, 4096> buffer;
    while (const size_t n = Transported([&] { return client_.ReadBody(buffer); })) {
      text.append(buffer.data(), n);
      if (text.size() > kMaxAnswerBytes) {
        throw Error(ErrorCode::kDataLoss,
                    url_ + path + ": the answer has an event of more than 16 MiB");
      }
      if (status == 200) TakeEvents(text, on_event);
    }
    if (status == 200) return;
    Answer answer{status, Json::parse(text, nullptr, false)};
    if (!answer.body.is_object()) answer.body = Json::object();
    throw Error(ErrorCode::kFailedPrecondition, url_ + path + ": " + answer.ErrorText());
  }

  void Sleep() { shared_.stop.Sleep(kPollInterval); }

 private:
  static void TakeEvents(std::string& text, const std::function<void(const Json&)>& on_event) {
    size_t end = 0;
    while ((end = text.find("\n\n")) != std::string::npos) {
      const std::string event = text.substr(0, end);
      text.erase(0, end + 2);
      if (!event.starts_with("data: ") || event == "data: [DONE]") continue;
      const Json json = Json::parse(event.substr(6), nullptr, false);
      if (json.is_object()) on_event(json);
    }
  }

  int Send(const std::string& method, const std::string& path, const Json& body) {
    const auto url = ParseUrl(url_ + path);
    if (!url) throw Error(ErrorCode::kInvalidArgument, "server: " + Quoted(url_) + " is not a URL");
    engine::HttpClient::Request request{method, *url, {}, false};
    const std::string& key = path.starts_with("/admin") ? keys_.admin : keys_.api;
    if (!key.empty()) request.fields.emplace_back("Authorization", "Bearer " + key);
    if (!body.is_null()) {
      request.fields.emplace_back("Content-Type", "application/json");
      request.body = body.dump(-1, ' ', false, Json::error_handler_t::replace);
    }
    return Transported([&] { return client_.Send(request).status; });
  }

  template <class Do>
  auto Transported(Do&& what) -> decltype(what()) {
    std::optional<decltype(what())> result;
    const auto fault = ExceptionOf<engine::TransientFault>([&] { result = what(); });
    if (!fault) return *std::move(result);
    throw Error(ErrorCode::kUnavailable,
                std::string(fault->what()) +
                    ": start a server there (tandem serve), or set `server` to the URL of a "
                    "running one");
  }

  const std::string url_;
  const ServerKeys keys_;
  engine::HttpShared shared_;
  engine::HttpClient client_;
};

// Strips trailing slashes: "http://host:1234/" is the same server.
std::string ServerUrl(const Json& order) {
  std::string url = order.value("server", "");
  while (url.ends_with('/')) url.pop_back();
  if (!ParseUrl(url)) {
    throw Error(ErrorCode::kInvalidArgument, "server: " + Quoted(url) + " is not a URL");
  }
  return url;
}

// "loaded", "loading", …; empty: the server does not have the model.
std::string StateOf(Server& server, const std::string& id) {
  const Server::Answer answer = server.Ask("GET", "/admin/models");
  if (answer.status != 200) {
    throw Error(ErrorCode::kFailedPrecondition, "GET /admin/models: " + answer.ErrorText());
  }
  std::string state;
  for (const Json& model : answer.body.value("data", Json::array())) {
    // The list can hold a failed load next to a loaded model of the same id.
    if (model.value("id", "") == id && (state.empty() || model.value("state", "") == "loaded")) {
      state = model.value("state", "");
    }
  }
  return state == "failed" ? "" : state;
}

[[noreturn]] void ThrowRefusal(const std::string& what, const Server::Answer& answer) {
  std::string message = what + ": " + answer.ErrorText();
  const std::string reason = answer.ErrorReason();
  if (reason == "path_not_found" || reason == "invalid_path") {
    message +=
        "; paths are relative to the server's --model-root: start it with a --model-root at or "
        "above the model's directory, and set model_root to the same directory";
  } else if (reason == "already_exists" || reason == "in_use") {
    message += "; set another id, or replace: true";
  }
  throw Error(answer.status < 500 ? ErrorCode::kInvalidArgument : ErrorCode::kUnavailable, message);
}

class Loader {
 public:
  Loader(const Json& order, const ServerKeys& keys, bool is_ours, std::stop_token stop,
         const std::function<void(const std::string&)>& say)
      : order_(order),
        is_ours_(is_ours),
        say_(say),
        id_(order.value("id", "")),
        server_(ServerUrl(order), keys, std::move(stop)) {}

  ServedModelReply Go() {
    const std::string path = PathBelow(order_.value("model_root", "."), order_.value("model", ""));
    MakeRoom();
    Json body = {{"path", path}, {"id", id_}};
    if (const std::string dtype = order_.value("dtype", ""); !dtype.empty()) body["dtype"] = dtype;
    if (const int64_t n = order_.value("max_model_len", 0); n > 0) body["max_model_len"] = n;
    Finish(server_.Ask("POST", "/admin/models/load", body), "loading " + path);
    say_("the server has loaded " + path + " as " + id_);
    ServedModelReply reply{id_, ""};
    if (const std::string alias = order_.value("alias", ""); !alias.empty()) SetAlias(alias);
    if (const std::string chat = order_.value("chat", ""); !chat.empty()) reply.text = Chat(chat);
    return reply;
  }

 private:
  // Unloads an earlier model of this id if it is ours or may be replaced.
  void MakeRoom() {
    std::string state;
    while ((state = StateOf(server_, id_)) == "loading" || state == "unloading") server_.Sleep();
    if (state.empty() || (!is_ours_ && !order_.value("replace", false))) return;
    Finish(server_.Ask("POST", "/admin/models/unload", {{"id", id_}}), "unloading " + id_);
    say_("the server has unloaded the previous " + id_);
  }

  // Waits until the server's job ends.
  void Finish(Server::Answer answer, const std::string& what) {
    if (answer.status != 202 && answer.status != 200) ThrowRefusal(what, answer);
    const std::string job = answer.body.value("id", "");
    while (true) {
      const std::string status = answer.body.value("status", "");
      if (status == "succeeded") return;
      if (status != "queued" && status != "running") {
        throw Error(ErrorCode::kFailedPrecondition, what + ": " + answer.ErrorText());
      }
      server_.Sleep();
      answer = server_.Ask("GET", "/admin/jobs/" + PercentEncode(job));
      if (answer.status != 200) ThrowRefusal(what, answer);
    }
  }

  void SetAlias(const std::string& alias) {
    const Server::Answer answer =
        server_.Ask("PUT", "/admin/aliases/" + PercentEncode(alias), {{"target", id_}});
    if (answer.status != 200) ThrowRefusal("alias " + alias, answer);
    say_(alias + " is an alias of " + id_);
  }

  std::string Chat(const std::string& prompt) {
    const Json body = {{"model", id_},
                       {"stream", true},
                       {"temperature", 0},
                       {"max_tokens", order_.value("max_tokens", 64)},
                       {"messages", Json::array({{{"role", "user"}, {"content", prompt}}})}};
    std::string text;
    bool is_finished = false;
    server_.Stream("/v1/chat/completions", body, [&](const Json& event) {
      if (event.contains("error")) {
        throw Error(ErrorCode::kFailedPrecondition,
                    "chat: " + Server::Answer{500, event}.ErrorText());
      }
      for (const Json& choice : event.value("choices", Json::array())) {
        const Json delta = choice.value("delta", Json::object());
        if (delta.contains("content") && delta["content"].is_string()) {
          text += delta["content"].get<std::string>();
        }
        is_finished = is_finished ||
                      (choice.contains("finish_reason") && choice["finish_reason"].is_string());
      }
    });
    if (!is_finished) throw Error(ErrorCode::kDataLoss, "chat: the stream ended before the answer");
    say_("the model answers " + Json(text).dump(-1, ' ', false, Json::error_handler_t::replace));
    return text;
  }

  const Json& order_;
  const bool is_ours_;
  const std::function<void(const std::string&)>& say_;
  const std::string id_;
  Server server_;
};

}  // namespace

ServedModelReply LoadIntoServer(const std::string& order_json, const ServerKeys& keys, bool is_ours,
                                std::stop_token stop,
                                const std::function<void(const std::string& line)>& say) {
  const Json order = engine::ParseUntrustedJson(order_json, "the order of a load");
  ServedModelReply reply;
  const auto error = ExceptionOf<Json::exception>(
      [&] { reply = Loader(order, keys, is_ours, std::move(stop), say).Go(); });
  if (!error) return reply;
  throw Error(ErrorCode::kDataLoss,
              std::string("the server's answer does not have the form of a tandem server's: ") +
                  error->what());
}

bool IsServed(const std::string& order_json, const ServerKeys& keys, std::stop_token stop) {
  const Json order = engine::ParseUntrustedJson(order_json, "the order of a load");
  std::string state;
  const auto unavailable = ErrorOf({ErrorCode::kUnavailable}, [&] {
    Server server(ServerUrl(order), keys, std::move(stop));
    state = StateOf(server, order.value("id", ""));
  });
  return !unavailable && state == "loaded";
}

}  // namespace tandem::server
