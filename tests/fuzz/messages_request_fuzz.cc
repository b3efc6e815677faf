// A body of Anthropic's Messages API. The reader throws only Error, which becomes a 4xx in both
// shapes. An accepted body becomes a chat body without unknown fields. Errors of ParseChatRequest
// then name fields of the Messages request.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "engine/base/error.h"
#include "server/wire/chat_request.h"
#include "server/wire/error_body.h"
#include "server/wire/field_reader.h"
#include "server/wire/messages_request.h"

namespace tandem::server {
namespace {

void Require(bool truth) {
  if (!truth) std::abort();
}

void RequireGoodReply(const Error& error) {
  const ErrorReply reply = InAnthropicShape(MakeErrorReply(error, "req_fuzz"), "req_fuzz");
  Require(reply.status >= 400 && reply.status < 500);
  Require(reply.body.size() <= 8192);
  // Parsing also checks the UTF-8.
  const auto body = nlohmann::json::parse(reply.body, nullptr, false);
  Require(body.is_object() && body.size() == 3 && body["type"] == "error");
  Require(body["error"]["type"].is_string() && body["error"]["message"].is_string());
}

void Read(MessagesRoute route, std::string_view text) {
  const ModelLimits limits{.max_model_len = 512, .vocab_size = 1000};
  const MessagesRequest request = ParseMessagesRequest(ParseJsonObject(text), route, limits);
  Require(request.chat->at("messages").is_array());
  Require(route == MessagesRoute::kCountTokens || request.chat->contains("max_tokens"));
  const size_t n_tools = request.chat->contains("tools") ? request.chat->at("tools").size() : 0;
  Require(request.tool_indexes.size() == n_tools);
  for (const auto* names : {&request.ignored, &request.ignored_tools}) {
    const std::string header = IgnoredParamsHeader(*names);
    Require(header.size() <= 512);
    for (const char c : header) Require(c >= 0x20 && c < 0x7f);
  }
  try {
    Require(ParseChatRequest(*request.chat, limits).ignored.empty());
  } catch (const Error& error) {
    const Error renamed = InMessagesTerms(error, request);
    Require(!renamed.param().starts_with("response_format"));
    Require(renamed.param().find("].function") == std::string::npos);
    RequireGoodReply(renamed);
  }
}

}  // namespace
}  // namespace tandem::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  const auto route =
      data[0] == 'c' ? server::MessagesRoute::kCountTokens : server::MessagesRoute::kMessages;
  try {
    server::Read(route, text);
  } catch (const Error& error) {
    server::RequireGoodReply(error);
  }
  return 0;
}
