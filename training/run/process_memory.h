#pragma once

#include <cstdint>
#include <string>

namespace tandem::training {

// A field of /proc/self/status in bytes, such as VmHWM, the process's peak; 0 where the system has
// none.
int64_t StatusBytes(const std::string& field);

}  // namespace tandem::training
