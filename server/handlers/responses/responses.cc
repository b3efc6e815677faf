#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/log.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/generate.h"
#include "server/handlers/handlers.h"
#include "server/handlers/query_fields.h"
#include "server/handlers/responses/background_run.h"
#include "server/handlers/responses/response_follower.h"
#include "server/handlers/responses/responses_request.h"
#include "server/respond/error_response.h"
#include "server/respond/responses_output.h"
#include "server/respond/responses_renderer.h"
#include "server/responses/response_store.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

Error UnknownResponse(const std::string& id) {
  return Error(ErrorCode::kNotFound, "there is no response '" + id.substr(0, 80) + "'")
      .WithParam("id")
      .WithReason("response_not_found");
}

Error NotActive(const std::string& id, const std::string& why) {
  return Error(ErrorCode::kFailedPrecondition, "response '" + id + "' " + why)
      .WithParam("id")
      .WithReason("job_not_active");
}

bool IsTrue(const Request& request, const char* name) {
  const std::string* value = request.FindQuery(name);
  return value != nullptr && (*value == "true" || *value == "1");
}

// POST /v1/responses
void CreateResponse(const HandlerContext& context, Request request, ResponseWriter writer) {
  PreparedResponse prepared = PrepareResponse(context, request);
  AddIgnoredHeaders(prepared, request, writer);
  if (prepared.request.is_background) {
    const bool streams = prepared.request.stream;
    const auto running = RunInBackground(context, request, std::move(prepared), writer);
    if (streams) return ResponseFollower::Start(running, 0, std::move(writer));
    return writer.Json(200, running->body());
  }
  ResponsesShape response{.settings = prepared.settings,
                          .tools = prepared.request.tools.by_chat_name};
  if (prepared.request.store) {
    response.keep = [store = &RequireResponses(context), record = RecordOf(request, prepared)](
                        const Json& body, ResponsesShape::Done done) mutable {
      record.body = body.dump(-1, ' ', false, Json::error_handler_t::replace);
      const bool is_posted = store->Post(
          [store, record = std::move(record), done] { done(PutOrLog(*store, record)); });
      if (!is_posted) done(false);
    };
  }
  Generate(context, prepared.model, std::move(prepared.chat.requests),
           std::move(prepared.chat.shape), request, writer,
           [&](ReplyShape shape, const ResponseWriter& to) {
             return std::make_unique<ResponsesRenderer>(std::move(shape), std::move(response), to);
           });
}

// POST /v1/responses/input_tokens
void CountInputTokens(const HandlerContext& context, Request request, ResponseWriter writer) {
  const PreparedResponse prepared = PrepareResponse(context, request);
  AddIgnoredHeaders(prepared, request, writer);
  const Json body = {{"object", "response.input_tokens"},
                     {"input_tokens", prepared.chat.requests.front().prompt.size()}};
  writer.Json(200, body.dump());
}

// The events of a stored response, as a response that has ended.
std::shared_ptr<BackgroundResponse> Ended(StoredResponse record) {
  std::vector<std::string> events;
  if (record.events.empty()) {
    for (auto& [type, data] : ReplayOf(Json::parse(record.body))) events.push_back(std::move(data));
  }
  for (size_t at = 0; at < record.events.size();) {
    const size_t end = record.events.find('\n', at);
    events.push_back(record.events.substr(at, end - at));
    at = end + 1;
  }
  record.events.clear();
  return std::make_shared<BackgroundResponse>(std::move(record), std::move(events));
}

// GET /v1/responses/{id}
void GetResponse(const HandlerContext& context, Request request, ResponseWriter writer) {
  const std::string& id = request.path_params.at("id");
  const Viewer viewer = ResponseViewerOf(request);
  const bool streams = IsTrue(request, "stream");
  const int64_t after = QueryInt(request, "starting_after", -1, -1, int64_t{1} << 40);
  if (after >= 0 && !streams) {
    throw BadValue("starting_after", "starting_after needs stream=true");
  }
  std::shared_ptr<BackgroundResponse> response = context.background->Find(id, viewer);
  if (!response) {
    std::optional<StoredResponse> stored = RequireResponses(context).Find(id, viewer, streams);
    if (!stored) throw UnknownResponse(id);
    if (!streams) return writer.Json(200, std::move(stored->body));
    response = Ended(std::move(*stored));
  }
  if (!streams) return writer.Json(200, response->body());
  ResponseFollower::Start(std::move(response), static_cast<size_t>(after + 1), std::move(writer));
}

// GET /v1/responses/{id}/input_items
void ListInputItems(const HandlerContext& context, Request request, ResponseWriter writer) {
  const std::string& id = request.path_params.at("id");
  const auto limit = static_cast<size_t>(QueryInt(request, "limit", 20, 1, 100));
  const bool is_newest_first = QueryOrder(request, Order::kNewestFirst) == Order::kNewestFirst;
  const auto stored = RequireResponses(context).Find(id, ResponseViewerOf(request));
  if (!stored) throw UnknownResponse(id);
  auto items = Json::parse(stored->input).get<std::vector<Json>>();
  if (is_newest_first) std::reverse(items.begin(), items.end());
  size_t begin = 0;
  if (const std::string* after = request.FindQuery("after")) {
    while (begin < items.size() && items[begin]["id"].get_ref<const std::string&>() != *after)
      ++begin;
    begin = std::min(begin + 1, items.size());
  }
  const size_t end = std::min(items.size(), begin + limit);
  Json body = {{"object", "list"}, {"data", Json::array()}};
  for (size_t i = begin; i < end; ++i) body["data"].push_back(items[i]);
  body["first_id"] = begin == end ? Json() : items[begin]["id"];
  body["last_id"] = begin == end ? Json() : items[end - 1]["id"];
  body["has_more"] = end < items.size();
  writer.Json(200, body.dump());
}

// DELETE /v1/responses/{id}
void DeleteResponse(const HandlerContext& context, Request request, ResponseWriter writer) {
  const std::string& id = request.path_params.at("id");
  const Viewer viewer = ResponseViewerOf(request);
  const auto running = context.background->Find(id, viewer);
  if (running && !running->is_over()) {
    throw Error(ErrorCode::kAlreadyExists, "response '" + id + "' still runs: cancel it first")
        .WithParam("id")
        .WithReason("in_use");
  }
  if (!RequireResponses(context).Delete(id, viewer)) throw UnknownResponse(id);
  context.background->Remove(id);
  const Json body = {{"id", id}, {"object", "response"}, {"deleted", true}};
  writer.Json(200, body.dump());
}

// The answer to a cancellation of a response that has ended.
void SendCancelled(const std::string& id, std::string body, const std::string& request_id,
                   const ResponseWriter& writer) {
  const Json response = Json::parse(body);
  if (response["status"].get_ref<const std::string&>() == "cancelled")
    return writer.Json(200, std::move(body));
  const Error error = response.value("background", false)
                          ? NotActive(id, "has already ended")
                          : NotActive(id,
                                      "does not run in the background, so it cannot be "
                                      "cancelled: close its connection instead");
  writer.Send(ToResponse(MakeErrorReply(error, request_id)));
}

// POST /v1/responses/{id}/cancel
void CancelResponse(const HandlerContext& context, Request request, ResponseWriter writer) {
  const std::string& id = request.path_params.at("id");
  const Viewer viewer = ResponseViewerOf(request);
  if (const auto running = context.background->Find(id, viewer)) {
    running->OnEnd([running, writer, request_id = request.id] {
      SendCancelled(running->id(), running->body(), request_id, writer);
    });
    return running->Cancel();
  }
  std::optional<StoredResponse> stored = RequireResponses(context).Find(id, viewer);
  if (!stored) throw UnknownResponse(id);
  SendCancelled(id, std::move(stored->body), request.id, writer);
}

}  // namespace

std::span<const Endpoint> ResponsesEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"POST", "/v1/responses", CreateResponse, Access::kApiKey, RunsOn::kRequestPool, true},
      {"POST", "/v1/responses/input_tokens", CountInputTokens},
      {"GET", "/v1/responses/{id}", GetResponse},
      {"DELETE", "/v1/responses/{id}", DeleteResponse},
      {"GET", "/v1/responses/{id}/input_items", ListInputItems},
      {"POST", "/v1/responses/{id}/cancel", CancelResponse},
  };
  return kEndpoints;
}

}  // namespace tandem::server
