#include <array>

#include "engine/api/generation.h"
#include "engine/api/loaded_model.h"
#include "engine/api/stats.h"

// Boundaries are vLLM's, so its dashboards fit. Some smaller ones precede them, because small
// models on fast machines would otherwise fall into one bucket.

namespace tandem::engine {
namespace {

constexpr std::array kFirstTokenSeconds{0.001, 0.005, 0.01, 0.02, 0.04, 0.06,  0.08, 0.1,
                                        0.25,  0.5,   0.75, 1.0,  2.5,  5.0,   7.5,  10.0,
                                        20.0,  40.0,  80.0, 160., 640., 2560.0};
constexpr std::array kBetweenTokensSeconds{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,
                                           0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1.0,   2.5,
                                           5.0,   7.5,    10.0,  20.0, 40.0,  80.0};
constexpr std::array kRequestSeconds{0.005, 0.01, 0.025, 0.05, 0.1,  0.3,  0.5,   0.8,   1.0,
                                     1.5,   2.0,  2.5,   5.0,  10.0, 15.0, 20.0,  30.0,  40.0,
                                     50.0,  60.0, 120.0, 240., 480., 960., 1920., 7680.0};
constexpr std::array kTokens{1.0,    2.0,   5.0,    10.0,    20.0,    50.0,    100.0,
                             200.0,  500.0, 1000.0, 2000.0,  5000.0,  10000.0, 20000.0,
                             50000., 100e3, 200e3,  500000., 1000000.};
constexpr std::array kChoices{1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0};
constexpr std::array kStepTokens{1.0,   8.0,   16.0,   32.0,   64.0,   128.0,  256.0,
                                 512.0, 1024., 2048.0, 4096.0, 8192.0, 16384.0};

}  // namespace

EngineHistograms::EngineHistograms()
    : time_to_first_token_s(kFirstTokenSeconds),
      inter_token_s(kBetweenTokensSeconds),
      e2e_s(kRequestSeconds),
      queue_s(kRequestSeconds),
      prefill_s(kRequestSeconds),
      decode_s(kRequestSeconds),
      inference_s(kRequestSeconds),
      prompt_tokens(kTokens),
      generation_tokens(kTokens),
      params_n(kChoices),
      params_max_tokens(kTokens),
      step_tokens(kStepTokens) {}

void EngineHistograms::Add(const EngineHistograms& other) {
  time_to_first_token_s.Add(other.time_to_first_token_s);
  inter_token_s.Add(other.inter_token_s);
  e2e_s.Add(other.e2e_s);
  queue_s.Add(other.queue_s);
  prefill_s.Add(other.prefill_s);
  decode_s.Add(other.decode_s);
  inference_s.Add(other.inference_s);
  prompt_tokens.Add(other.prompt_tokens);
  generation_tokens.Add(other.generation_tokens);
  params_n.Add(other.params_n);
  params_max_tokens.Add(other.params_max_tokens);
  step_tokens.Add(other.step_tokens);
}

}  // namespace tandem::engine
