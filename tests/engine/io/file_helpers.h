#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {

using tests::TemporaryDir;

inline void WriteFile(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string FileText(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline std::vector<std::string> NamesIn(const std::filesystem::path& dir) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Runs `action`, which must throw an Error of `code` whose one-line message contains every part.
template <class Action>
void ExpectError(ErrorCode code, const std::vector<std::string>& parts, const Action& action) {
  try {
    action();
    ADD_FAILURE() << "no error; expected one about '" << (parts.empty() ? "" : parts[0]) << "'";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 1000u);
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos)
          << "expected '" << part << "' in: " << message;
    }
  }
}

}  // namespace tandem::engine
