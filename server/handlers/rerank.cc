#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/base/unix_time.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/generate.h"
#include "server/handlers/handlers.h"
#include "server/handlers/relevance.h"
#include "server/wire/embedding_request.h"
#include "server/wire/json_text.h"

namespace tandem::server {
namespace {

// Runs the texts. `body` makes the answer when all numbers are there.
void RunTexts(const HandlerContext& context, const std::shared_ptr<const ServedModel>& model,
              const std::shared_ptr<Relevance>& relevance, std::function<std::string()> body,
              const std::vector<std::string>& ignored, const Request& request,
              const ResponseWriter& writer) {
  if (!ignored.empty()) writer.AddHeader("x-ignored-params", IgnoredParamsHeader(ignored));
  std::vector<engine::GenerationRequest> requests = relevance->TakeRequests();
  VectorAnswer answer;
  answer.n_prompts = requests.size();
  answer.take = [relevance](size_t text, const std::vector<float>& values) {
    relevance->Take(text, values);
  };
  answer.body = std::move(body);
  Embed(context, model, std::move(requests), std::move(answer), request, writer);
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
  const auto model =
      context.models.Find(FieldReader(json).RequiredString("model"), ViewerOf(context, request));
  const ScoreRequest score = ParseScoreRequest(json);
  const auto relevance =
      std::make_shared<Relevance>(*model, Relevance::Texts{.first = score.first,
                                                           .first_param = "text_1",
                                                           .second = score.second,
                                                           .second_param = "text_2",
                                                           .pooling = score.pooling,
                                                           .priority = score.priority});

  const int64_t created = UnixNow();
  const auto body = [relevance, created, id = NewObjectId("score-"), model_id = model->id] {
    const std::vector<double> scores = relevance->Scores();
    std::string out = R"({"id":)";
    AppendJsonString(out, id);
    out += R"(,"object":"list","created":)";
    AppendJsonInt(out, created);
    out += R"(,"model":)";
    AppendJsonString(out, model_id);
    out += R"(,"data":[)";
    for (size_t i = 0; i < scores.size(); ++i) {
      if (i > 0) out.push_back(',');
      out += R"({"index":)";
      AppendJsonInt(out, i);
      out += R"(,"object":"score","score":)";
      AppendJsonNumber(out, scores[i]);
      out.push_back('}');
    }
    out += "],";
    AppendTokenUsage(out, relevance->n_tokens());
    out.push_back('}');
    return out;
  };
  RunTexts(context, model, relevance, body, score.ignored, request, writer);
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
                        const RerankRequest& rerank, const Relevance& relevance) {
  const std::vector<double> scores = relevance.Scores();
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
  AppendTokenUsage(out, relevance.n_tokens());
  out.push_back('}');
  return out;
}

// POST /v1/rerank
void Rerank(const HandlerContext& context, Request request, ResponseWriter writer) {
  RequireJson(request);
  const nlohmann::ordered_json json = ParseJsonObject(request.body);
  const auto model =
      context.models.Find(FieldReader(json).RequiredString("model"), ViewerOf(context, request));
  const auto rerank = std::make_shared<const RerankRequest>(ParseRerankRequest(json));
  const auto relevance =
      std::make_shared<Relevance>(*model, Relevance::Texts{.first = {rerank->query},
                                                           .first_param = "query",
                                                           .second = rerank->documents,
                                                           .second_param = "documents",
                                                           .pooling = rerank->pooling,
                                                           .priority = rerank->priority});
  const auto body = [relevance, rerank, id = NewObjectId("rerank-"), model_id = model->id] {
    return RankingBody(id, model_id, *rerank, *relevance);
  };
  RunTexts(context, model, relevance, body, rerank->ignored, request, writer);
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
