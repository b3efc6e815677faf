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

// The section as sampling parameters of a server request.
engine::SamplingParams SamplingOf(const SampleSection& section);

// Continues `prompt` by up to max_tokens tokens through the serving path: ModelRunner, a KV cache
// and the server's sampler. Deterministic for a seed. Stops at an end-of-text token. `adapter` may
// be null.
std::vector<TokenId> Generate(const std::shared_ptr<const engine::Model>& model,
                              engine::OpsContext& ops, const std::vector<TokenId>& prompt,
                              const SampleSection& options,
                              const engine::Adapter* adapter = nullptr);

}  // namespace tandem::training
