#pragma once

#include <string>
#include <vector>

#include "tests/support/golden.h"

namespace tandem::convert {

#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

// The golden models for tests that cover every family. Sanitizers are ten times as slow and check
// code, not numbers. They get one model per layout of weights: several files, inputs first, other
// names, changed norms.
inline std::vector<std::string> ModelsOfEveryFamily() {
  if (!kIsSanitized) return tests::GoldenNames();
  return {"gemma2-tiny", "gpt2-tiny", "llama2-tiny-two-shards", "minigpt-tiny"};
}

}  // namespace tandem::convert
