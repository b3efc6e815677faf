#include "server/respond/responses_output.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <variant>

#include "engine/base/unix_time.h"
#include "server/wire/json_text.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kIdPrefix = "resp_";

std::string Text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string StemOf(const Json& head) {
  const auto& id = head["id"].get_ref<const std::string&>();
  return id.starts_with(kIdPrefix) ? id.substr(kIdPrefix.size()) : id;
}

const char* NameOf(ResponsesOutput::Status status) {
  switch (status) {
    case ResponsesOutput::Status::kCompleted:
      return "completed";
    case ResponsesOutput::Status::kIncomplete:
      return "incomplete";
    case ResponsesOutput::Status::kFailed:
      return "failed";
    case ResponsesOutput::Status::kCancelled:
      return "cancelled";
  }
  return "failed";
}

Json UsageJson(const ReplyUsage& usage) {
  return {
      {"input_tokens", usage.prompt_tokens},
      {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
      {"output_tokens", usage.completion_tokens},
      {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
      {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

}  // namespace

ResponsesOutput::ResponsesOutput(Json head, std::map<std::string, ResponsesTool> tools, Emit emit)
    : head_(std::make_unique<Json>(std::move(head))),
      tools_(std::move(tools)),
      emit_(std::move(emit)),
      stem_(StemOf(*head_)) {
  (*head_)["status"] = "in_progress";
  (*head_)["completed_at"] = nullptr;
  (*head_)["error"] = nullptr;
  (*head_)["incomplete_details"] = nullptr;
  (*head_)["output"] = Json::array();
  (*head_)["usage"] = nullptr;
}

ResponsesOutput::~ResponsesOutput() = default;

std::string ResponsesOutput::BeginEvent(std::string_view type) {
  std::string out = R"({"type":)";
  AppendJsonString(out, type);
  out += R"(,"sequence_number":)";
  AppendJsonInt(out, sequence_number_++);
  return out;
}

std::string ResponsesOutput::BeginItemEvent(std::string_view type) {
  std::string out = BeginEvent(type);
  out += R"(,"item_id":)";
  AppendJsonString(out, id_);
  out += R"(,"output_index":)";
  AppendJsonInt(out, items_.size() - 1);
  if (open_ != Open::kCall) out += R"(,"content_index":0)";
  return out;
}

void ResponsesOutput::Send(std::string_view type, std::string data) {
  data.push_back('}');
  emit_(type, std::move(data));
}

void ResponsesOutput::SendResponse(std::string_view type, const Json& response) {
  if (!emit_) return;
  std::string data = BeginEvent(type);
  data += R"(,"response":)";
  data += Text(response);
  Send(type, std::move(data));
}

void ResponsesOutput::SendItem(std::string_view type, const Json& item) {
  if (!emit_) return;
  std::string data = BeginEvent(type);
  data += R"(,"output_index":)";
  AppendJsonInt(data, items_.size() - 1);
  data += R"(,"item":)";
  data += Text(item);
  Send(type, std::move(data));
}

void ResponsesOutput::SendDelta(std::string_view event, std::string_view delta,
                                std::string_view logprobs, bool has_logprobs) {
  if (!emit_) return;
  std::string data = BeginItemEvent(event);
  data += R"(,"delta":)";
  AppendJsonString(data, delta);
  if (has_logprobs) {
    data += R"(,"logprobs":[)";
    data += logprobs;
    data.push_back(']');
  }
  Send(event, std::move(data));
}

void ResponsesOutput::Begin() {
  SendResponse("response.created", *head_);
  SendResponse("response.in_progress", *head_);
}

void ResponsesOutput::Ping() {
  if (emit_) Send("keepalive", BeginEvent("keepalive"));
}

void ResponsesOutput::Add(const engine::AnswerEvent& part, std::string_view logprobs) {
  std::visit([&](const auto& alternative) { Show(alternative, logprobs); }, part);
}

// The part of the open item's content.
Json ResponsesOutput::Part(const std::string& text, const std::string& logprobs) const {
  if (open_ == Open::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
  Json part = {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}};
  part["logprobs"] = Json::parse("[" + logprobs + "]");
  return part;
}

void ResponsesOutput::OpenItem(Open kind, Json item) {
  Close(true);
  open_ = kind;
  id_ = item["id"].get<std::string>();
  text_.clear();
  logprobs_.clear();
  items_.push_back(std::move(item));
  SendItem("response.output_item.added", items_.back());
}

void ResponsesOutput::OpenContent(Open kind) {
  if (open_ == kind) return;
  Close(true);
  const std::string end = stem_ + "o" + std::to_string(items_.size());
  if (kind == Open::kReasoning) {
    OpenItem(kind, {{"id", "rs_" + end},
                    {"type", "reasoning"},
                    {"status", "in_progress"},
                    {"summary", Json::array()},
                    {"content", Json::array()},
                    {"encrypted_content", nullptr}});
  } else {
    OpenItem(kind, {{"id", "msg_" + end},
                    {"type", "message"},
                    {"status", "in_progress"},
                    {"role", "assistant"},
                    {"content", Json::array()}});
  }
  if (!emit_) return;
  std::string data = BeginItemEvent("response.content_part.added");
  data += R"(,"part":)";
  data += Text(Part("", ""));
  Send("response.content_part.added", std::move(data));
}

void ResponsesOutput::Show(const engine::ReasoningPart& part, std::string_view /*logprobs*/) {
  OpenContent(Open::kReasoning);
  text_ += part.text;
  SendDelta("response.reasoning_text.delta", part.text, {}, false);
}

void ResponsesOutput::Show(const engine::TextPart& part, std::string_view logprobs) {
  OpenContent(Open::kText);
  text_ += part.text;
  if (!logprobs_.empty() && !logprobs.empty()) logprobs_ += ',';
  logprobs_ += logprobs;
  SendDelta("response.output_text.delta", part.text, logprobs, true);
}

void ResponsesOutput::AddLogprobs(std::string_view logprobs) {
  if (open_ == Open::kText && !logprobs.empty()) Show(engine::TextPart{}, logprobs);
}

void ResponsesOutput::Show(const engine::CallBegin& part, std::string_view /*logprobs*/) {
  Close(true);
  const auto tool = tools_.find(part.name);
  is_custom_ = tool != tools_.end() && tool->second.is_custom;
  const std::string end = stem_ + "o" + std::to_string(items_.size());
  Json item = {{"id", (is_custom_ ? "ctc_" : "fc_") + end},
               {"type", is_custom_ ? "custom_tool_call" : "function_call"},
               {"status", "in_progress"},
               {"call_id", part.id},
               {"name", tool != tools_.end() ? tool->second.name : part.name}};
  if (tool != tools_.end() && !tool->second.name_space.empty()) {
    item["namespace"] = tool->second.name_space;
  }
  item[is_custom_ ? "input" : "arguments"] = "";
  OpenItem(Open::kCall, std::move(item));
}

void ResponsesOutput::Show(const engine::CallArguments& part, std::string_view /*logprobs*/) {
  text_ += part.text;
  SendDelta(is_custom_ ? "response.custom_tool_call_input.delta"
                       : "response.function_call_arguments.delta",
            part.text, {}, false);
}

void ResponsesOutput::Show(const engine::CallEnd& /*part*/, std::string_view /*logprobs*/) {
  Close(true);
}

void ResponsesOutput::Show(const engine::CallDropped& part, std::string_view logprobs) {
  if (open_ == Open::kCall && emit_) Close(false);
  if (open_ == Open::kCall) {
    items_.pop_back();
    open_ = Open::kNone;
  }
  if (!part.written.empty()) Show(engine::TextPart{part.written}, logprobs);
}

void ResponsesOutput::Close(bool is_complete) {
  if (open_ == Open::kNone) return;
  items_.back()["status"] = is_complete ? "completed" : "incomplete";
  open_ == Open::kCall ? CloseCall() : CloseContent();
  SendItem("response.output_item.done", items_.back());
  open_ = Open::kNone;
}

void ResponsesOutput::CloseContent() {
  const Json part = Part(text_, logprobs_);
  if (emit_) {
    const bool is_text = open_ == Open::kText;
    const std::string_view type =
        is_text ? "response.output_text.done" : "response.reasoning_text.done";
    std::string data = BeginItemEvent(type);
    data += R"(,"text":)";
    AppendJsonString(data, text_);
    if (is_text) data += R"(,"logprobs":)" + Text(part["logprobs"]);
    Send(type, std::move(data));
    data = BeginItemEvent("response.content_part.done");
    data += R"(,"part":)";
    data += Text(part);
    Send("response.content_part.done", std::move(data));
  }
  items_.back()["content"].push_back(part);
}

void ResponsesOutput::CloseCall() {
  Json& item = items_.back();
  item[is_custom_ ? "input" : "arguments"] = text_;
  if (!emit_) return;
  const std::string_view type =
      is_custom_ ? "response.custom_tool_call_input.done" : "response.function_call_arguments.done";
  std::string data = BeginItemEvent(type);
  if (!is_custom_) data += R"(,"name":)" + Text(item["name"]);
  data += is_custom_ ? R"(,"input":)" : R"(,"arguments":)";
  AppendJsonString(data, text_);
  Send(type, std::move(data));
}

Json ResponsesOutput::Finish(Status status, const ReplyUsage& usage, std::string_view error) {
  Close(status == Status::kCompleted);
  bool has_answer = status != Status::kCompleted;
  for (const Json& item : items_) has_answer = has_answer || item["type"] != "reasoning";
  if (!has_answer) {
    OpenContent(Open::kText);
    Close(true);
  }
  Json response = *head_;
  response["status"] = NameOf(status);
  if (status == Status::kCompleted) response["completed_at"] = UnixNow();
  if (status == Status::kIncomplete) {
    response["incomplete_details"] = {{"reason", "max_output_tokens"}};
  }
  if (status == Status::kFailed) {
    response["error"] = {{"code", "server_error"}, {"message", error}};
  }
  response["output"] = items_;
  response["usage"] = UsageJson(usage);
  return response;
}

void ResponsesOutput::End(const Json& response) {
  const auto& status = response["status"].get_ref<const std::string&>();
  SendResponse(status == "completed" ? "response.completed"
               : status == "failed"  ? "response.failed"
                                     : "response.incomplete",
               response);
}

namespace {

// The parts that an item came from. `name` is that of its tool. A call that is not complete has no
// end.
std::vector<engine::AnswerEvent> PartsOf(const Json& item, const std::string& name) {
  const auto& type = item["type"].get_ref<const std::string&>();
  if (type == "message" || type == "reasoning") {
    const std::string text = item["content"].empty() ? "" : item["content"][0]["text"];
    if (type == "reasoning") return {engine::ReasoningPart{text}};
    return {engine::TextPart{text}};
  }
  const std::string written = type == "custom_tool_call" ? item["input"] : item["arguments"];
  std::vector<engine::AnswerEvent> parts = {engine::CallBegin{.id = item["call_id"], .name = name}};
  if (!written.empty()) parts.emplace_back(engine::CallArguments{.text = written});
  if (item["status"] == "completed") parts.emplace_back(engine::CallEnd{});
  return parts;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> ReplayOf(const Json& response) {
  std::vector<std::pair<std::string, std::string>> events;
  const auto emit = [&](std::string_view type, std::string data) {
    events.emplace_back(type, std::move(data));
  };
  std::map<std::string, ResponsesTool> tools;
  // The names of the calls' tools repeat if there are namespaces, so the items' ids name them.
  for (const Json& item : response["output"]) {
    if (!item.contains("call_id")) continue;
    tools[item["id"]] = {item["name"], item.value("namespace", ""),
                         item["type"] == "custom_tool_call"};
  }
  ResponsesOutput output(response, std::move(tools), emit);
  output.Begin();
  for (const Json& item : response["output"]) {
    for (const engine::AnswerEvent& part : PartsOf(item, item["id"])) {
      std::string logprobs;
      if (item["type"] == "message" && !item["content"].empty()) {
        logprobs = Text(item["content"][0]["logprobs"]);
        logprobs = logprobs.substr(1, logprobs.size() - 2);
      }
      output.Add(part, logprobs);
    }
    output.Close(item["status"] == "completed");
  }
  output.End(response);
  return events;
}

}  // namespace tandem::server
