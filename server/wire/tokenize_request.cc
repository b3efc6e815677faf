#include "server/wire/tokenize_request.h"

#include <nlohmann/json.hpp>

#include "server/wire/chat_request.h"
#include "server/wire/field_reader.h"

namespace tandem::server {

using Json = nlohmann::ordered_json;

TokenizeRequest ParseTokenizeRequest(const Json& body) {
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
  if (messages != nullptr) {
    request.messages = ParseMessages(*messages);
  } else if (!request.prompt) {
    throw MissingField("prompt");
  }
  request.add_special_tokens = reader.Bool("add_special_tokens").value_or(true);
  const auto add_prompt = reader.Bool("add_generation_prompt");
  request.continue_final_message = reader.Bool("continue_final_message").value_or(false);
  request.add_generation_prompt = add_prompt.value_or(!request.continue_final_message);
  if (const Json* tools = reader.Array("tools"); tools != nullptr && !tools->empty()) {
    throw UnsupportedField("tools", "tools are not served by this version yet");
  }
  request.return_token_strs = reader.Bool("return_token_strs").value_or(false);
  request.ignored = reader.unknown();
  return request;
}

std::vector<TokenId> ParseDetokenizeRequest(const Json& body, int64_t vocab_size) {
  FieldReader reader(body);
  const Json* tokens = reader.Array("tokens");
  if (tokens == nullptr) throw MissingField("tokens");
  return ReadTokenIds(*tokens, "tokens", vocab_size);
}

}  // namespace tandem::server
