#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/wire/responses/responses_tools.h"

namespace tandem::server {

// Finds the records that a request of the Responses API names. Both return nullopt for unknown ids,
// and for records that the caller may not see.
struct ResponsesLookup {
  // The input and output items of a stored response, in order.
  std::function<std::optional<nlohmann::ordered_json>(const std::string& response_id)> items_of;
  // A stored item.
  std::function<std::optional<nlohmann::ordered_json>(const std::string& item_id)> find_item;
};

// The items of a request as messages of a chat.
struct ResponsesInput {
  std::vector<nlohmann::ordered_json> messages;
  // The field that message i comes from, such as "input[3]".
  std::vector<std::string> paths;
  // The items before the answer in the form in which they are stored: message contents are parts,
  // references are resolved, items of hosted tools are left out.
  std::vector<nlohmann::ordered_json> items;
  std::vector<std::string> ignored;  // "input.web_search_call"
};

// Translates stored items and the request's `input`, after the system message of `instructions`.
// System and developer messages at the front become one message. Consecutive items of the assistant
// (reasoning, text, calls) become one message, as chat templates expect. Throws kInvalidArgument,
// and kUnsupported (unsupported_value) for images, audio and files.
ResponsesInput ReadResponsesInput(const std::optional<std::string>& instructions,
                                  const nlohmann::ordered_json& stored,
                                  const nlohmann::ordered_json& input, const ResponsesTools& tools,
                                  const ResponsesLookup& lookup);

// Gives each item without an `id` one that is derived from `stem` and its index.
void AssignItemIds(std::vector<nlohmann::ordered_json>& items, const std::string& stem);

}  // namespace tandem::server
