#include "training/teacher/teacher_answer.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/json.h"

namespace tandem::training {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kIdPrefix = "token_id:";
// Rounding may lift a certain token above 0, and a sum of probabilities above 1.
constexpr double kTolerance = 1e-3;

// A token of the answer and the teacher's log-probability.
using ScoredToken = std::pair<TokenId, float>;

class AnswerReader {
 public:
  AnswerReader(const TeacherLimits& limits, const std::string& where)
      : limits_(limits), where_(where) {}

  TeacherAnswer Read(const ordered_json& body, std::span<const TeacherPrompt> prompts) const {
    TeacherAnswer answer;
    const ordered_json& choices = Member(body, "choices", ordered_json::value_t::array);
    if (choices.size() != prompts.size()) {
      Refuse("has " + std::to_string(choices.size()) + " choices for " +
             std::to_string(prompts.size()) + " prompts");
    }
    answer.samples.resize(prompts.size());
    std::vector<bool> is_read(prompts.size(), false);
    for (const ordered_json& choice : choices) {
      if (!choice.is_object()) Refuse("has a choice that is no object");
      const auto i = static_cast<size_t>(
          engine::JsonInt(choice, "index", 0, static_cast<int64_t>(prompts.size()) - 1, where_));
      if (is_read[i]) Refuse("has choice " + std::to_string(i) + " twice");
      is_read[i] = true;
      answer.samples[i] = ReadChoice(choice, prompts[i]);
    }
    answer.fingerprint = engine::JsonStringOr(body, "system_fingerprint", "", where_);
    return answer;
  }

 private:
  [[noreturn]] void Refuse(const std::string& what) const {
    throw Error(ErrorCode::kDataLoss, where_ + ": the answer " + what);
  }

  const ordered_json& Member(const ordered_json& object, const char* name,
                             ordered_json::value_t type) const {
    const auto found = object.is_object() ? object.find(name) : object.end();
    if (!object.is_object() || found == object.end() || found->type() != type) {
      Refuse(std::string("has no field ") + name +
             " of the right type: the teacher must serve /v1/completions with echo and logprobs, "
             "as Tandem and vLLM do");
    }
    return *found;
  }

  std::optional<TokenId> IdOf(std::string_view name) const {
    if (!name.starts_with(kIdPrefix)) return std::nullopt;
    name.remove_prefix(kIdPrefix.size());
    TokenId id = -1;
    const auto [end, fault] = std::from_chars(name.data(), name.data() + name.size(), id);
    if (fault != std::errc() || end != name.data() + name.size() || id < 0) return std::nullopt;
    return id;
  }

  TokenId CheckedId(std::string_view name) const {
    const std::optional<TokenId> id = IdOf(name);
    if (!id) {
      Refuse("names a token " + Quoted(name, 40) +
             " instead of by its id: the teacher must support return_tokens_as_token_ids, as "
             "Tandem and vLLM do");
    }
    if (*id >= limits_.vocab_size) {
      Refuse("has token id " + std::to_string(*id) + ", but the student's vocabulary has " +
             std::to_string(limits_.vocab_size) + " tokens: both must have one tokenizer");
    }
    return *id;
  }

  ScoredSample ReadChoice(const ordered_json& choice, const TeacherPrompt& prompt) const {
    constexpr auto kArray = ordered_json::value_t::array;
    const ordered_json& logprobs = Member(choice, "logprobs", ordered_json::value_t::object);
    const ordered_json& tokens = Member(logprobs, "tokens", kArray);
    const ordered_json& tops = Member(logprobs, "top_logprobs", kArray);
    const size_t n = prompt.tokens.size();
    if (tokens.size() < n || tops.size() < n) {
      Refuse("has log-probabilities of " + std::to_string(std::min(tokens.size(), tops.size())) +
             " tokens for a prompt of " + std::to_string(n));
    }
    for (size_t i = 0; i < n; ++i) {
      if (!tokens[i].is_string()) Refuse("has a token that is no text");
      const TokenId id = CheckedId(tokens[i].get_ref<const std::string&>());
      if (id == prompt.tokens[i]) continue;
      Refuse("has token id " + std::to_string(id) + " at place " + std::to_string(i) +
             ", where the prompt has " + std::to_string(prompt.tokens[i]));
    }
    ScoredSample sample{prompt.sample, {}, {}};
    for (const int64_t at : prompt.scored) {
      AddCandidates(tops[static_cast<size_t>(at)], at, &sample);
    }
    return sample;
  }

  void AddCandidates(const ordered_json& top, int64_t at, ScoredSample* sample) const {
    const auto wanted = static_cast<size_t>(limits_.top_k);
    std::vector<ScoredToken> candidates;
    if (top.is_object()) {
      for (const auto& [name, logprob] : top.items()) {
        candidates.emplace_back(CheckedId(name), CheckedLogprob(logprob));
      }
    }
    if (candidates.size() < wanted) {
      Refuse("has " + std::to_string(candidates.size()) + " log-probabilities at place " +
             std::to_string(at) + ", but " + std::to_string(wanted) +
             " were asked for: lower distill.top_k to the server's limit");
    }
    std::sort(candidates.begin(), candidates.end(), [](const ScoredToken& a, const ScoredToken& b) {
      return a.second != b.second ? a.second > b.second : a.first < b.first;
    });
    double sum = 0;
    for (size_t i = 0; i < wanted; ++i) {
      sum += std::exp(static_cast<double>(candidates[i].second));
      sample->ids.push_back(candidates[i].first);
      sample->logprobs.push_back(candidates[i].second);
    }
    if (sum > 1 + kTolerance) {
      Refuse("has probabilities of sum " + std::to_string(sum) + " at place " + std::to_string(at));
    }
    // "token_id:7" and "token_id:07" are one token.
    const auto first = sample->ids.end() - static_cast<std::ptrdiff_t>(wanted);
    std::vector<TokenId> ids(first, sample->ids.end());
    std::sort(ids.begin(), ids.end());
    if (std::adjacent_find(ids.begin(), ids.end()) != ids.end()) {
      Refuse("has a token twice at place " + std::to_string(at));
    }
  }

  float CheckedLogprob(const ordered_json& value) const {
    const double logprob = value.is_number() ? value.get<double>() : NAN;
    if (!(logprob <= kTolerance)) Refuse("has a log-probability " + Quoted(value.dump(), 40));
    return static_cast<float>(std::min(logprob, 0.0));
  }

  const TeacherLimits& limits_;
  const std::string& where_;
};

}  // namespace

std::string TeacherRequest(const std::string& model, std::span<const TeacherPrompt> prompts,
                           int64_t top_k) {
  ordered_json body;
  if (!model.empty()) body["model"] = model;
  body["prompt"] = ordered_json::array();
  for (const TeacherPrompt& prompt : prompts) body["prompt"].push_back(prompt.tokens);
  body["max_tokens"] = 0;
  body["echo"] = true;
  body["logprobs"] = top_k;
  body["return_tokens_as_token_ids"] = true;
  return body.dump();
}

TeacherAnswer ParseTeacherAnswer(std::string_view text, std::span<const TeacherPrompt> prompts,
                                 const TeacherLimits& limits, const std::string& where) {
  const ordered_json body = engine::ParseUntrustedJson(text, where);
  return AnswerReader(limits, where).Read(body, prompts);
}

}  // namespace tandem::training
