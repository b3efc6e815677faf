// Answers of teachers, good and hostile.

#include "training/teacher/teacher_answer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/base/error.h"

namespace tandem::training {
namespace {

using Json = nlohmann::ordered_json;

const std::vector<TeacherPrompt> kPrompts = {{5, {10, 11, 12}, {1, 2}}, {6, {20, 21}, {1}}};
constexpr TeacherLimits kTwoTokens{2, 100};

Json ChoiceOf(int index, const std::vector<int>& tokens) {
  Json names = Json::array();
  Json tops = Json::array();
  for (size_t i = 0; i < tokens.size(); ++i) {
    names.push_back("token_id:" + std::to_string(tokens[i]));
    tops.push_back(i == 0 ? Json()
                          : Json{{"token_id:3", -2.5},
                                 {"token_id:" + std::to_string(tokens[i]), -9999.0},
                                 {"token_id:4", -0.25}});
  }
  return {{"index", index}, {"logprobs", {{"tokens", names}, {"top_logprobs", tops}}}};
}

Json GoodAnswer() {
  return {{"choices", {ChoiceOf(1, {20, 21}), ChoiceOf(0, {10, 11, 12})}},
          {"system_fingerprint", "fp_9"}};
}

std::string AnswerFault(const Json& answer, const TeacherLimits& limits = kTwoTokens) {
  try {
    ParseTeacherAnswer(answer.dump(), kPrompts, limits, "http://t/v1/completions");
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("http://t/v1/completions")) << error.what();
    EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
    return error.what();
  }
  return "";
}

TEST(TeacherAnswerTest, HasTheLikeliestTokensOfEveryScoredPlace) {
  const TeacherAnswer answer = ParseTeacherAnswer(GoodAnswer().dump(), kPrompts, kTwoTokens, "t");
  EXPECT_EQ(answer.fingerprint, "fp_9");
  ASSERT_EQ(answer.samples.size(), 2u);
  EXPECT_EQ(answer.samples[0].sample, 5);
  EXPECT_EQ(answer.samples[0].ids, (std::vector<TokenId>{4, 3, 4, 3}));
  EXPECT_EQ(answer.samples[0].logprobs, (std::vector<float>{-0.25f, -2.5f, -0.25f, -2.5f}));
  EXPECT_EQ(answer.samples[1].ids, (std::vector<TokenId>{4, 3}));
}

TEST(TeacherAnswerTest, TheRequestAsksForIdsAndScoresOnly) {
  const Json body = Json::parse(TeacherRequest("m", kPrompts, 20));
  EXPECT_EQ(body["model"], "m");
  EXPECT_EQ(body["prompt"], (Json{{10, 11, 12}, {20, 21}}));
  EXPECT_EQ(body["max_tokens"], 0);
  EXPECT_EQ(body["echo"], true);
  EXPECT_EQ(body["logprobs"], 20);
  EXPECT_EQ(body["return_tokens_as_token_ids"], true);
}

TEST(TeacherAnswerTest, FewerLogprobsThanAskedForAreRefused) {
  EXPECT_NE(AnswerFault(GoodAnswer(), {4, 100}).find("has 3 log-probabilities at place 1, but 4"),
            std::string::npos);
  Json answer = GoodAnswer();
  answer["choices"][0]["logprobs"]["top_logprobs"].erase(1);
  EXPECT_NE(AnswerFault(answer).find("of 1 tokens for a prompt of 2"), std::string::npos);
  answer = GoodAnswer();
  answer["choices"][0]["logprobs"]["top_logprobs"][1] = nullptr;
  EXPECT_NE(AnswerFault(answer).find("has 0 log-probabilities"), std::string::npos);
  answer = GoodAnswer();
  answer["choices"].erase(0);
  EXPECT_NE(AnswerFault(answer).find("has 1 choices for 2 prompts"), std::string::npos);
  answer = GoodAnswer();
  answer["choices"][0]["logprobs"] = nullptr;
  EXPECT_NE(AnswerFault(answer).find("no field logprobs"), std::string::npos);
}

TEST(TeacherAnswerTest, WrongTokenIdsAreRefused) {
  Json answer = GoodAnswer();
  answer["choices"][0]["logprobs"]["tokens"][1] = "token_id:22";
  EXPECT_NE(AnswerFault(answer).find("has token id 22 at place 1, where the prompt has 21"),
            std::string::npos);
  for (const char* name :
       {"dog", "token_id:", "token_id:-1", "token_id:1x", "token_id:99999999999"}) {
    answer["choices"][0]["logprobs"]["tokens"][1] = name;
    EXPECT_NE(AnswerFault(answer).find("instead of by its id"), std::string::npos) << name;
  }
  EXPECT_NE(AnswerFault(GoodAnswer(), {2, 21}).find("vocabulary has 21 tokens"), std::string::npos);
  answer = GoodAnswer();
  answer["choices"][0]["logprobs"]["top_logprobs"][1] = {{"token_id:3", -1.0},
                                                         {"token_id:03", -2.0}};
  EXPECT_NE(AnswerFault(answer).find("has a token twice"), std::string::npos);
}

TEST(TeacherAnswerTest, ValuesThatAreNoLogprobsAreRefused) {
  for (const Json& value : {Json(0.5), Json("x"), Json(nullptr), Json::array()}) {
    Json answer = GoodAnswer();
    answer["choices"][0]["logprobs"]["top_logprobs"][1]["token_id:4"] = value;
    EXPECT_NE(AnswerFault(answer).find("has a log-probability"), std::string::npos) << value;
  }
  Json answer = GoodAnswer();
  answer["choices"][0]["logprobs"]["top_logprobs"][1] = {{"token_id:3", -0.1},
                                                         {"token_id:4", -0.1}};
  EXPECT_NE(AnswerFault(answer).find("has probabilities of sum"), std::string::npos);
}

TEST(TeacherAnswerTest, OtherDocumentsAreRefused) {
  for (const Json& answer :
       {Json::array(), Json(7), Json{{"choices", 5}}, Json{{"choices", {5, 6}}},
        Json{{"choices", {ChoiceOf(0, {10, 11, 12}), ChoiceOf(0, {20, 21})}}},
        Json{{"choices", {ChoiceOf(0, {10, 11, 12}), ChoiceOf(2, {20, 21})}}}}) {
    EXPECT_NE(AnswerFault(answer), "") << answer;
  }
  EXPECT_THROW(ParseTeacherAnswer("<html>", kPrompts, kTwoTokens, "t"), Error);
}

}  // namespace
}  // namespace tandem::training
