// POST /v1/embeddings, /v1/score and /v1/rerank of a whole server.

#include <cmath>

#include "tests/server/app/app_fixture.h"

namespace tandem::server {
namespace {

class AppEmbeddingsTest : public AppTest {
 protected:
  std::vector<double> Embed(const Json& input, Json fields = Json::object()) {
    fields["model"] = "tiny";
    fields["input"] = input;
    return PostJson("/v1/embeddings", fields)["data"][0]["embedding"].get<std::vector<double>>();
  }
  static double Dot(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b.at(i);
    return sum;
  }
};

TEST_F(AppEmbeddingsTest, AListHasOneUnitVectorPerInputInOrder) {
  StartApp();

  const Json reply =
      PostJson("/v1/embeddings", {{"model", "tiny"}, {"input", {"one", "two two", "three"}}});

  EXPECT_EQ(reply["object"], "list");
  EXPECT_EQ(reply["model"], "tiny");
  ASSERT_EQ(reply["data"].size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const Json& entry = reply["data"][i];
    EXPECT_EQ(entry["object"], "embedding");
    EXPECT_EQ(entry["index"], i);
    const auto vector = entry["embedding"].get<std::vector<double>>();
    EXPECT_EQ(vector.size(), 32u);
    EXPECT_NEAR(Dot(vector, vector), 1, 1e-6);
  }
  EXPECT_EQ(reply["data"][1]["embedding"].get<std::vector<double>>(), Embed("two two"));
  EXPECT_GT(reply["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(reply["usage"]["prompt_tokens"], reply["usage"]["total_tokens"]);
}

TEST_F(AppEmbeddingsTest, TokenIdsAreTheTextTheySpell) {
  StartApp();
  const Json ids = PostJson("/tokenize", {{"prompt", "A text."}})["tokens"];

  EXPECT_EQ(Embed(ids), Embed("A text."));
  EXPECT_EQ(Embed(Json::array({ids})), Embed("A text."));
}

TEST_F(AppEmbeddingsTest, DimensionsAreTheNormalisedBeginning) {
  StartApp();
  const std::vector<double> whole = Embed("A text.");

  const std::vector<double> part = Embed("A text.", {{"dimensions", 5}});

  ASSERT_EQ(part.size(), 5u);
  EXPECT_NEAR(Dot(part, part), 1, 1e-6);
  EXPECT_NEAR(part[0] / part[1], whole[0] / whole[1], 1e-4);
}

TEST_F(AppEmbeddingsTest, PoolingsDiffer) {
  StartApp();
  const auto pooled = [&](const char* pooling) { return Embed("A text.", {{"pooling", pooling}}); };

  EXPECT_EQ(pooled("last"), Embed("A text."));
  EXPECT_NE(pooled("mean"), pooled("last"));
  EXPECT_NE(pooled("cls"), pooled("last"));
}

TEST_F(AppEmbeddingsTest, ControlTokensInTheInputStayText) {
  StartApp();

  const Json spelled = PostJson("/v1/embeddings", {{"model", "tiny"}, {"input", "<end>"}});

  EXPECT_GT(spelled["usage"]["prompt_tokens"], 2);
}

TEST_F(AppEmbeddingsTest, BadInputIsRefusedByName) {
  StartApp();
  const auto refuse = [&](const std::string& path, Json body, int status, const char* code) {
    const Json reply = PostJson(path, body, status);
    EXPECT_EQ(reply["error"]["code"], code) << reply;
    return reply["error"];
  };
  const std::string path = "/v1/embeddings";

  const Json error = refuse(path, {{"model", "tiny"}, {"input", std::string(3000, 'x')}}, 400,
                            "context_length_exceeded");
  EXPECT_EQ(error["param"], "input");
  EXPECT_NE(error["message"].get<std::string>().find("256"), std::string::npos);
  refuse(path, {{"model", "none"}, {"input", "a"}}, 404, "model_not_found");
  refuse(path, {{"input", "a"}}, 400, "missing_required_parameter");
  refuse(path, {{"model", "tiny"}, {"input", ""}}, 400, "invalid_value");
  refuse(path, {{"model", "tiny"}, {"input", {1, 5000}}}, 400, "invalid_value");
  refuse("/v1/score", {{"model", "tiny"}, {"text_1", "a"}}, 400, "missing_required_parameter");
  refuse("/v1/rerank", {{"model", "tiny"}, {"query", "a"}, {"documents", Json::array()}}, 400,
         "invalid_value");
}

// A context of 256 tokens: the longest input has just as many, and none is left to generate.
TEST_F(AppEmbeddingsTest, AnInputMayFillTheContext) {
  StartApp();
  const std::vector<int> full(256, 50);
  const std::vector<int> more(257, 50);

  EXPECT_EQ(
      PostJson("/v1/embeddings", {{"model", "tiny"}, {"input", full}})["usage"]["total_tokens"],
      256);
  PostJson("/v1/embeddings", {{"model", "tiny"}, {"input", more}}, 400);
}

TEST_F(AppEmbeddingsTest, AModelWithoutATokenizerTakesIdsOnly) {
  AppOptions options = Defaults();
  options.models = {{"", (directory_->path() / "ids").string()}};
  StartApp(std::move(options));

  const Json reply = PostJson("/v1/embeddings", {{"model", "ids"}, {"input", {5, 6, 7}}});
  EXPECT_EQ(reply["usage"]["prompt_tokens"], 3);
  PostJson("/v1/embeddings", {{"model", "ids"}, {"input", "text"}}, 400);
}

TEST_F(AppEmbeddingsTest, ScoresAreCosinesOfEmbeddings) {
  StartApp();
  const double expected = Dot(Embed("first"), Embed("second one"));

  const Json one = PostJson(
      "/v1/score", {{"model", "tiny"}, {"text_1", "first"}, {"text_2", {"first", "second one"}}});
  const Json pairs = PostJson("/v1/score", {{"model", "tiny"},
                                            {"text_1", {"second one", "first"}},
                                            {"text_2", {"first", "second one"}}});

  ASSERT_EQ(one["data"].size(), 2u);
  EXPECT_NEAR(one["data"][0]["score"].get<double>(), 1, 1e-6);
  EXPECT_NEAR(one["data"][1]["score"].get<double>(), expected, 1e-6);
  EXPECT_EQ(one["data"][1]["index"], 1);
  EXPECT_NEAR(pairs["data"][0]["score"].get<double>(), expected, 1e-6);
  EXPECT_NEAR(pairs["data"][1]["score"].get<double>(), expected, 1e-6);
}

TEST_F(AppEmbeddingsTest, ARankingIsOrderedByScoreAndCutAtTopN) {
  StartApp();
  const Json documents = {"far away", "the query", {{"text", "the quarry"}}};
  const auto rerank = [&](Json fields) {
    fields["model"] = "tiny";
    fields["query"] = "the query";
    fields["documents"] = documents;
    return PostJson("/v1/rerank", fields)["results"];
  };

  const Json all = rerank(Json::object());
  const Json best = rerank({{"top_n", 1}, {"return_documents", true}});

  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0]["index"], 1);
  EXPECT_NEAR(all[0]["relevance_score"].get<double>(), 1, 1e-6);
  EXPECT_GE(all[1]["relevance_score"], all[2]["relevance_score"]);
  EXPECT_FALSE(all[0].contains("document"));
  ASSERT_EQ(best.size(), 1u);
  EXPECT_EQ(best[0]["document"]["text"], "the query");
}

// A tiny model with the reranker's mark in its template. The expected scores come from the
// log-probabilities that completions report for the same prompt.
TEST_F(AppEmbeddingsTest, ARerankerScoresByItsAnswer) {
  const std::filesystem::path directory = directory_->path() / "reranker";
  std::filesystem::create_directory(directory);
  tests::TinyModelOptions model;
  model.max_context_len = 1024;
  model.special_tokens = {"<bos>", "<end>", "<|im_start|>", "<|im_end|>", "yes", "no"};
  const std::string task =
      "Judge whether the Document meets the requirements based on the Query and the Instruct "
      "provided. Note that the answer can only be \"yes\" or \"no\".";
  model.chat_template = task + "{{ messages[0].content }}";
  tests::WriteTinyModel(directory, model);
  AppOptions options = Defaults();
  options.models = {{"", directory.string()}};
  StartApp(std::move(options));
  const auto expected = [&](const std::string& document) {
    // The task's own yes and no are the template's text, so they are tokens.
    const auto ids =
        PostJson("/tokenize",
                 {{"prompt", "<|im_start|>system\n" + task +
                                 "<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search "
                                 "query, retrieve relevant passages that answer the query\n"
                                 "<Query>: who\n<Document>: " +
                                 document +
                                 "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"},
                  {"add_special_tokens", false},
                  {"parse_special", true}})["tokens"]
            .get<std::vector<int>>();
    double logprobs[2];
    for (const int answer : {0, 1}) {
      std::vector<int> scored = ids;
      scored.push_back(4 + answer);
      const Json reply = PostJson("/v1/completions", {{"model", "reranker"},
                                                      {"prompt", scored},
                                                      {"max_tokens", 0},
                                                      {"echo", true},
                                                      {"logprobs", 0}});
      logprobs[answer] = reply["choices"][0]["logprobs"]["token_logprobs"].back().get<double>();
    }
    return 1 / (1 + std::exp(logprobs[1] - logprobs[0]));
  };

  const Json score = PostJson(
      "/v1/score", {{"model", "reranker"}, {"text_1", "who"}, {"text_2", {"A dog.", "Rain"}}});
  const Json ranking = PostJson(
      "/v1/rerank",
      {{"model", "reranker"}, {"query", "who"}, {"documents", {"A dog.", "Rain"}}})["results"];
  const Json cosine =
      PostJson("/v1/score",
               {{"model", "reranker"}, {"pooling", "mean"}, {"text_1", "who"}, {"text_2", "who"}});

  EXPECT_NEAR(score["data"][0]["score"].get<double>(), expected("A dog."), 1e-5);
  EXPECT_NEAR(score["data"][1]["score"].get<double>(), expected("Rain"), 1e-5);
  EXPECT_EQ(ranking[0]["relevance_score"], std::max(score["data"][0]["score"].get<double>(),
                                                    score["data"][1]["score"].get<double>()));
  EXPECT_NEAR(cosine["data"][0]["score"].get<double>(), 1, 1e-6);
  const Json error = PostJson(
      "/v1/rerank",
      {{"model", "reranker"}, {"query", "who"}, {"documents", {"short", std::string(2000, 'x')}}},
      400);
  EXPECT_EQ(error["error"]["param"], "documents[1]");
}

TEST_F(AppEmbeddingsTest, AClientThatLeavesEndsItsWork) {
  AppOptions options = Defaults();
  options.engine.prefill_chunk_tokens = 1;
  StartApp(std::move(options));
  const int64_t before = Stats().prompt_tokens_total;
  {
    Json inputs = Json::array();
    for (int i = 0; i < 512; ++i) inputs.push_back(std::vector<int>(200, 40 + i % 200));
    RawClient client(app_->port());
    client.Send(Post("/v1/embeddings",
                     Json{{"model", "tiny"}, {"pooling", "mean"}, {"input", inputs}}.dump()));
    while (Stats().requests_running == 0) std::this_thread::yield();
  }

  WaitUntilIdle();

  EXPECT_EQ(Stats().kv_blocks_used, 0);
  EXPECT_LT(Stats().prompt_tokens_total - before, 512 * 200);
}

TEST_F(AppEmbeddingsTest, TokensCountTowardsTheLimitOfAKey) {
  AppOptions options = Defaults();
  options.api_keys = {"key-1"};
  options.rate_limits.tokens = 20;
  StartApp(std::move(options));
  const std::string body = Json{{"model", "tiny"}, {"input", std::vector<int>(20, 50)}}.dump();
  const std::string key = "Authorization: Bearer key-1\r\n";

  EXPECT_EQ(Ask(Post("/v1/embeddings", body)).status, 401);
  EXPECT_EQ(Ask(Post("/v1/embeddings", body, key)).status, 200);
  EXPECT_EQ(Ask(Post("/v1/embeddings", body, key)).status, 429);
}

TEST_F(AppEmbeddingsTest, EveryModelSaysThatItServesEmbeddings) {
  StartApp();
  const Json models = Json::parse(Get("/v1/models").body);

  const Json& capabilities = models["data"][0]["capabilities"];
  EXPECT_NE(std::find(capabilities.begin(), capabilities.end(), "embeddings"), capabilities.end());
}

}  // namespace
}  // namespace tandem::server
