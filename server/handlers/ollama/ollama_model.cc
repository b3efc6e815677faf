#include "server/handlers/ollama/ollama_model.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/chat/answers/reasoning_splitter.h"
#include "engine/chat/chat_template.h"
#include "engine/io/sha256.h"
#include "engine/model/model.h"
#include "server/wire/field_reader.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kLatest = ":latest";

// "15.2M", "3.2B".
std::string ShortCount(int64_t count) {
  std::array<char, 32> text{};
  const auto number = static_cast<double>(count);
  if (count >= 1'000'000'000) {
    std::snprintf(text.data(), text.size(), "%.1fB", number / 1e9);
  } else {
    std::snprintf(text.data(), text.size(), "%.1fM", number / 1e6);
  }
  return text.data();
}

std::string UpperCase(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
  return text;
}

}  // namespace

std::string ReadOllamaName(const Json& body) {
  FieldReader reader(body);
  std::string name = reader.String("model").value_or("");
  if (name.empty()) name = reader.String("name").value_or("");
  if (name.empty()) throw MissingField("model");
  return name;
}

std::string ServedNameOf(const HandlerContext& context, std::string name) {
  if (context.models.Contains(name)) return name;
  if (name.ends_with(kLatest)) name.resize(name.size() - kLatest.size());
  for (const std::string_view hub : {"hf.co/", "huggingface.co/"}) {
    if (name.starts_with(hub) && !context.models.Contains(name)) name.erase(0, hub.size());
  }
  return name;
}

std::shared_ptr<const ServedModel> FindOllamaModel(const HandlerContext& context,
                                                   const Request& request,
                                                   const std::string& name) {
  return context.models.Find(ServedNameOf(context, name), ViewerOf(context, request));
}

std::string OllamaNameOf(const std::string& name) {
  return name.find(':') == std::string::npos ? name + std::string(kLatest) : name;
}

Json OllamaDetails(const ServedModel& model) {
  const engine::LoadedModel& loaded = model.loaded();
  const std::string& family = loaded.model->config().family;
  Json out;
  out["parent_model"] = model.parent.value_or("");
  out["format"] = loaded.format;
  out["family"] = family;
  out["families"] = Json::array({family});
  out["parameter_size"] = ShortCount(loaded.model->parameter_count());
  out["quantization_level"] = UpperCase(loaded.weights_dtype);
  return out;
}

std::string OllamaDigest(const ModelRegistry::Entry& entry) {
  const ServedModel& model = *entry.model;
  engine::Sha256 hash;
  hash.Update(entry.name + "\n");
  hash.Update(model.adapter ? model.fingerprint : model.loaded().fingerprint);
  return engine::ToHex(hash.Finish());
}

Json OllamaCapabilities(const HandlerContext& context, const ServedModel& model) {
  const engine::LoadedModel& loaded = model.loaded();
  Json out = Json::array({"completion"});
  const bool has_chat = loaded.tokenizer && loaded.chat_template;
  if (has_chat && context.tool_parser != "none") out.push_back("tools");
  if (has_chat && context.reasoning_parser != ReasoningParser::kNone &&
      loaded.chat_template->Mentions(engine::kThinkOpen)) {
    out.push_back("thinking");
  }
  if (loaded.infill) out.push_back("insert");
  out.push_back("embedding");
  return out;
}

}  // namespace tandem::server
