#include "tests/support/sources.h"

#include <algorithm>
#include <fstream>
#include <regex>

#include "tests/support/paths.h"

namespace tandem::tests {

namespace fs = std::filesystem;

std::vector<std::string> Sources() {
  const fs::path root = SourceDir();
  std::vector<std::string> files;
  for (const char* top : {"server", "engine", "training", "convert", "config", "bench", "tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      const std::string extension = entry.path().extension().string();
      if (extension == ".h" || extension == ".cc" || extension == ".inc") {
        files.push_back(fs::relative(entry.path(), root).string());
      }
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<Include> IncludesOf(const fs::path& file) {
  static const std::regex kPattern(R"re(^\s*#\s*include\s*(<([^>]+)>|"([^"]+)"))re");
  std::vector<Include> includes;
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    std::smatch match;
    if (!std::regex_search(line, match, kPattern)) continue;
    includes.push_back({match[2].matched ? match[2].str() : match[3].str(), match[3].matched});
  }
  return includes;
}

std::string FolderOf(const std::string& file) { return fs::path(file).parent_path().string(); }

bool IsHeader(const std::string& file) { return file.ends_with(".h"); }

}  // namespace tandem::tests
