#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "tests/house/text_of.h"
#include "tests/support/paths.h"

namespace tandem::tests {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxColumns = 120;

// Output of a model, which is not wrapped.
constexpr const char* kQuotedOutput = "config/models/tandem-stories/samples.md";

std::vector<fs::path> MarkdownFiles() {
  std::vector<fs::path> files = {SourceDir() / "README.md"};
  for (const char* top : {"server", "engine", "training", "convert", "tests", "bench", "config"}) {
    for (const auto& entry : fs::recursive_directory_iterator(SourceDir() / top)) {
      if (entry.path().extension() == ".md") files.push_back(entry.path());
    }
  }
  return files;
}

size_t ColumnsOf(const std::string& line) {
  size_t columns = 0;
  for (const char c : line) columns += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return columns;
}

TEST(Markdown, NoLineIsLongerThan120Columns) {
  size_t n_lines = 0;
  for (const fs::path& file : MarkdownFiles()) {
    const std::string name = fs::relative(file, SourceDir());
    if (name == kQuotedOutput) continue;
    std::istringstream text(TextOf(file));
    int number = 0;
    for (std::string line; std::getline(text, line); ++n_lines) {
      ++number;
      EXPECT_LE(ColumnsOf(line), kMaxColumns) << name << ":" << number;
    }
  }
  EXPECT_GT(n_lines, 1000U);
}

}  // namespace
}  // namespace tandem::tests
