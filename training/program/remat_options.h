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

struct RematOptions {
  RematPolicy policy = RematPolicy::kNone;
  int64_t every = 2;      // kEveryK
  int64_t max_bytes = 0;  // kAuto: what the arena may have
};

// All of them, in the order of RematPolicy.
const std::vector<std::string_view>& RematPolicyNames();
std::string_view RematPolicyName(RematPolicy policy);
std::optional<RematPolicy> FindRematPolicy(std::string_view name);

}  // namespace tandem::training
