#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "engine/base/error.h"

// TANDEM_CHECK finds our own bugs in cold code. It throws kInternal and is always on.
#define TANDEM_CHECK(condition)                                                            \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      throw ::tandem::Error(::tandem::ErrorCode::kInternal,                                \
                            std::string("check failed: " #condition " at " __FILE__ ":") + \
                                std::to_string(__LINE__));                                 \
    }                                                                                      \
  } while (false)

// TANDEM_DCHECK is for hot code: debug builds only.
#ifdef NDEBUG
#define TANDEM_DCHECK(condition) \
  do {                           \
  } while (false)
#else
#define TANDEM_DCHECK(condition) TANDEM_CHECK(condition)
#endif

namespace tandem {

// Checked arithmetic for sizes that come from outside. Throws kDataLoss naming `what`.
template <class T>
T CheckedMul(T a, T b, const char* what) {
  T out;
  if (__builtin_mul_overflow(a, b, &out)) {
    throw Error(ErrorCode::kDataLoss, std::string(what) + " overflows: " + std::to_string(a) +
                                          " times " + std::to_string(b));
  }
  return out;
}

template <class T>
T CheckedAdd(T a, T b, const char* what) {
  T out;
  if (__builtin_add_overflow(a, b, &out)) {
    throw Error(ErrorCode::kDataLoss, std::string(what) + " overflows: " + std::to_string(a) +
                                          " plus " + std::to_string(b));
  }
  return out;
}

// Rounds up to a multiple. REQUIRES: multiple > 0 and the result fits.
template <class T>
constexpr T RoundUp(T value, T multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace tandem
