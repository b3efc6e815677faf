#pragma once

#include <string>

namespace tandem::server {

// `prefix` and 32 random hexadecimal digits.
std::string NewBatchId(const std::string& prefix);

}  // namespace tandem::server
