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
  request.plain_prompt = ReadPlainPromptOptions(reader);
  // llama-server's name.
  if (const auto add = reader.Bool("add_special")) request.plain_prompt.add_special_tokens = *add;
  if (messages != nullptr) {
    request.chat.emplace();
    request.chat->messages = ParseMessages(*messages, limits);
    request.chat->tools = ReadToolFields(reader);
    ReadTemplateFields(reader, *request.chat);
  } else if (!request.prompt) {
    throw MissingField("prompt");
  }
  request.return_token_strs = reader.Bool("return_token_strs").value_or(false);
  request.with_pieces = reader.Bool("with_pieces").value_or(false);
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
  const std::optional<bool> train = reader.Bool("train");
  if (!train.value_or(false)) {
    request.chat.messages = ParseMessages(*messages, limits);
    request.chat.tools = ReadToolFields(reader);
    ReadTemplateFields(reader, request.chat);
    request.ignored = reader.unknown();
    return request;
  }

  request.train = true;
  CheckMessageCount(*messages);
  request.chat.messages = std::make_shared<const Json>(*messages);
  RefuseTools(reader);
  reader.Bool("add_generation_prompt");
  if (reader.Bool("continue_final_message").value_or(false)) {
    throw BadValue("continue_final_message",
                   "train: true and continue_final_message exclude each other: training needs a "
                   "complete last message");
  }
  request.chat.add_generation_prompt = false;
  request.chat.template_kwargs = ReadTemplateKwargs(reader);
  request.ignored = reader.unknown();
  return request;
}

}  // namespace tandem::server
