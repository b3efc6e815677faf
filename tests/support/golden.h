#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/ids.h"
#include "engine/formats/safetensors/safetensors.h"

namespace tandem::tests {

// tests/golden/README.md describes these numbers and their tolerances.
struct GoldenSequence {
  std::vector<TokenId> input_ids;
  std::vector<TokenId> greedy_ids;  // continue input_ids
  std::vector<double> greedy_logprobs;
  double logits_max_abs = 0;
  std::vector<float> logits;  // [input_ids.size(), vocab]
};

struct GoldenTraining {
  std::vector<std::vector<TokenId>> input_ids;  // [batch][tokens], right-padded with 0
  std::vector<std::vector<int32_t>> attention_mask;
  std::vector<std::vector<int32_t>> labels;  // -100: not counted; labels[t + 1] follows token t
  double loss = 0;
  std::vector<double> losses;          // before steps 1, 2, 3 and after 3
  std::vector<double> gradient_norms;  // before clipping, steps 1, 2, 3
  int64_t counted_label_tokens = 0;
  std::vector<std::string> decayed_parameters;
  std::vector<std::string> zero_gradient_parameters;
};

struct Golden {
  std::string name;
  std::filesystem::path dir;          // the model itself
  std::filesystem::path adapter_dir;  // adapter of the model; empty: none
  std::vector<GoldenSequence> sequences;
  GoldenTraining training;
};

// Every model of tests/golden: a new folder joins every test over them.
std::vector<std::string> GoldenNames();
// The adapters among them, such as "gemma2-tiny/lora".
std::vector<std::string> AdapterGoldenNames();
// `name` is a model or an adapter.
Golden LoadGolden(std::string_view name);
// Opens one of its tensor files: "gradients", "adamw_3steps" or "forward".
engine::SafetensorsFile OpenGoldenTensors(const Golden& golden, std::string_view file);
// Any floating-point tensor, as f32.
std::vector<float> GoldenFloats(const engine::SafetensorsFile& file, std::string_view tensor);

// Data in $TANDEM_SHARED_DIR or ../shared, which only some machines have. Returns nothing if
// `relative` is absent; the test then skips and names it.
std::optional<std::filesystem::path> FindSharedData(std::string_view relative);

}  // namespace tandem::tests
