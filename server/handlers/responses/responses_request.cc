#include "server/handlers/responses/responses_request.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/log.h"
#include "server/handlers/generate.h"
#include "server/responses/response_store.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

// A float as a person would write it: 0.7, not 0.699999988.
Json Plain(float value) {
  char text[32];
  snprintf(text, sizeof(text), "%g", static_cast<double>(value));
  return Json::parse(text);
}

Json EffectiveSettings(const Json& settings, const engine::SamplingParams& sampling) {
  Json out = settings;
  const std::pair<const char*, float> values[] = {
      {"temperature", sampling.temperature},
      {"top_p", sampling.top_p},
      {"presence_penalty", sampling.presence_penalty},
      {"frequency_penalty", sampling.frequency_penalty},
  };
  for (const auto& [name, value] : values) {
    if (out[name].is_null()) out[name] = Plain(value);
  }
  return out;
}

// The chat without its `n_dropped` oldest messages. System messages and the last message stay. The
// result of a dropped call would have no call, so it is dropped too.
Json WithoutOldest(const Json& chat, size_t n_dropped) {
  Json out = chat;
  Json messages = Json::array();
  const Json& all = chat["messages"];
  size_t dropped = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const Json& message = all[i];
    const bool is_system = message["role"] == "system" || message["role"] == "developer";
    const bool is_orphan = dropped > 0 && message["role"] == "tool" &&
                           (messages.empty() || messages.back()["role"] == "system");
    const bool stays = is_system || i + 1 == all.size() || (dropped >= n_dropped && !is_orphan);
    if (stays) {
      messages.push_back(message);
    } else {
      ++dropped;
    }
  }
  out["messages"] = std::move(messages);
  return out;
}

// The item of the array with this id.
std::optional<Json> FindIn(const Json& items, const std::string& id) {
  for (const Json& item : items) {
    if (item["id"].get_ref<const std::string&>() == id) return item;
  }
  return std::nullopt;
}

// The response that an item's id was derived from: "msg_" + stem + "o3" belongs to "resp_" + stem.
std::string ResponseOf(const std::string& item_id) {
  const size_t begin = item_id.find('_');
  const size_t end = item_id.find_last_of("oi");
  if (begin == std::string::npos || end == std::string::npos || end <= begin) return "";
  return "resp_" + item_id.substr(begin + 1, end - begin - 1);
}

ResponsesLookup LookupOf(const HandlerContext& context, const Request& request) {
  ResponsesLookup lookup;
  const Viewer viewer = ResponseViewerOf(request);
  lookup.items_of = [&context, viewer](const std::string& id) -> std::optional<Json> {
    const auto found = RequireResponses(context).Find(id, viewer);
    if (!found) return std::nullopt;
    if (!found->is_finished) {
      throw BadValue("previous_response_id",
                     "previous_response_id names a response that still "
                     "runs: wait for its end, or cancel it");
    }
    Json items = Json::parse(found->input);
    Json output = std::move(Json::parse(found->body)["output"]);
    for (Json& item : output) items.push_back(std::move(item));
    return items;
  };
  lookup.find_item = [&context, viewer](const std::string& id) -> std::optional<Json> {
    const auto found = RequireResponses(context).Find(ResponseOf(id), viewer);
    if (!found) return std::nullopt;
    auto item = FindIn(Json::parse(found->body)["output"], id);
    return item ? item : FindIn(Json::parse(found->input), id);
  };
  return lookup;
}

class Preparation {
 public:
  Preparation(const HandlerContext& context, const Request& request, PreparedResponse& out)
      : context_(context), request_(request), out_(out) {}

  void Run() {
    if (!out_.request.truncates || !out_.request.chat->contains("messages")) {
      out_.chat = Prepare(*out_.request.chat);
      return;
    }
    // Dropping more messages never makes the prompt longer, so half of the range is decided at
    // each step.
    size_t most = (*out_.request.chat)["messages"].size();
    size_t least = 0;
    std::optional<PreparedChat> best = TryWithout(0);
    if (!best) {
      best = TryWithout(most);
      if (!best) out_.chat = Prepare(WithoutOldest(*out_.request.chat, most));  // throws
      while (least + 1 < most) {
        const size_t middle = (least + most) / 2;
        if (auto shorter = TryWithout(middle)) {
          best = std::move(shorter);
          most = middle;
        } else {
          least = middle;
        }
      }
    }
    out_.chat = std::move(*best);
  }

 private:
  PreparedChat Prepare(const Json& chat) {
    return WithContext([&](const Error& error) { return InResponsesTerms(error, out_.request); },
                       [&] {
                         return PrepareChat(context_, *out_.model,
                                            ParseChatRequest(chat, LimitsOf(*out_.model)), "resp_",
                                            request_.id);
                       });
  }

  std::optional<PreparedChat> TryWithout(size_t n_dropped) {
    std::optional<PreparedChat> prepared;
    const std::optional<Error> error = ErrorOf([&] {
      prepared = Prepare(n_dropped == 0 ? *out_.request.chat
                                        : WithoutOldest(*out_.request.chat, n_dropped));
    });
    if (error && error->reason() != "context_length_exceeded") throw Error(*error);
    return prepared;
  }

  const HandlerContext& context_;
  const Request& request_;
  PreparedResponse& out_;
};

}  // namespace

PreparedResponse PrepareResponse(const HandlerContext& context, const Request& request) {
  RequireJson(request);
  const Json body = ParseJsonObject(request.body);
  PreparedResponse out;
  out.model =
      context.models.Find(FieldReader(body).RequiredString("model"), ViewerOf(context, request));
  out.request = ParseResponsesRequest(body, LimitsOf(*out.model), LookupOf(context, request));
  Preparation(context, request, out).Run();
  out.chat.shape.stream = out.request.stream;
  out.settings = std::make_shared<const Json>(
      EffectiveSettings(*out.request.settings, out.chat.requests.front().sampling));
  AssignItemIds(out.request.input.items, out.chat.shape.id.substr(std::string("resp_").size()));
  return out;
}

void AddIgnoredHeaders(const PreparedResponse& prepared, const Request& request,
                       const ResponseWriter& writer) {
  std::vector<std::string> ignored = prepared.chat.ignored;
  const auto& items = prepared.request.input.ignored;
  ignored.insert(ignored.end(), items.begin(), items.end());
  if (!ignored.empty()) writer.AddHeader("x-ignored-params", IgnoredParamsHeader(ignored));
  const auto& tools = prepared.request.tools.ignored;
  if (tools.empty()) return;
  const std::string names = IgnoredParamsHeader(tools);
  writer.AddHeader("x-ignored-tools", names);
  spdlog::info("hosted_tools_left_out request_id={} tools=\"{}\"", request.id, names);
}

}  // namespace tandem::server
