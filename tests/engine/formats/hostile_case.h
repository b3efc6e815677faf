#pragma once

#include <string>
#include <vector>

#include "engine/base/error.h"

namespace tandem::engine {

// Bytes that a reader must refuse.
struct HostileCase {
  const char* what;
  std::string bytes;
  std::vector<std::string> message;  // parts of the message
  ErrorCode code = ErrorCode::kDataLoss;
};

}  // namespace tandem::engine
