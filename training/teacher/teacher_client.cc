#include "training/teacher/teacher_client.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/base/url.h"
#include "engine/hub/http_client.h"
#include "engine/hub/redacted.h"
#include "engine/io/json.h"

namespace tandem::training {
namespace {

using nlohmann::ordered_json;
using namespace std::chrono_literals;

constexpr size_t kMaxAnswerBytes = size_t{512} << 20;
constexpr size_t kMaxErrorBytes = size_t{1} << 20;
constexpr size_t kShownBytes = 400;
// A server computes a whole request before it answers.
constexpr std::chrono::milliseconds kPatience = 600s;

// Origin and path without a final /v1.
std::string CheckedBase(const std::string& text) {
  const std::optional<Url> url = ParseUrl(text);
  if (!url || !url->user_info.empty() || url->target.find('?') != std::string::npos) {
    throw Error(ErrorCode::kInvalidArgument,
                "distill.teacher_url: must be an http or https URL without a key or a query");
  }
  std::string path = url->target;
  while (path.ends_with('/')) path.pop_back();
  if (path.ends_with("/v1")) path.resize(path.size() - 3);
  return url->Origin() + path;
}

// A key that could smuggle another header into the request is refused.
std::string CheckedKey(const std::string& key) {
  const bool is_clean =
      std::all_of(key.begin(), key.end(), [](char c) { return c > 0x20 && c < 0x7F; });
  if (!is_clean) {
    throw Error(ErrorCode::kInvalidArgument,
                "the teacher's key (TANDEM_TEACHER_KEY or distill.teacher_key_file) must be one "
                "word of printable characters");
  }
  return key;
}

engine::HubOptions OptionsFor(const TeacherOptions& options) {
  engine::HubOptions out;
  out.endpoint = CheckedBase(options.url);
  out.token = CheckedKey(options.key);
  out.idle_timeout = kPatience;
  out.answer_timeout = kPatience;
  out.max_attempts = options.max_attempts;
  out.first_backoff = options.first_backoff;
  return out;
}

// The message of an error's body; empty when there is none.
std::string MessageIn(const std::string& text) {
  const ordered_json body = ordered_json::parse(text, nullptr, false);
  if (!body.is_object()) return "";
  const auto error = body.find("error");
  const ordered_json& holder = error == body.end() ? body : *error;
  if (holder.is_string()) return holder.get<std::string>();
  if (!holder.is_object() || !holder.contains("message") || !holder["message"].is_string()) {
    return "";
  }
  return holder["message"].get<std::string>();
}

std::string Advice(int status) {
  if (status == 401 || status == 403) {
    return "; set the server's key in TANDEM_TEACHER_KEY or distill.teacher_key_file";
  }
  if (status == 404) return "; check distill.teacher_url and distill.teacher_model";
  return "";
}

// An endpoint that the server has not built (501) does not appear by waiting.
bool IsTransient(int status) {
  return status == 408 || status == 425 || status == 429 || (status >= 500 && status != 501);
}

bool IsGood(int status) { return status >= 200 && status < 300; }

}  // namespace

// Requests and their repetition.
class TeacherClient::Exchange {
 public:
  struct Answer {
    int status = 0;
    std::string body;
  };

  Exchange(const TeacherOptions& options, std::stop_token stop)
      : base_(CheckedBase(options.url)),
        shared_(OptionsFor(options), std::move(stop)),
        client_(shared_) {}

  std::string Where(const std::string& path) const { return base_ + path; }

  // The answer with status 2xx, or with one for which `accepts` returns true.
  template <class Accepts>
  Answer Send(const std::string& path, const std::string& body, const Accepts& accepts) {
    engine::Patience patience(shared_.options);
    patience.log_event = "teacher_retry";
    engine::Backoff backoff(shared_, patience);
    while (true) {
      Answer answer;
      const auto fault = ExceptionOf<engine::TransientFault>([&] {
        answer = SendOnce(path, body);
        if (!IsGood(answer.status) && !accepts(answer.status)) Refuse(path, answer);
      });
      if (!fault) return answer;
      backoff.Wait(*fault);
    }
  }

 private:
  Answer SendOnce(const std::string& path, const std::string& body) {
    std::optional<Url> url = ParseUrl(Where(path));
    if (!url) throw Error(ErrorCode::kInvalidArgument, "distill.teacher_url: is no URL");
    engine::HttpClient::Request request;
    request.method = body.empty() ? "GET" : "POST";
    request.url = std::move(*url);
    if (!body.empty()) request.fields.emplace_back("Content-Type", "application/json");
    request.body = body;
    head_ = client_.Send(request);
    return {head_.status,
            client_.ReadWholeBody(IsGood(head_.status) ? kMaxAnswerBytes : kMaxErrorBytes)};
  }

  // Throws TransientFault when a repetition may help.
  [[noreturn]] void Refuse(const std::string& path, const Answer& answer) {
    const std::string said =
        engine::Redacted(MessageIn(answer.body), {shared_.options.token}, "[key]");
    const std::string message = Where(path) + ": status " + std::to_string(answer.status) +
                                (said.empty() ? "" : " " + Quoted(said, kShownBytes)) +
                                Advice(answer.status);
    if (!IsTransient(answer.status)) throw Error(engine::CodeOfRefusal(answer.status), message);
    // Reads the wait that the server asks for.
    const auto fault = ExceptionOf<engine::TransientFault>(
        [&] { engine::ThrowHttpStatus(head_, *ParseUrl(Where(path)), shared_.options); });
    throw fault->WithMessage(message);
  }

  const std::string base_;
  engine::HttpShared shared_;
  engine::HttpClient client_;
  engine::HttpHead head_;
};

TeacherClient::TeacherClient(const TeacherOptions& options, std::stop_token stop)
    : exchange_(std::make_unique<Exchange>(options, std::move(stop))),
      model_(options.model),
      limits_(options.limits) {}

TeacherClient::~TeacherClient() = default;

const std::string& TeacherClient::model() {
  if (!model_.empty()) return model_;
  const std::string path = "/v1/models";
  const std::string where = exchange_->Where(path);
  const auto answer = exchange_->Send(path, "", [](int) { return false; });
  const ordered_json body = engine::ParseUntrustedJson(answer.body, where);
  std::vector<std::string> names;
  const auto data = body.is_object() ? body.find("data") : body.end();
  if (body.is_object() && data != body.end() && data->is_array()) {
    for (const ordered_json& model : *data) {
      if (model.is_object()) names.push_back(engine::JsonStringOr(model, "id", "", where));
    }
  }
  if (names.size() == 1 && !names.front().empty()) return model_ = names.front();
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + Quoted(name, 80);
  throw Error(ErrorCode::kInvalidArgument,
              "distill.teacher_model: must be given, since " + where + " lists " +
                  std::to_string(names.size()) + " models" +
                  (list.empty() ? "" : ": " + list.substr(0, kShownBytes)));
}

TeacherAnswer TeacherClient::Score(std::span<const TeacherPrompt> prompts) {
  const std::string path = "/v1/completions";
  const auto answer = exchange_->Send(path, TeacherRequest(model(), prompts, limits_.top_k),
                                      [](int) { return false; });
  return ParseTeacherAnswer(answer.body, prompts, limits_, exchange_->Where(path));
}

std::optional<std::string> TeacherClient::TextOf(std::span<const TokenId> tokens) {
  const std::string path = "/detokenize";
  const ordered_json body = {{"model", model()},
                             {"tokens", std::vector<TokenId>(tokens.begin(), tokens.end())}};
  // A server without this endpoint, or a model without a tokenizer.
  const auto answer = exchange_->Send(path, body.dump(), [](int status) {
    return status == 404 || status == 405 || status == 409 || status == 501;
  });
  if (!IsGood(answer.status)) return std::nullopt;
  const ordered_json json = engine::ParseUntrustedJson(answer.body, exchange_->Where(path));
  if (!json.is_object() || !json.contains("prompt") || !json["prompt"].is_string()) {
    return std::nullopt;
  }
  return json["prompt"].get<std::string>();
}

}  // namespace tandem::training
