#pragma once

#include <cstdlib>

namespace tandem::tests {

// Whether qemu emulates this program's CPU: tests/arm64/run sets the variable. A test then takes
// many times as long, so tests of every family in every format take one format by turns.
inline bool IsEmulated() { return std::getenv("TANDEM_EMULATED") != nullptr; }

}  // namespace tandem::tests
