#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::training {

// The tensors of a decoder layer that are kept for the backward pass. The others are recomputed
// with the same bits (remat.cc). Names follow MaxText (`remat_policy`).
enum class RematPolicy : uint8_t {
  kNone,                // everything that the backward pass reads
  kMinimalWithContext,  // results of matrix products and of attention
  kMinimal,             // results of matrix products
  kSaveDotExceptMlpWi,  // … except those of the first half of the MLP
  kSaveDotExceptMlp,    // … except the MLP's
  kSaveDotWithContextExceptMlp,
  kSaveQkvProj,  // queries, keys and values
  kSaveOutProj,  // attention's output projection
  kFull,         // the layer's input
  kEveryK,       // the input of every k-th layer
  kAuto,         // as much as fits in `max_bytes`
};

// The data of an activation function that is kept for the backward pass; it does not change a bit
// of the gradients (activation_save.cc).
enum class ActivationSave : uint8_t {
  kPlain,       // its input, and its output if a gradient reads it
  kReluMask1,   // for ReLU one bit per element; only if no gradient reads the output
  kReluSparse,  // … and the output's non-zero elements
  kRecompute,   // nothing: repeats the matrix products before it
};

struct RematOptions {
  RematPolicy policy = RematPolicy::kNone;
  int64_t every = 2;      // kEveryK
  int64_t max_bytes = 0;  // kAuto: limit of activations, packed ReLU results included
  ActivationSave save = ActivationSave::kPlain;
  // Tokens per chunk of a feed-forward layer; 0: all. Weight gradients are summed over blocks of
  // 1,024 tokens, so a multiple of 1,024 does not change a bit.
  int64_t seq_chunk = 0;
};

// All names, in the order of RematPolicy.
const std::vector<std::string_view>& RematPolicyNames();
std::string_view RematPolicyName(RematPolicy policy);
std::optional<RematPolicy> FindRematPolicy(std::string_view name);
std::string_view ActivationSaveName(ActivationSave save);

}  // namespace tandem::training
