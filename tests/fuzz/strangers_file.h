#pragma once

#include <cstdlib>
#include <functional>
#include <string_view>

#include "engine/base/error.h"

namespace tandem::engine {

inline void Require(bool truth) {
  if (!truth) std::abort();
}

// Runs a reader of an untrusted file: it may throw only Error, with one short line.
inline void ReadStrangersFile(const std::function<void()>& read) {
  try {
    read();
  } catch (const Error& error) {
    const std::string_view message = error.what();
    // The longest ones list all supported architectures.
    Require(message.size() < 4000 && message.find('\n') == std::string_view::npos);
    Require(error.code() == ErrorCode::kDataLoss || error.code() == ErrorCode::kUnsupported ||
            error.code() == ErrorCode::kInvalidArgument);
  }
}

}  // namespace tandem::engine
