#include "server/wire/tokenize_request.h"

#include <nlohmann/json.hpp>

#include "server/wire/field_reader.h"

namespace tandem::server {

using Json = nlohmann::ordered_json;

TokenizeRequest ParseTokenizeRequest(const Json& body, const ModelLimits& limits) {
  FieldReader reader(body);
  reader.Accept({"model"});
  TokenizeRequest request;
  request.prompt = reader.String("prompt");
  const auto content = reader.String("content");
  if (!request.prompt) request.prompt = content;
  const Json* messages = reader.Any("messages");
  if (request.prompt && messages != nullptr) {
    throw BadValue("messages", "messages and prompt exclude each other");
  }
  request.add_special_tokens = reader.Bool("add_special_tokens").value_or(true);
  if (messages != nullptr) {
    request.chat.emplace();
    request.chat->messages = ParseMessages(*messages, limits);
    RefuseTools(reader);
    ReadTemplateFields(reader, *request.chat);
  } else if (!request.prompt) {
    throw MissingField("prompt");
  }
  request.return_token_strs = reader.Bool("return_token_strs").value_or(false);
  request.ignored = reader.unknown();
  return request;
}

DetokenizeRequest ParseDetokenizeRequest(const Json& body, const ModelLimits& limits) {
  FieldReader reader(body);
  reader.Accept({"model"});
  const Json* tokens = reader.Array("tokens");
  if (tokens == nullptr) throw MissingField("tokens");
  DetokenizeRequest request;
  request.tokens = ReadTokenIds(*tokens, "tokens", limits.vocab_size);
  request.ignored = reader.unknown();
  return request;
}

RenderRequest ParseRenderRequest(const Json& body, const ModelLimits& limits) {
  FieldReader reader(body);
  reader.Accept({"model"});
  RenderRequest request;
  const Json* messages = reader.Any("messages");
  if (messages == nullptr) throw MissingField("messages");
  request.chat.messages = ParseMessages(*messages, limits);
  RefuseTools(reader);
  ReadTemplateFields(reader, request.chat);
  request.train = reader.Bool("train").value_or(false);
  request.ignored = reader.unknown();
  if (!request.train) return request;

  if (request.chat.continue_final_message || request.chat.messages->back()["role"] != "assistant") {
    throw BadValue("messages",
                   "train: true needs a last message of the assistant, and a whole one");
  }
  request.chat.add_generation_prompt = false;
  for (size_t i = 0; i < messages->size(); ++i) {
    FieldReader message((*messages)[i], "messages[" + std::to_string(i) + "]");
    const bool is_wanted = message.Int("weight", 0, 1).value_or(1) == 1;
    request.learned.push_back(is_wanted && (*request.chat.messages)[i]["role"] == "assistant");
  }
  return request;
}

}  // namespace tandem::server
