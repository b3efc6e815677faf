#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tandem::tests {

struct Include {
  std::string path;
  bool quoted = false;
};

// Every .h, .cc and .inc file of the repository: sorted paths relative to its root.
std::vector<std::string> Sources();

std::vector<Include> IncludesOf(const std::filesystem::path& file);

std::string FolderOf(const std::string& file);
bool IsHeader(const std::string& file);

}  // namespace tandem::tests
