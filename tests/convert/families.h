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

// What a test that goes over every golden model goes over. Under a sanitizer, which takes ten times
// as long and looks at the code rather than the numbers, one model for each way in which weights
// lie: in several files, with inputs first, under other names, with norms to be changed.
inline std::vector<std::string> ModelsOfEveryFamily() {
  if (!kIsSanitized) return tests::GoldenNames();
  return {"gemma2-tiny", "gpt2-tiny", "llama2-tiny-two-shards", "minigpt-tiny"};
}

}  // namespace tandem::convert
