#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "engine/chat/chat_template.h"
#include "engine/model/model.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/ollama/ollama_model.h"
#include "server/wire/field_reader.h"
#include "server/wire/ollama/timestamp.h"
#include "server/wire/version.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::system_clock;

// Clients compare the version with the one that brought a feature. This one has all that we serve.
constexpr const char* kOllamaVersion = "0.12.11";
// The end of a model that is never unloaded. Ollama writes a far time too.
constexpr auto kFarFuture = std::chrono::hours(24 * 365 * 100);

std::string ModifiedAt(const ServedModel& model) {
  return OllamaTime(system_clock::time_point(std::chrono::seconds(model.created)));
}

// The members that both lists have.
Json ListedModel(const ModelRegistry::Entry& entry) {
  Json out;
  out["name"] = OllamaNameOf(entry.name);
  out["model"] = out["name"];
  out["size"] = entry.model->loaded().weight_bytes;
  out["digest"] = OllamaDigest(entry);
  out["details"] = OllamaDetails(*entry.model);
  return out;
}

// GET /api/tags
void OllamaTags(const HandlerContext& context, Request request, ResponseWriter writer) {
  Json body;
  body["models"] = Json::array();
  for (const auto& entry : context.models.List(ViewerOf(context, request))) {
    Json model = ListedModel(entry);
    model["modified_at"] = ModifiedAt(*entry.model);
    body["models"].push_back(std::move(model));
  }
  writer.Json(200, body.dump());
}

system_clock::time_point ExpiryOf(const HandlerContext& context, const ServedModel& model) {
  const auto now = system_clock::now();
  if (model.idle_unload_s == 0) return now + kFarFuture;
  const std::chrono::seconds whole(model.idle_unload_s);
  const auto idle_since = context.models.IdleSince(model);
  if (!idle_since) return now + whole;
  const auto idle = std::chrono::steady_clock::now() - *idle_since;
  return now + whole - std::chrono::duration_cast<system_clock::duration>(idle);
}

// GET /api/ps
void OllamaPs(const HandlerContext& context, Request request, ResponseWriter writer) {
  Json body;
  body["models"] = Json::array();
  for (const auto& entry : context.models.List(ViewerOf(context, request))) {
    if (entry.name != entry.model->id) continue;  // a second name
    Json model = ListedModel(entry);
    model["size"] = entry.model->memory.claim().total();
    model["expires_at"] = OllamaTime(ExpiryOf(context, *entry.model));
    model["size_vram"] = 0;  // all memory is the CPU's
    model["context_length"] = entry.model->loaded().max_model_len;
    body["models"].push_back(std::move(model));
  }
  writer.Json(200, body.dump());
}

Json ModelInfo(const ServedModel& model) {
  const engine::LoadedModel& loaded = model.loaded();
  const engine::ModelConfig& config = loaded.model->config();
  const std::string prefix = config.family + ".";
  Json out;
  out["general.architecture"] = config.family;
  out["general.basename"] = model.root;
  out["general.parameter_count"] = loaded.model->parameter_count();
  out[prefix + "context_length"] = loaded.max_model_len;
  out[prefix + "embedding_length"] = config.hidden_dim;
  out[prefix + "block_count"] = config.n_layers;
  out[prefix + "feed_forward_length"] = config.ffn_dim;
  out[prefix + "attention.head_count"] = config.attention.n_heads;
  out[prefix + "attention.head_count_kv"] = config.attention.n_kv_heads;
  out[prefix + "vocab_size"] = loaded.vocab_size;
  return out;
}

// The model's own defaults, in the form of Ollama's Modelfile.
std::string ParametersText(const ServedModel& model) {
  const engine::SamplingParams& sampling = model.loaded().default_sampling;
  const auto line = [](const char* name, double value) {
    char text[64];
    std::snprintf(text, sizeof(text), "%-30s %g\n", name, value);
    return std::string(text);
  };
  std::string out = line("temperature", sampling.temperature);
  out += line("top_p", sampling.top_p);
  if (sampling.top_k > 0) out += line("top_k", sampling.top_k);
  if (sampling.min_p > 0) out += line("min_p", sampling.min_p);
  if (sampling.repetition_penalty != 1) out += line("repeat_penalty", sampling.repetition_penalty);
  out += line("num_ctx", static_cast<double>(model.loaded().max_model_len));
  return out;
}

// POST /api/show
void OllamaShow(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJsonFromPages(request);
  const std::string name = ReadOllamaName(ParseJsonObject(request.body));
  const auto model = context.models.Look(ServedNameOf(context, name), ViewerOf(context, request));
  const auto& chat_template = model->loaded().chat_template;
  const std::string source = chat_template ? std::string(chat_template->source()) : std::string();
  Json body;
  body["modelfile"] = "# Served by Tandem " + VersionNumber() + "; it reads no Modelfiles.\nFROM " +
                      model->root + "\n";
  body["parameters"] = ParametersText(*model);
  body["template"] = source;
  body["details"] = OllamaDetails(*model);
  body["model_info"] = ModelInfo(*model);
  body["capabilities"] = OllamaCapabilities(context, *model);
  body["modified_at"] = ModifiedAt(*model);
  writer.Json(200, body.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// GET /api/version
void OllamaVersion(const HandlerContext&, Request, ResponseWriter writer) {
  Json body;
  body["version"] = kOllamaVersion;
  body["server"] = "tandem " + VersionNumber();
  writer.Json(200, body.dump());
}

}  // namespace

std::span<const Endpoint> OllamaModelEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {.method = "GET", .pattern = "/api/tags", .handle = OllamaTags, .api = ApiKind::kOllama},
      {.method = "GET", .pattern = "/api/ps", .handle = OllamaPs, .api = ApiKind::kOllama},
      {.method = "POST", .pattern = "/api/show", .handle = OllamaShow, .api = ApiKind::kOllama},
      {.method = "GET",
       .pattern = "/api/version",
       .handle = OllamaVersion,
       .access = Access::kOpen,
       .runs_on = RunsOn::kIoThread,
       .api = ApiKind::kOllama},
  };
  return kEndpoints;
}

}  // namespace tandem::server
