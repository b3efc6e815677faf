#include "server/wire/ollama/embed.h"

#include <nlohmann/json.hpp>

#include "server/wire/field_reader.h"
#include "server/wire/ollama/options.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostEmbedTexts = 2048;

std::vector<std::string> ReadEmbedTexts(FieldReader& reader, const std::string& param) {
  std::vector<std::string> texts;
  const Json* input = reader.Any(param);
  if (input == nullptr) return texts;
  if (input->is_string()) {
    if (!input->get_ref<const std::string&>().empty()) texts.push_back(input->get<std::string>());
    return texts;
  }
  if (!input->is_array()) throw WrongType(param, "a string or an array of strings", *input);
  if (input->size() > kMostEmbedTexts) {
    throw BadValue(param, param + " must have at most " + std::to_string(kMostEmbedTexts) +
                              " texts, got " + std::to_string(input->size()));
  }
  for (size_t i = 0; i < input->size(); ++i) {
    const std::string path = param + "[" + std::to_string(i) + "]";
    const Json& text = (*input)[i];
    if (!text.is_string()) throw WrongType(path, "a string", text);
    if (text.get_ref<const std::string&>().empty()) throw BadValue(path, path + " is empty");
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

}  // namespace

OllamaEmbedRequest ParseOllamaEmbed(const Json& body, OllamaEmbedRoute route, int64_t hidden_dim) {
  FieldReader reader(body);
  reader.Accept({"model", "options"});
  OllamaEmbedRequest request;
  if (route == OllamaEmbedRoute::kEmbed) {
    request.param = "input";
    request.texts = ReadEmbedTexts(reader, request.param);
    request.truncates = reader.Bool("truncate").value_or(true);
    request.dimensions = reader.Int("dimensions", 0, hidden_dim).value_or(0);
  } else {
    request.param = "prompt";
    const std::string text = reader.String("prompt").value_or("");
    if (!text.empty()) request.texts.push_back(text);
  }
  if (request.dimensions == 0) request.dimensions = hidden_dim;
  ReadKeepAlive(reader);
  request.ignored = reader.unknown();
  return request;
}

}  // namespace tandem::server
