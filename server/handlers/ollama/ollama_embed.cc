#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/handlers/embedding_input.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/generate.h"
#include "server/handlers/ollama/ollama_model.h"
#include "server/handlers/prompt.h"
#include "server/wire/embedding_vector.h"
#include "server/wire/json_text.h"
#include "server/wire/ollama/embed.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

// The body while the embeddings arrive.
struct OllamaVectors {
  std::string model;
  bool is_legacy = false;
  int64_t dimensions = 0;
  int64_t n_tokens = 0;
  std::chrono::steady_clock::time_point received;
  std::vector<std::string> vectors;  // by input

  void Take(size_t input, std::span<const float> values) {
    AppendVector(vectors[input], UnitVector(values, dimensions), EmbeddingEncoding::kFloat);
  }
  std::string Text() const;
};

std::string OllamaVectors::Text() const {
  std::string out;
  if (is_legacy) {
    out = R"({"embedding":)" + (vectors.empty() ? "[]" : vectors.front()) + "}";
    return out;
  }
  out = R"({"model":)";
  AppendJsonString(out, model);
  out += R"(,"embeddings":[)";
  for (size_t i = 0; i < vectors.size(); ++i) {
    if (i > 0) out.push_back(',');
    out += vectors[i];
  }
  const auto duration = std::chrono::steady_clock::now() - received;
  out += R"(],"total_duration":)";
  AppendJsonInt(out, std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count());
  out += R"(,"load_duration":0,"prompt_eval_count":)";
  AppendJsonInt(out, n_tokens);
  out.push_back('}');
  return out;
}

// The tokens of a text, cut behind the context if the client allows it. The tokens that the
// tokenizer puts behind a text stay.
std::vector<TokenId> EncodeOllamaText(const ServedModel& model, const std::string& text,
                                      bool truncates, const std::string& param) {
  if (!truncates) return EncodeInput(model, text, param);
  std::vector<TokenId> ids = EncodeText(model, text, PlainPromptOptions());
  const std::vector<TokenId>& suffix = model.loaded().text_suffix;
  const int64_t most = model.loaded().max_model_len - std::ssize(suffix);
  if (std::ssize(ids) > most) ids.resize(static_cast<size_t>(most));
  ids.insert(ids.end(), suffix.begin(), suffix.end());
  if (ids.empty()) throw BadValue(param, param + " has no tokens");
  return ids;
}

void AnswerEmbed(const HandlerContext& context, OllamaEmbedRoute route, const Request& request,
                 const ResponseWriter& writer) {
  RequireJsonFromPages(request);
  const Json json = ParseJsonObject(request.body);
  const std::string name = ReadOllamaName(json);
  const auto model = FindOllamaModel(context, request, name);
  const OllamaEmbedRequest asked = ParseOllamaEmbed(json, route, model->loaded().hidden_dim);
  if (!asked.ignored.empty()) {
    writer.AddHeader("x-ignored-params", IgnoredParamsHeader(asked.ignored));
  }
  const auto body = std::make_shared<OllamaVectors>();
  body->model = name;
  body->is_legacy = route == OllamaEmbedRoute::kEmbeddings;
  body->dimensions = asked.dimensions;
  body->received = request.received;
  // Without a text the request only loads the model.
  if (asked.texts.empty()) return writer.Json(200, body->Text());

  const engine::Pooling pooling = PoolingOf(*model, std::nullopt);
  body->vectors.resize(asked.texts.size());
  std::vector<engine::GenerationRequest> requests;
  for (const std::string& text : asked.texts) {
    requests.push_back(
        MakePooledRequest(*model, EncodeOllamaText(*model, text, asked.truncates, asked.param),
                          pooling, /*priority=*/0));
    body->n_tokens += std::ssize(requests.back().prompt);
  }
  VectorAnswer answer;
  answer.n_prompts = requests.size();
  answer.take = [body](size_t input, const std::vector<float>& values) {
    body->Take(input, values);
  };
  answer.body = [body] { return body->Text(); };
  Embed(context, model, std::move(requests), std::move(answer), request, writer);
}

// POST /api/embed
void OllamaEmbed(const HandlerContext& context, Request request, ResponseWriter writer) {
  AnswerEmbed(context, OllamaEmbedRoute::kEmbed, request, writer);
}

// POST /api/embeddings
void OllamaEmbeddings(const HandlerContext& context, Request request, ResponseWriter writer) {
  AnswerEmbed(context, OllamaEmbedRoute::kEmbeddings, request, writer);
}

}  // namespace

std::span<const Endpoint> OllamaEmbedEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {.method = "POST",
       .pattern = "/api/embed",
       .handle = OllamaEmbed,
       .is_heavy = true,
       .api = ApiKind::kOllama},
      {.method = "POST",
       .pattern = "/api/embeddings",
       .handle = OllamaEmbeddings,
       .is_heavy = true,
       .api = ApiKind::kOllama},
  };
  return kEndpoints;
}

}  // namespace tandem::server
