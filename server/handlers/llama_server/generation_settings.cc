#include "server/handlers/llama_server/generation_settings.h"

#include <nlohmann/json.hpp>

namespace tandem::server {

nlohmann::ordered_json GenerationSettings(const ServedModel& model,
                                          const engine::SamplingParams& sampling,
                                          const engine::StopSpec& stop) {
  nlohmann::ordered_json out;
  out["n_ctx"] = model.loaded().max_model_len;
  out["n_predict"] = stop.max_new_tokens;
  out["seed"] = sampling.seed;
  out["temperature"] = sampling.temperature;
  out["top_k"] = sampling.top_k;
  out["top_p"] = sampling.top_p;
  out["min_p"] = sampling.min_p;
  out["repeat_penalty"] = sampling.repetition_penalty;
  out["presence_penalty"] = sampling.presence_penalty;
  out["frequency_penalty"] = sampling.frequency_penalty;
  out["stop"] = stop.strings;
  out["ignore_eos"] = stop.ignore_end_tokens;
  return out;
}

}  // namespace tandem::server
