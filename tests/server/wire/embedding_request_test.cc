#include "server/wire/embedding_request.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "server/wire/error_body.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr EmbeddingLimits kEmbeddingLimits = {1000, 32};

EmbeddingRequest ParseEmbedding(const std::string& body) {
  return ParseEmbeddingRequest(Json::parse(body), kEmbeddingLimits);
}

// Each bad body is a 400 with this param and code.
void ExpectBadEmbedding(const std::function<void()>& parse, const char* param, const char* code) {
  try {
    parse();
    ADD_FAILURE() << "accepted: " << param;
  } catch (const Error& error) {
    const ErrorReply reply = MakeErrorReply(error, "req_1");
    EXPECT_EQ(reply.status, 400) << reply.body;
    const Json body = Json::parse(reply.body)["error"];
    EXPECT_EQ(body["param"], param) << reply.body;
    EXPECT_EQ(body["code"], code) << reply.body;
    EXPECT_LT(reply.body.size(), 4096u);
  }
}

TEST(EmbeddingRequestTest, EveryKindOfInputIsRead) {
  EXPECT_EQ(std::get<std::string>(ParseEmbedding(R"({"input": "a"})").inputs.at(0)), "a");
  EXPECT_EQ(ParseEmbedding(R"({"input": ["a", "b"]})").inputs.size(), 2u);
  const auto ids = ParseEmbedding(R"({"input": [1, 2]})");
  ASSERT_EQ(ids.inputs.size(), 1u);
  EXPECT_EQ(std::get<std::vector<TokenId>>(ids.inputs[0]), (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(ParseEmbedding(R"({"input": [[1, 2], [3]]})").inputs.size(), 2u);
}

TEST(EmbeddingRequestTest, DefaultsAreFloatAllDimensionsAndTheModelsPooling) {
  const EmbeddingRequest request = ParseEmbedding(R"({"input": "a", "user": "u", "task": "x"})");

  EXPECT_EQ(request.encoding, EmbeddingEncoding::kFloat);
  EXPECT_EQ(request.dimensions, 32);
  EXPECT_FALSE(request.pooling.has_value());
  EXPECT_EQ(request.priority, 0);
  EXPECT_EQ(request.ignored, std::vector<std::string>{"task"});
}

TEST(EmbeddingRequestTest, BadFieldsAreNamed) {
  const struct {
    const char* body;
    const char* param;
    const char* code;
  } kBad[] = {
      {R"({})", "input", "missing_required_parameter"},
      {R"({"input": null})", "input", "missing_required_parameter"},
      {R"({"input": ""})", "input", "invalid_value"},
      {R"({"input": []})", "input", "invalid_value"},
      {R"({"input": {}})", "input", "invalid_type"},
      {R"({"input": 5})", "input", "invalid_type"},
      {R"({"input": ["a", ""]})", "input[1]", "invalid_value"},
      {R"({"input": ["a", 1]})", "input[1]", "invalid_type"},
      {R"({"input": [[1], []]})", "input[1]", "invalid_value"},
      {R"({"input": [[1], [1000]]})", "input[1][0]", "invalid_value"},
      {R"({"input": [-1]})", "input[0]", "invalid_value"},
      {R"({"input": [1, "a"]})", "input[1]", "invalid_value"},
      {R"({"input": [1.5]})", "input[0]", "invalid_value"},
      {R"({"input": "a", "encoding_format": "bytes"})", "encoding_format", "invalid_value"},
      {R"({"input": "a", "encoding_format": 1})", "encoding_format", "invalid_type"},
      {R"({"input": "a", "dimensions": 0})", "dimensions", "invalid_value"},
      {R"({"input": "a", "dimensions": 33})", "dimensions", "invalid_value"},
      {R"({"input": "a", "dimensions": "8"})", "dimensions", "invalid_type"},
      {R"({"input": "a", "pooling": "max"})", "pooling", "invalid_value"},
      {R"({"input": "a", "pooling": 1})", "pooling", "invalid_type"},
      {R"({"input": "a", "truncate_prompt_tokens": 4})", "truncate_prompt_tokens",
       "unsupported_parameter"},
      {R"({"input": "a", "normalize": false})", "normalize", "unsupported_parameter"},
  };
  for (const auto& bad : kBad) {
    SCOPED_TRACE(bad.body);
    ExpectBadEmbedding([&] { ParseEmbedding(bad.body); }, bad.param, bad.code);
  }
}

TEST(EmbeddingRequestTest, ThereAreAtMost2048Inputs) {
  Json body = {{"input", Json::array()}};
  for (int i = 0; i < 2048; ++i) body["input"].push_back("a");
  EXPECT_EQ(ParseEmbeddingRequest(body, kEmbeddingLimits).inputs.size(), 2048u);

  body["input"].push_back("a");
  ExpectBadEmbedding([&] { ParseEmbeddingRequest(body, kEmbeddingLimits); }, "input",
                     "invalid_value");
}

TEST(ScoreRequestTest, OneTextGoesWithManyOrEachWithItsOwn) {
  const auto parse = [](const std::string& body) { return ParseScoreRequest(Json::parse(body)); };
  EXPECT_EQ(parse(R"({"text_1": "q", "text_2": ["a", {"text": "b"}]})").second,
            (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(parse(R"({"text_1": ["p", "q"], "text_2": ["a", "b"]})").first.size(), 2u);

  const auto bad = [&](const char* body, const char* param, const char* code) {
    ExpectBadEmbedding([&] { parse(body); }, param, code);
  };
  bad(R"({"text_2": "a"})", "text_1", "missing_required_parameter");
  bad(R"({"text_1": "a"})", "text_2", "missing_required_parameter");
  bad(R"({"text_1": ["a", "b"], "text_2": "c"})", "text_1", "invalid_value");
  bad(R"({"text_1": "a", "text_2": []})", "text_2", "invalid_value");
  bad(R"({"text_1": "a", "text_2": [[1]]})", "text_2[0]", "invalid_type");
  bad(R"({"text_1": {}, "text_2": "a"})", "text_1", "invalid_type");
}

TEST(RerankRequestTest, DocumentsAreTextsOrObjectsAndTopNIsBounded) {
  const auto parse = [](const std::string& body) { return ParseRerankRequest(Json::parse(body)); };
  const RerankRequest request =
      parse(R"({"query": "q", "documents": ["a", {"text": "b"}], "top_n": 9})");
  EXPECT_EQ(request.documents, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(request.top_n, 2);
  EXPECT_FALSE(request.return_documents);

  const auto bad = [&](const char* body, const char* param, const char* code) {
    ExpectBadEmbedding([&] { parse(body); }, param, code);
  };
  bad(R"({"documents": ["a"]})", "query", "missing_required_parameter");
  bad(R"({"query": "", "documents": ["a"]})", "query", "invalid_value");
  bad(R"({"query": "q"})", "documents", "missing_required_parameter");
  bad(R"({"query": "q", "documents": []})", "documents", "invalid_value");
  bad(R"({"query": "q", "documents": "a"})", "documents", "invalid_type");
  bad(R"({"query": "q", "documents": ["a", ""]})", "documents[1]", "invalid_value");
  bad(R"({"query": "q", "documents": [{}]})", "documents[0].text", "missing_required_parameter");
  bad(R"({"query": "q", "documents": ["a"], "top_n": 0})", "top_n", "invalid_value");
}

}  // namespace
}  // namespace tandem::server
