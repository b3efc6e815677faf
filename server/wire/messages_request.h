#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "server/wire/generation_fields.h"

namespace tandem::server {

enum class MessagesRoute { kMessages, kCountTokens };

// POST /v1/messages or /v1/messages/count_tokens, checked and translated.
struct MessagesRequest {
  std::shared_ptr<const nlohmann::ordered_json> chat;  // a body for ParseChatRequest
  std::vector<std::string> ignored;        // unknown top-level fields, for x-ignored-params
  std::vector<std::string> ignored_tools;  // tools that run on Anthropic's servers, by type
  std::optional<int64_t> thinking_budget;  // tokens of reasoning; unset: no bound
  std::string format_path;                 // the field that holds the schema; empty: none
  std::vector<size_t> tool_indexes;        // per tool of `chat`: its index in the request
};

// Checks every field under its own name, so that `chat` passes ParseChatRequest, apart from schemas
// and the continued message. The caller reads `model` first. `max_tokens` is a cap: more than the
// context is accepted. /count_tokens needs no `max_tokens`. `takes_late_system`: whether the
// model's template writes system messages after the first turn; unset: it does. Throws as
// FieldReader does.
MessagesRequest ParseMessagesRequest(const nlohmann::ordered_json& body, MessagesRoute route,
                                     const ModelLimits& limits,
                                     const std::function<bool()>& takes_late_system = {});

// An error of a later check of `chat`, or a field's path, with the names of the Messages request.
Error InMessagesTerms(const Error& error, const MessagesRequest& request);
std::string InMessagesTerms(std::string text, const MessagesRequest& request);

}  // namespace tandem::server
