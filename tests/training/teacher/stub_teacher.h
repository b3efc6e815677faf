#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/engine/hub/hub_server.h"

namespace tandem::training {

// A server of a teacher with a simple distribution: each token has about the probability 0.6, and
// ids that follow from the token before it share most of the rest.
class StubTeacher {
 public:
  using Json = nlohmann::ordered_json;

  explicit StubTeacher(int64_t vocab_size = 256)
      : vocab_size_(vocab_size),
        server_([this](const tests::HubRequest& request) { return Answer(request); }) {}

  std::string url() const { return server_.url() + "/v1"; }
  std::vector<tests::HubRequest> requests() const { return server_.requests(); }
  int64_t scored() const { return scored_; }  // prompts

  // Replaces the text of answers to /v1/completions, and of /detokenize.
  std::function<tests::HubReply(const tests::HubRequest&, const std::string& body)> change;
  std::function<std::string(const Json& tokens)> text_of = [](const Json& tokens) {
    std::string text;
    for (const Json& id : tokens) text.push_back(static_cast<char>(id.get<int>()));
    return text;
  };

 private:
  tests::HubReply Answer(const tests::HubRequest& request) {
    if (request.target == "/v1/models") {
      return {tests::Reply(200, "", R"({"data":[{"id":"stub"}]})")};
    }
    const Json body = Json::parse(request.body, nullptr, false);
    std::string answer;
    if (request.target == "/detokenize") {
      answer = Json{{"prompt", text_of(body["tokens"])}}.dump();
    } else {
      answer = Scores(body).dump();
    }
    return change ? change(request, answer) : tests::HubReply{tests::Reply(200, "", answer)};
  }

  Json Scores(const Json& body) {
    Json choices = Json::array();
    int index = 0;
    for (const Json& prompt : body["prompt"]) {
      ++scored_;
      Json tokens = Json::array();
      Json tops = Json::array();
      for (size_t i = 0; i < prompt.size(); ++i) {
        const auto id = prompt[i].get<int64_t>();
        tokens.push_back(Name(id));
        tops.push_back(i == 0 ? Json() : Top(id, prompt[i - 1].get<int64_t>(), body["logprobs"]));
      }
      choices.push_back({{"index", index++},
                         {"text", ""},
                         {"logprobs", {{"tokens", tokens}, {"top_logprobs", tops}}}});
    }
    return {{"choices", choices}, {"system_fingerprint", "fp_stub"}};
  }

  Json Top(int64_t id, int64_t before, int64_t k) const {
    Json top = {{Name(id), std::log(0.6)}};
    double share = 0.2;
    for (int64_t i = 1; static_cast<int64_t>(top.size()) < k; ++i, share /= 2) {
      const int64_t other = (before * 7 + i) % vocab_size_;
      if (!top.contains(Name(other))) top[Name(other)] = std::log(share);
    }
    return top;
  }

  static std::string Name(int64_t id) { return "token_id:" + std::to_string(id); }

  const int64_t vocab_size_;
  std::atomic<int64_t> scored_{0};
  tests::HubServer server_;  // the last: its threads use the others
};

}  // namespace tandem::training
