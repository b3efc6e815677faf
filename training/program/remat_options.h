#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::training {

// What of a decoder layer is kept from the forward to the backward pass; the rest is computed a
// second time, with the same bits (remat.cc). Names as in MaxText (`remat_policy`).
enum class RematPolicy : uint8_t {
  kNone,                // all that the backward pass reads
  kMinimalWithContext,  // results of matrix products, and attention's
  kMinimal,             // results of matrix products
  kSaveDotExceptMlpWi,  // … but those of the first half of the MLP
  kSaveDotExceptMlp,    // … but the MLP's
  kSaveDotWithContextExceptMlp,
  kSaveQkvProj,  // queries, keys and values
  kSaveOutProj,  // attention's output projection
  kFull,         // the layer's input
  kEveryK,       // the input of every k-th layer
  kAuto,         // as much as fits `max_bytes`
};

// What of an activation function is kept for the backward pass; gradients have the same bits
// (activation_save.cc).
enum class ActivationSave : uint8_t {
  kPlain,       // what it reads, and what it gives where that is read
  kReluMask1,   // of ReLU one bit per element; exact where no gradient reads what it gives
  kReluSparse,  // … and what it gives where that is not zero
  kRecompute,   // neither: the matrix products before it are done a second time
};

struct RematOptions {
  RematPolicy policy = RematPolicy::kNone;
  int64_t every = 2;      // kEveryK
  int64_t max_bytes = 0;  // kAuto: what the arena may have
  ActivationSave save = ActivationSave::kPlain;
  // Tokens that go through a feed-forward layer at once; 0: all. A multiple of 1,024, over which
  // weight gradients are summed in any case, moves no bit.
  int64_t seq_chunk = 0;
};

// All of them, in the order of RematPolicy.
const std::vector<std::string_view>& RematPolicyNames();
std::string_view RematPolicyName(RematPolicy policy);
std::optional<RematPolicy> FindRematPolicy(std::string_view name);
std::string_view ActivationSaveName(ActivationSave save);

}  // namespace tandem::training
