#pragma once

#include <string>
#include <vector>

#include "tests/support/golden.h"
#include "tests/support/sanitized.h"

namespace tandem::convert {

using tests::kIsSanitized;

// The golden models for tests that cover every family. Sanitizers get one model per layout of
// weights: several files, inputs first, other names, changed norms.
inline std::vector<std::string> ModelsOfEveryFamily() {
  if (!kIsSanitized) return tests::GoldenNames();
  return {"gemma2-tiny", "gpt2-tiny", "llama2-tiny-two-shards", "minigpt-tiny"};
}

}  // namespace tandem::convert
