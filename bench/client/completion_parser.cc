#include "bench/client/completion_parser.h"

#include <simdjson.h>

#include "engine/base/error.h"

namespace tandem::bench {
namespace {

using Element = simdjson::dom::element;

int64_t Integer(const Element& object, const char* key) {
  int64_t value = 0;
  return object[key].get(value) == simdjson::SUCCESS ? value : 0;
}

bool HasString(const Element& object, const char* key) {
  std::string_view text;
  return object[key].get(text) == simdjson::SUCCESS && !text.empty();
}

bool HasItems(const Element& object, const char* key) {
  simdjson::dom::array items;
  return object[key].get(items) == simdjson::SUCCESS && items.begin() != items.end();
}

bool HasText(const Element& message) {
  return HasString(message, "content") || HasString(message, "reasoning_content") ||
         HasString(message, "reasoning") || HasItems(message, "tool_calls");
}

// Servers use {"error":{"message":…}}, {"error":"…"} and {"message":…,"object":"error"}.
std::optional<std::string> ErrorMessageOf(const Element& body) {
  std::string_view text;
  Element error;
  if (body["error"].get(error) == simdjson::SUCCESS && !error.is_null()) {
    if (error.get(text) == simdjson::SUCCESS || error["message"].get(text) == simdjson::SUCCESS) {
      return std::string(text);
    }
    return "an error without a message";
  }
  if (body["object"].get(text) == simdjson::SUCCESS && text == "error") {
    return body["message"].get(text) == simdjson::SUCCESS ? std::string(text) : "an error";
  }
  return std::nullopt;
}

}  // namespace

struct CompletionParser::State {
  simdjson::dom::parser parser;
};

CompletionParser::CompletionParser() : state_(std::make_unique<State>()) {}
CompletionParser::~CompletionParser() = default;

CompletionPiece CompletionParser::Parse(std::string_view json) {
  Element body;
  if (state_->parser.parse(json.data(), json.size()).get(body) != simdjson::SUCCESS ||
      !body.is_object()) {
    throw Error(ErrorCode::kDataLoss,
                "the server's response contains something other than a JSON object");
  }
  CompletionPiece piece;
  piece.error = ErrorMessageOf(body);

  simdjson::dom::array choices;
  if (body["choices"].get(choices) == simdjson::SUCCESS) {
    for (const Element choice : choices) {
      Element message;
      piece.has_text |= HasString(choice, "text");
      if (choice["delta"].get(message) == simdjson::SUCCESS) piece.has_text |= HasText(message);
      if (choice["message"].get(message) == simdjson::SUCCESS) piece.has_text |= HasText(message);
      piece.has_finished |= HasString(choice, "finish_reason");
    }
  }

  Element usage;
  if (body["usage"].get(usage) == simdjson::SUCCESS && usage.is_object()) {
    piece.usage = {.prompt_tokens = Integer(usage, "prompt_tokens"),
                   .completion_tokens = Integer(usage, "completion_tokens")};
    Element details;
    if (usage["prompt_tokens_details"].get(details) == simdjson::SUCCESS && details.is_object()) {
      piece.usage->cached_tokens = Integer(details, "cached_tokens");
    }
    // Some servers report cached tokens in "timings" instead of `usage`.
    Element timings;
    if (piece.usage->cached_tokens == 0 && body["timings"].get(timings) == simdjson::SUCCESS &&
        timings.is_object()) {
      piece.usage->cached_tokens = Integer(timings, "cache_n");
    }
  }
  return piece;
}

}  // namespace tandem::bench
