#include "server/handlers/responses/background_run.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/log.h"
#include "server/admission/admission.h"
#include "server/handlers/generate.h"
#include "server/http/detached_requests.h"
#include "server/respond/responses_renderer.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool IsLast(std::string_view event_type) {
  return event_type == "response.completed" || event_type == "response.incomplete" ||
         event_type == "response.failed";
}

// Passes the events of the renderer on, and stores the end.
class BackgroundRun : public std::enable_shared_from_this<BackgroundRun> {
 public:
  BackgroundRun(const HandlerContext& context, std::shared_ptr<BackgroundResponse> response)
      : background_(*context.background),
        store_(RequireResponses(context)),
        response_(std::move(response)) {}

  void OnEvent(std::string_view type, std::string data) {
    if (IsLast(type)) {
      last_event_ = std::move(data);
    } else {
      response_->Append(std::move(data));
    }
  }

  void OnStatus(const Json& body) {
    if (last_event_.empty()) return response_->SetBody(Dump(body));
    StoredResponse record;
    if (response_->BeginEnd(std::move(last_event_), Dump(body), &record)) End(std::move(record));
  }

  // The request has ended without its renderer. Ignored after OnStatus with the end.
  void OnAnswer(const Response& answer) {
    StoredResponse record;
    const Json body = Json::parse(answer.body, nullptr, false);
    const bool has_reason = body.is_object() && body.contains("error");
    const std::string reason = has_reason ? body["error"].value("message", "") : "";
    if (response_->BeginFailure(reason.empty() ? "internal error" : reason, &record)) {
      End(std::move(record));
    }
  }

  void Drop() { background_.Remove(response_->id()); }
  std::weak_ptr<ResponseChannel> channel;

 private:
  void End(StoredResponse record) {
    const bool is_posted = store_.Post([self = shared_from_this(), record = std::move(record)] {
      const bool is_kept = PutOrLog(self->store_, record);
      self->response_->EndNow();
      // A result that the disk has no room for stays in memory until the server stops.
      if (is_kept) self->background_.Remove(record.id);
      // Ends the generation of a cancelled response.
      if (const auto open = self->channel.lock()) open->Disconnect();
    });
    if (!is_posted) response_->EndNow();
  }

  BackgroundResponses& background_;
  ResponseStore& store_;
  const std::shared_ptr<BackgroundResponse> response_;
  std::string last_event_;
};

}  // namespace

StoredResponse RecordOf(const Request& request, const PreparedResponse& prepared) {
  StoredResponse record;
  record.id = prepared.chat.shape.id;
  record.owner = OwnerOf(request);
  record.created_at = prepared.chat.shape.created;
  record.input = Dump(Json(prepared.request.input.items));
  return record;
}

bool PutOrLog(ResponseStore& store, const StoredResponse& record) {
  const std::optional<Error> error = Attempt([&] { store.Put(record); });
  if (error) spdlog::error("response_not_stored id={} reason=\"{}\"", record.id, error->what());
  return !error;
}

std::shared_ptr<BackgroundResponse> RunInBackground(const HandlerContext& context,
                                                    const Request& request,
                                                    PreparedResponse prepared,
                                                    const ResponseWriter& writer) {
  ResponseStore& store = RequireResponses(context);
  StoredResponse record = RecordOf(request, prepared);
  record.is_finished = false;
  record.body = Dump(ResponsesHead(prepared.chat.shape, *prepared.settings));
  store.Put(record);
  const auto response = std::make_shared<BackgroundResponse>(record);
  context.background->Add(response);
  const auto run = std::make_shared<BackgroundRun>(context, response);
  const auto refused = Attempt([&] {
    const DetachedRequests::Detached detached = context.detached->Open(
        request.id, [run](const Response& answer) { run->OnAnswer(answer); });
    run->channel = detached.channel;
    const auto make_renderer = [&](ReplyShape shape, const ResponseWriter& to) {
      auto renderer = std::make_unique<ResponsesRenderer>(
          std::move(shape),
          ResponsesShape{
              .settings = prepared.settings,
              .tools = prepared.request.tools.by_chat_name,
              .on_event = [run](std::string_view type,
                                std::string data) { run->OnEvent(type, std::move(data)); },
              .on_status = [run](const Json& body) { run->OnStatus(body); }},
          to);
      response->SetCancel([channel = run->channel, cancel = renderer->MakeCancel()] {
        if (const auto open = channel.lock()) open->Post(cancel);
      });
      return renderer;
    };
    Generate(context, prepared.model, std::move(prepared.chat.requests),
             std::move(prepared.chat.shape), request, detached.writer, make_renderer);
  });
  if (!refused) return response;
  // The client gets the error; nothing of the response may stay.
  run->Drop();
  const auto error = Attempt([&] { store.Delete(record.id, std::nullopt); });
  if (error) spdlog::error("response_not_removed id={} reason=\"{}\"", record.id, error->what());
  if (refused->code() == ErrorCode::kUnavailable) context.admission->AddRetryAfter(writer);
  throw Error(*refused);
}

}  // namespace tandem::server
