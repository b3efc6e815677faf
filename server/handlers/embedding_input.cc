#include "server/handlers/embedding_input.h"

#include <utility>

#include "server/handlers/prompt.h"
#include "server/wire/field_reader.h"

namespace tandem::server {

std::vector<TokenId> EncodeInput(const ServedModel& model, const Prompt& input,
                                 const std::string& param) {
  std::vector<TokenId> ids;
  if (const auto* tokens = std::get_if<std::vector<TokenId>>(&input)) {
    ids = *tokens;
  } else {
    ids = EncodeText(model, std::get<std::string>(input), {});
    const std::vector<TokenId>& suffix = model.loaded().text_suffix;
    ids.insert(ids.end(), suffix.begin(), suffix.end());
  }
  if (ids.empty()) throw BadValue(param, param + " has no tokens");
  CheckInputLength(model, ids.size(), model.loaded().max_model_len, param);
  return ids;
}

void CheckInputLength(const ServedModel& model, size_t n_tokens, int64_t most,
                      const std::string& param) {
  if (static_cast<int64_t>(n_tokens) <= most) return;
  throw Error(ErrorCode::kInvalidArgument, "input is too long: the maximum of model '" + model.id +
                                               "' is " + std::to_string(most) + " tokens, and " +
                                               param + " has " + std::to_string(n_tokens) +
                                               " tokens: send it in parts")
      .WithParam(param)
      .WithReason("context_length_exceeded");
}

engine::Pooling PoolingOf(const ServedModel& model, std::optional<engine::Pooling> requested) {
  if (requested) return *requested;
  const engine::LoadedModel& loaded = model.loaded();
  if (loaded.pooling_error.empty()) return loaded.pooling;
  throw Error(ErrorCode::kFailedPrecondition, "the pooling of model '" + model.id +
                                                  "' is not supported (" + loaded.pooling_error +
                                                  "): set pooling to mean, last or cls")
      .WithParam("pooling");
}

engine::GenerationRequest MakeReadingRequest(const ServedModel& model, std::vector<TokenId> input,
                                             int priority) {
  engine::GenerationRequest request;
  request.prompt = std::move(input);
  request.stop.max_new_tokens = 0;
  request.priority = priority;
  request.adapter = model.adapter;
  if (model.adapter) request.adapter_name = model.id;
  return request;
}

engine::GenerationRequest MakePooledRequest(const ServedModel& model, std::vector<TokenId> input,
                                            engine::Pooling pooling, int priority) {
  engine::GenerationRequest request = MakeReadingRequest(model, std::move(input), priority);
  request.pooling = pooling;
  return request;
}

}  // namespace tandem::server
