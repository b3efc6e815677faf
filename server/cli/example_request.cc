#include "server/cli/example_request.h"

#include <nlohmann/json.hpp>

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

// Single quotes keep the shell from changing the text.
std::string ShellQuoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string(R"('\'')") : std::string(1, c);
  return out + "'";
}

}  // namespace

std::string ExampleRequest(const std::string& base_url, const ServedModel& model,
                           const std::string& key_variable) {
  const bool has_tokenizer = model.loaded().tokenizer != nullptr;
  const bool can_chat = has_tokenizer && model.loaded().chat_template != nullptr;
  Json body;
  body["model"] = model.id;
  body["stream"] = true;
  body["temperature"] = 0.7;
  if (can_chat) {
    body["messages"] =
        Json::array({{{"role", "user"}, {"content", "Tell me a story about a dog."}}});
  } else {
    body["max_tokens"] = 60;
    body["prompt"] = has_tokenizer ? Json("Once upon a time") : Json::array({1});
    if (!has_tokenizer) body["return_token_ids"] = true;
  }
  std::string command = "curl -N " + base_url;
  command += can_chat ? "/v1/chat/completions" : "/v1/completions";
  command += " -H 'Content-Type: application/json' \\\n";
  if (!key_variable.empty())
    command += "    -H \"Authorization: Bearer $" + key_variable + "\" \\\n";
  return command + "    -d " + ShellQuoted(body.dump());
}

std::string ExampleChat(const std::string& base_url, const ServedModel& model) {
  return "tandem run --url " + base_url + " " + ShellQuoted(model.id);
}

std::string ConsoleAddress(const std::string& base_url, const std::string& key) {
  if (key.empty()) return base_url + "/";
  std::string address = base_url + "/#key=";
  for (const char c : key) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
    if (is_plain) {
      address += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    address += {'%', "0123456789ABCDEF"[byte >> 4], "0123456789ABCDEF"[byte & 15]};
  }
  return address;
}

}  // namespace tandem::server
