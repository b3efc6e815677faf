#pragma once

namespace tandem::tests {

// Whether a sanitizer checks this program. Sanitizers find faults of code and take ten times as
// long, so tests that compare numbers may give them fewer or smaller inputs that run the same code.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace tandem::tests
