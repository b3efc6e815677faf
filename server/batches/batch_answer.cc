#include "server/batches/batch_answer.h"

#include <nlohmann/json.hpp>

#include "server/batches/batch_id.h"
#include "server/wire/json_text.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

// An integer member; 0 if absent.
int64_t Number(const Json& object, const char* name) {
  if (!object.is_object()) return 0;
  const auto found = object.find(name);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

int64_t Detail(const Json& usage, const char* details, const char* name) {
  const auto found = usage.find(details);
  return found == usage.end() ? 0 : Number(*found, name);
}

std::string Opening(std::string_view custom_id) {
  std::string line = "{\"id\":\"" + NewBatchId("batch_req_") + "\",\"custom_id\":";
  AppendJsonString(line, custom_id);
  return line;
}

// JSON on one line.
std::string OneLine(const std::string& body) {
  if (body.find('\n') == std::string::npos) return body;
  return Json::parse(body).dump();
}

}  // namespace

bool IsTemporaryRefusal(const Response& response) {
  if (response.status == 429) return true;
  return response.status == 503 &&
         (response.error_code == "server_overloaded" || response.error_code == "model_loading" ||
          response.error_code == "shutting_down");
}

std::string AnswerLine(std::string_view custom_id, std::string_view request_id,
                       const Response& response) {
  std::string line = Opening(custom_id);
  line += ",\"response\":{\"status_code\":" + std::to_string(response.status) + ",\"request_id\":";
  AppendJsonString(line, request_id);
  line += ",\"body\":" + OneLine(response.body) + "},\"error\":null}";
  return line;
}

std::string ErrorLine(std::string_view custom_id, std::string_view code, std::string_view message) {
  std::string line = Opening(custom_id) + ",\"response\":null,\"error\":{\"code\":";
  AppendJsonString(line, code);
  line += ",\"message\":";
  AppendJsonString(line, message);
  return line + "}}";
}

// Keeps only `usage` while parsing: a vector's answer can be large.
BatchUsage UsageOf(std::string_view body) {
  const auto keep = [](int depth, Json::parse_event_t event, Json& parsed) {
    return depth != 1 || event != Json::parse_event_t::key || parsed == Json("usage");
  };
  const Json answer = Json::parse(body, keep, false);
  const auto found = answer.is_object() ? answer.find("usage") : answer.end();
  if (!answer.is_object() || found == answer.end() || !found->is_object()) return {};
  const Json& usage = *found;
  // Chat and completions name them otherwise than responses; an answer has one of each.
  return {Number(usage, "prompt_tokens") + Number(usage, "input_tokens"),
          Detail(usage, "prompt_tokens_details", "cached_tokens") +
              Detail(usage, "input_tokens_details", "cached_tokens"),
          Number(usage, "completion_tokens") + Number(usage, "output_tokens"),
          Detail(usage, "completion_tokens_details", "reasoning_tokens") +
              Detail(usage, "output_tokens_details", "reasoning_tokens")};
}

}  // namespace tandem::server
