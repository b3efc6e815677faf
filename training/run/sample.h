#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/model/adapter.h"
#include "engine/model/model.h"
#include "engine/ops/ops_context.h"
#include "engine/sampling/sampling_params.h"
#include "engine/tokenizer/tokenizer.h"
#include "training/spec/spec.h"

namespace tandem::training {

// How a run's samples are drawn, as a request to the server would say it.
engine::SamplingParams SamplingOf(const SampleSection& section);

// Continues `prompt` by up to max_tokens tokens with the serving path (ModelRunner over a KV
// cache, the server's sampler): what a user of the model as it stands would get. Deterministic for
// a seed; stops at an end-of-text token. `adapter` may be null.
std::vector<TokenId> Generate(const std::shared_ptr<const engine::Model>& model,
                              engine::OpsContext& ops, const std::vector<TokenId>& prompt,
                              const SampleSection& options,
                              const engine::Adapter* adapter = nullptr);

}  // namespace tandem::training
