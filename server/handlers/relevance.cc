#include "server/handlers/relevance.h"

#include <cmath>
#include <string_view>

#include "engine/chat/chat_template.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/handlers/embedding_input.h"
#include "server/wire/embedding_vector.h"

namespace tandem::server {
namespace {

// The prompt on which Qwen3-Reranker was trained, with its default instruction.
constexpr std::string_view kTask =
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    "provided. Note that the answer can only be \"yes\" or \"no\".";
constexpr std::string_view kInstruction =
    "Given a web search query, retrieve relevant passages that answer the query";
// Only this reranker's chat template says so.
constexpr std::string_view kMark = "Judge whether the Document meets the requirements";

// The two answers of a reranker.
struct Verdicts {
  TokenId yes = 0;
  TokenId no = 0;
};

// nullopt: the model is no reranker.
std::optional<Verdicts> VerdictsOf(const engine::LoadedModel& loaded) {
  if (!loaded.tokenizer || !loaded.chat_template || !loaded.chat_template->Mentions(kMark)) {
    return std::nullopt;
  }
  const std::optional<TokenId> yes = loaded.tokenizer->FindToken("yes");
  const std::optional<TokenId> no = loaded.tokenizer->FindToken("no");
  if (!yes || !no) return std::nullopt;
  return Verdicts{*yes, *no};
}

// Appends a client's text, whose control tokens stay text.
void AppendClientText(std::string& prompt, std::string_view text,
                      std::vector<engine::TextRange>& client) {
  const size_t begin = prompt.size();
  prompt += text;
  client.emplace_back(begin, prompt.size());
}

std::vector<TokenId> EncodeQuestion(const engine::LoadedModel& loaded, const std::string& query,
                                    const std::string& document) {
  std::vector<engine::TextRange> client;
  std::string prompt = "<|im_start|>system\n";
  prompt += kTask;
  prompt += "<|im_end|>\n<|im_start|>user\n<Instruct>: ";
  prompt += kInstruction;
  prompt += "\n<Query>: ";
  AppendClientText(prompt, query, client);
  prompt += "\n<Document>: ";
  AppendClientText(prompt, document, client);
  prompt += "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
  return loaded.tokenizer->EncodeMixed(prompt, client);
}

std::string ParamOf(const std::string& param, size_t i, size_t count) {
  return count == 1 ? param : param + "[" + std::to_string(i) + "]";
}

}  // namespace

Relevance::Relevance(const ServedModel& model, const Texts& texts) : n_first_(texts.first.size()) {
  const engine::LoadedModel& loaded = model.loaded();
  const auto verdicts = texts.pooling ? std::nullopt : VerdictsOf(loaded);
  if (verdicts) {
    for (size_t i = 0; i < texts.second.size(); ++i) {
      const std::string& query = texts.first[n_first_ == 1 ? 0 : i];
      std::vector<TokenId> prompt = EncodeQuestion(loaded, query, texts.second[i]);
      CheckInputLength(model, prompt.size(), loaded.max_model_len - 1,
                       ParamOf(texts.second_param, i, texts.second.size()));
      engine::GenerationRequest request =
          MakeReadingRequest(model, std::move(prompt), texts.priority);
      request.next_tokens = {verdicts->yes, verdicts->no};
      Add(std::move(request));
    }
  } else {
    dimensions_ = loaded.hidden_dim;
    const engine::Pooling pooling = PoolingOf(model, texts.pooling);
    const auto add_all = [&](const std::vector<std::string>& list, const std::string& param) {
      for (size_t i = 0; i < list.size(); ++i) {
        Add(MakePooledRequest(model, EncodeInput(model, list[i], ParamOf(param, i, list.size())),
                              pooling, texts.priority));
      }
    };
    add_all(texts.first, texts.first_param);
    add_all(texts.second, texts.second_param);
  }
  results_.resize(requests_.size());
}

void Relevance::Add(engine::GenerationRequest request) {
  n_tokens_ += std::ssize(request.prompt);
  requests_.push_back(std::move(request));
}

void Relevance::Take(size_t request, const std::vector<float>& values) {
  results_[request] = dimensions_ > 0 ? UnitVector(values, dimensions_) : values;
}

std::vector<double> Relevance::Scores() const {
  std::vector<double> scores;
  if (dimensions_ == 0) {
    for (const std::vector<float>& logprobs : results_) {
      const double log_odds =
          static_cast<double>(logprobs.at(0)) - static_cast<double>(logprobs.at(1));
      scores.push_back(1 / (1 + std::exp(-log_odds)));
    }
    return scores;
  }
  for (size_t i = 0; n_first_ + i < results_.size(); ++i) {
    scores.push_back(Cosine(results_[n_first_ == 1 ? 0 : i], results_[n_first_ + i]));
  }
  return scores;
}

}  // namespace tandem::server
