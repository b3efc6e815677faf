#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string>

#include "tests/support/paths.h"

// tests/SECURITY.md names, for each class of advisories, the tests that would catch it here.

namespace tandem::tests {
namespace {

namespace fs = std::filesystem;

std::string TextOf(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool DefinesTest(const std::string& source, const std::string& name) {
  return std::regex_search(source, std::regex(R"(TEST(?:_F|_P)?\(\s*\w+,\s*)" + name + R"(\))")) ||
         source.find("def " + name + "(") != std::string::npos;
}

// Checks the names in backticks of one table cell: a file, then the tests that it defines.
// Returns how many tests or fuzz targets the cell names.
int CheckCell(const std::string& cell) {
  static const std::regex kQuoted("`([^`]+)`");
  std::string file;
  std::string source;
  int named = 0;
  for (std::sregex_iterator it(cell.begin(), cell.end(), kQuoted), end; it != end; ++it) {
    const std::string name = it->str(1);
    if (name.ends_with("_test.cc") || name.ends_with("_test.py")) {
      file = name;
      source = TextOf(SourceDir() / "tests" / name);
      EXPECT_FALSE(source.empty()) << name << " does not exist";
      ++named;
    } else if (name.ends_with("_fuzz")) {
      EXPECT_TRUE(fs::exists(SourceDir() / "tests/fuzz" / (name + ".cc"))) << name;
      ++named;
    } else if (std::regex_match(name, std::regex(R"([A-Z]\w+|test_\w+)"))) {
      EXPECT_TRUE(DefinesTest(source, name)) << file << " has no test " << name;
      ++named;
    }
  }
  return named;
}

TEST(SecurityTable, EveryRowNamesATestAndEveryNamedTestExists) {
  std::istringstream table(TextOf(SourceDir() / "tests/SECURITY.md"));
  int rows = 0;
  for (std::string line; std::getline(table, line);) {
    static const std::regex kRow(R"(\| (.+) \| (.+) \| (.+) \|)");
    std::smatch row;
    if (!std::regex_match(line, row, kRow) || row.str(1) == "identifiers") continue;
    SCOPED_TRACE(row.str(1));
    EXPECT_GT(CheckCell(row.str(3)), 0) << "no test";
    ++rows;
  }
  EXPECT_GT(rows, 40);
}

TEST(SecurityTable, NoAdvisoryStandsInTwoRows) {
  std::istringstream table(TextOf(SourceDir() / "tests/SECURITY.md"));
  std::string seen;
  for (std::string line; std::getline(table, line);) {
    const std::string identifiers = line.substr(0, line.find(" | "));
    if (!identifiers.starts_with("| CVE-")) continue;
    static const std::regex kIdentifier(R"(CVE-\d+-\d+)");
    for (std::sregex_iterator it(identifiers.begin(), identifiers.end(), kIdentifier), end;
         it != end; ++it) {
      EXPECT_EQ(seen.find(it->str() + ";"), std::string::npos) << it->str();
      seen += it->str() + ";";
    }
  }
}

}  // namespace
}  // namespace tandem::tests
