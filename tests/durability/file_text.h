#pragma once

#include <filesystem>
#include <string>

#include "engine/io/atomic_write.h"

namespace tandem::tests {

inline std::string Text(const std::filesystem::path& path) {
  return engine::ReadWholeFile(path, 1 << 28);
}

}  // namespace tandem::tests
