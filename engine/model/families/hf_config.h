#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "engine/base/ids.h"
#include "engine/model/config.h"
#include "engine/model/weights.h"

namespace tandem::engine {

// What the families' config.json files have in common. All throw kDataLoss / kUnsupported naming
// `source` and the field; null counts as absent, as in transformers.

// Upper bounds of what a config may claim, far above any known model: they keep products of two
// sizes within int64 and a hostile number from becoming an allocation.
inline constexpr int64_t kMaxLayers = 1024;
inline constexpr int64_t kMaxWidth = 1 << 18;  // hidden_dim, ffn_dim, heads * head_dim
inline constexpr int64_t kMaxHeads = 4096;
inline constexpr int64_t kMaxHeadDim = 1024;
inline constexpr int64_t kMaxVocab = 1 << 22;
inline constexpr int64_t kMaxContext = 1 << 22;

// `eos_token_id`: an int, a list of ints, or nothing.
std::vector<TokenId> ParseTokenList(const nlohmann::ordered_json& config, const char* field,
                                    int64_t vocab_size, const std::vector<TokenId>& fallback,
                                    const std::string& source);
// `bos_token_id`; -1 when there is none.
TokenId FirstToken(const std::vector<TokenId>& tokens);
nlohmann::ordered_json TokenListToJson(const std::vector<TokenId>& tokens);

struct RopeConfig {
  double theta = 10000;
  RopeScaling scaling;
};
// `rope_theta` with `rope_scaling`, or the `rope_parameters` of transformers 5. Knows the types
// "default" and "llama3"; others are kUnsupported.
RopeConfig ParseRope(const nlohmann::ordered_json& config, double default_theta,
                     const std::string& source);
nlohmann::ordered_json RopeScalingToJson(const RopeScaling& scaling);
// theta^(-2i/head_dim), with Llama 3.1's scaling (transformers' _compute_llama3_parameters).
std::vector<double> ScaledRopeFrequencies(int64_t head_dim, double theta,
                                          const RopeScaling& scaling);

// The double that prints as the float does: 1e-05, not 9.99999974737875e-06.
double ShortestDouble(float value);

[[noreturn]] void ThrowUnsupported(const std::string& source, const std::string& what);

// Weights as the checkpoints of transformers hold them.
WeightSpec MatrixSpec(std::string name, int64_t n, int64_t k);
WeightSpec EmbeddingSpec(std::string name, int64_t n, int64_t k);
WeightSpec VectorSpec(std::string name, int64_t n);

// Hands out the weights of a model in list order: a family names them once when it lists them and
// once, in the same order, when it takes them.
class WeightCursor {
 public:
  explicit WeightCursor(std::span<const Weight> weights) : weights_(weights) {}
  const Weight& Take();
  bool at_end() const { return next_ == weights_.size(); }

 private:
  std::span<const Weight> weights_;
  size_t next_ = 0;
};

}  // namespace tandem::engine
