#include <nlohmann/json.hpp>

#include "server/handlers/embedding_input.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/generate.h"
#include "server/handlers/handlers.h"
#include "server/wire/embedding_request.h"
#include "server/wire/embedding_vector.h"
#include "server/wire/json_text.h"

namespace tandem::server {
namespace {

// The body while the embeddings arrive. Each one becomes text at once, so the last one has little
// left to do.
struct EmbeddingBody {
  std::string model;
  EmbeddingEncoding encoding = EmbeddingEncoding::kFloat;
  int64_t dimensions = 0;
  int64_t n_tokens = 0;
  std::vector<std::string> vectors;  // by input

  void Take(size_t input, std::span<const float> values) {
    AppendVector(vectors[input], UnitVector(values, dimensions), encoding);
  }
  std::string Text() const;
};

std::string EmbeddingBody::Text() const {
  size_t n_bytes = 256;
  for (const std::string& vector : vectors) n_bytes += vector.size() + 64;
  std::string out;
  out.reserve(n_bytes);
  out += R"({"object":"list","data":[)";
  for (size_t i = 0; i < vectors.size(); ++i) {
    if (i > 0) out.push_back(',');
    out += R"({"object":"embedding","index":)";
    AppendJsonInt(out, i);
    out += R"(,"embedding":)";
    out += vectors[i];
    out.push_back('}');
  }
  out += R"(],"model":)";
  AppendJsonString(out, model);
  out += R"(,"usage":{"prompt_tokens":)";
  AppendJsonInt(out, n_tokens);
  out += R"(,"total_tokens":)";
  AppendJsonInt(out, n_tokens);
  out += "}}";
  return out;
}

// POST /v1/embeddings
void Embeddings(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const nlohmann::ordered_json json = ParseJsonObject(request.body);
  const auto model =
      context.models.Find(FieldReader(json).RequiredString("model"), ViewerOf(context, request));
  const engine::LoadedModel& loaded = model->loaded();
  const EmbeddingRequest embedding =
      ParseEmbeddingRequest(json, {loaded.vocab_size, loaded.hidden_dim});
  const engine::Pooling pooling = PoolingOf(*model, embedding.pooling);

  const auto body = std::make_shared<EmbeddingBody>();
  body->model = model->id;
  body->encoding = embedding.encoding;
  body->dimensions = embedding.dimensions;
  body->vectors.resize(embedding.inputs.size());
  std::vector<engine::GenerationRequest> requests;
  for (const Prompt& input : embedding.inputs) {
    requests.push_back(MakePooledRequest(*model, EncodeInput(*model, input, "input"), pooling,
                                         embedding.priority));
    body->n_tokens += std::ssize(requests.back().prompt);
  }

  if (!embedding.ignored.empty()) {
    writer.AddHeader("x-ignored-params", IgnoredParamsHeader(embedding.ignored));
  }
  VectorAnswer answer;
  answer.n_prompts = requests.size();
  answer.take = [body](size_t input, const std::vector<float>& values) {
    body->Take(input, values);
  };
  answer.body = [body] { return body->Text(); };
  Embed(context, model, std::move(requests), std::move(answer), request, writer);
}

}  // namespace

std::span<const Endpoint> EmbeddingEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"POST", "/v1/embeddings", Embeddings, Access::kApiKey, RunsOn::kRequestPool, true},
  };
  return kEndpoints;
}

}  // namespace tandem::server
