#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>

#include "server/handlers/embedding_input.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/generate.h"
#include "server/handlers/handlers.h"
#include "server/wire/embedding_request.h"
#include "server/wire/embedding_vector.h"
#include "server/wire/json_text.h"

namespace tandem::server {
namespace {

// The texts of one request and their unit vectors, while these arrive.
struct Texts {
  std::vector<engine::GenerationRequest> requests;
  int64_t n_tokens = 0;
  std::vector<std::vector<float>> vectors;  // by request
};

void AddText(const ServedModel& model, const std::string& text, const std::string& param,
             engine::Pooling pooling, int priority, Texts& texts) {
  texts.requests.push_back(
      MakePooledRequest(model, EncodeInput(model, text, param), pooling, priority));
  texts.n_tokens += std::ssize(texts.requests.back().prompt);
}

// Runs the texts. `body` makes the answer when all vectors are there.
void RunTexts(const HandlerContext& context, const std::shared_ptr<const ServedModel>& model,
              const std::shared_ptr<Texts>& texts, std::function<std::string()> body,
              const std::vector<std::string>& ignored, const Request& request,
              const ResponseWriter& writer) {
  if (!ignored.empty()) writer.AddHeader("x-ignored-params", IgnoredParamsHeader(ignored));
  texts->vectors.resize(texts->requests.size());
  VectorAnswer answer;
  answer.n_prompts = texts->requests.size();
  answer.take = [texts, dimensions = model->loaded().hidden_dim](size_t text,
                                                                 const std::vector<float>& values) {
    texts->vectors[text] = UnitVector(values, dimensions);
  };
  answer.body = std::move(body);
  Embed(context, model, std::move(texts->requests), std::move(answer), request, writer);
}

void AppendTokenUsage(std::string& out, int64_t n_tokens) {
  out += R"("usage":{"prompt_tokens":)";
  AppendJsonInt(out, n_tokens);
  out += R"(,"total_tokens":)";
  AppendJsonInt(out, n_tokens);
  out.push_back('}');
}

// POST /v1/score
void Score(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const nlohmann::ordered_json json = ParseJsonObject(request.body);
  const auto model = context.models.Find(FieldReader(json).RequiredString("model"));
  const ScoreRequest score = ParseScoreRequest(json);
  const engine::Pooling pooling = PoolingOf(*model, score.pooling);
  const auto texts = std::make_shared<Texts>();
  for (const std::string& text : score.first) {
    AddText(*model, text, "text_1", pooling, score.priority, *texts);
  }
  for (const std::string& text : score.second) {
    AddText(*model, text, "text_2", pooling, score.priority, *texts);
  }

  const int64_t created = std::chrono::duration_cast<std::chrono::seconds>(
                              std::chrono::system_clock::now().time_since_epoch())
                              .count();
  const auto body = [texts, created, id = NewObjectId("score-"), model_id = model->id,
                     n_first = score.first.size()] {
    std::string out = R"({"id":)";
    AppendJsonString(out, id);
    out += R"(,"object":"list","created":)";
    AppendJsonInt(out, created);
    out += R"(,"model":)";
    AppendJsonString(out, model_id);
    out += R"(,"data":[)";
    for (size_t i = 0; n_first + i < texts->vectors.size(); ++i) {
      if (i > 0) out.push_back(',');
      out += R"({"index":)";
      AppendJsonInt(out, i);
      out += R"(,"object":"score","score":)";
      AppendJsonNumber(out,
                       Cosine(texts->vectors[n_first == 1 ? 0 : i], texts->vectors[n_first + i]));
      out.push_back('}');
    }
    out += "],";
    AppendTokenUsage(out, texts->n_tokens);
    out.push_back('}');
    return out;
  };
  RunTexts(context, model, texts, body, score.ignored, request, writer);
}

// The documents by falling score; equal ones keep their order.
std::vector<size_t> Ranked(const std::vector<double>& scores) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  return order;
}

std::string RankingBody(const std::string& id, const std::string& model,
                        const RerankRequest& rerank, const Texts& texts) {
  std::vector<double> scores;
  for (size_t i = 1; i < texts.vectors.size(); ++i) {
    scores.push_back(Cosine(texts.vectors[0], texts.vectors[i]));
  }
  std::vector<size_t> order = Ranked(scores);
  order.resize(static_cast<size_t>(rerank.top_n));
  std::string out = R"({"id":)";
  AppendJsonString(out, id);
  out += R"(,"object":"list","model":)";
  AppendJsonString(out, model);
  out += R"(,"results":[)";
  for (size_t rank = 0; rank < order.size(); ++rank) {
    if (rank > 0) out.push_back(',');
    out += R"({"index":)";
    AppendJsonInt(out, order[rank]);
    out += R"(,"relevance_score":)";
    AppendJsonNumber(out, scores[order[rank]]);
    if (rerank.return_documents) {
      out += R"(,"document":{"text":)";
      AppendJsonString(out, rerank.documents[order[rank]]);
      out.push_back('}');
    }
    out.push_back('}');
  }
  out += "],";
  AppendTokenUsage(out, texts.n_tokens);
  out.push_back('}');
  return out;
}

// POST /v1/rerank
void Rerank(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const nlohmann::ordered_json json = ParseJsonObject(request.body);
  const auto model = context.models.Find(FieldReader(json).RequiredString("model"));
  const auto rerank = std::make_shared<const RerankRequest>(ParseRerankRequest(json));
  const engine::Pooling pooling = PoolingOf(*model, rerank->pooling);
  const auto texts = std::make_shared<Texts>();
  AddText(*model, rerank->query, "query", pooling, rerank->priority, *texts);
  for (const std::string& document : rerank->documents) {
    AddText(*model, document, "documents", pooling, rerank->priority, *texts);
  }
  const auto body = [texts, rerank, id = NewObjectId("rerank-"), model_id = model->id] {
    return RankingBody(id, model_id, *rerank, *texts);
  };
  RunTexts(context, model, texts, body, rerank->ignored, request, writer);
}

}  // namespace

std::span<const Endpoint> RerankEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"POST", "/v1/score", Score, Access::kApiKey, RunsOn::kRequestPool, true},
      {"POST", "/v1/rerank", Rerank, Access::kApiKey, RunsOn::kRequestPool, true},
  };
  return kEndpoints;
}

}  // namespace tandem::server
