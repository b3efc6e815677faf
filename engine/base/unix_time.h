#pragma once

#include <chrono>
#include <cstdint>

namespace tandem {

// Time since 1970-01-01 00:00 UTC by the system's clock, which may jump. Whole seconds, rounded
// down.
inline int64_t UnixNow() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

// The same in milliseconds.
inline int64_t UnixNowMs() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

// The same in seconds with their fraction.
inline double UnixNowExact() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace tandem
