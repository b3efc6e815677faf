#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "tests/house/text_of.h"
#include "tests/support/paths.h"

// tests/SECURITY.md names, for each class of advisories, the tests that would catch it here.

namespace tandem::tests {
namespace {

namespace fs = std::filesystem;

bool DefinesTest(const std::string& source, const std::string& name) {
  return std::regex_search(source, std::regex(R"(TEST(?:_F|_P)?\(\s*\w+,\s*)" + name + R"(\))")) ||
         source.find("def " + name + "(") != std::string::npos;
}

// An entry of tests/SECURITY.md: "- **identifiers**: fault. Tests: names." on one or more lines.
struct Entry {
  std::string identifiers;
  std::string tests;
};

std::vector<Entry> ReadEntries() {
  std::vector<std::string> items;
  std::istringstream text(TextOf(SourceDir() / "tests/SECURITY.md"));
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("- **")) items.push_back(line);
    if (line.starts_with("  ") && !items.empty()) items.back() += line.substr(1);
  }
  static const std::regex kEntry(R"(- \*\*(.+)\*\*: (.+)\. Tests: (.+))");
  std::vector<Entry> entries;
  for (const std::string& item : items) {
    std::smatch parts;
    const bool is_entry = std::regex_match(item, parts, kEntry);
    EXPECT_TRUE(is_entry) << item;
    if (is_entry) entries.push_back({parts.str(1), parts.str(3)});
  }
  return entries;
}

// Checks the names in backticks of an entry: a file, then the tests that it defines. Returns how
// many tests or fuzz targets the entry names.
int CheckNames(const std::string& tests) {
  static const std::regex kQuoted("`([^`]+)`");
  std::string file;
  std::string source;
  int named = 0;
  for (std::sregex_iterator it(tests.begin(), tests.end(), kQuoted), end; it != end; ++it) {
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

TEST(SecurityTable, EveryEntryNamesATestAndEveryNamedTestExists) {
  const std::vector<Entry> entries = ReadEntries();
  for (const Entry& entry : entries) {
    SCOPED_TRACE(entry.identifiers);
    EXPECT_GT(CheckNames(entry.tests), 0) << "no test";
  }
  EXPECT_GT(entries.size(), 40U);
}

TEST(SecurityTable, NoAdvisoryStandsInTwoEntries) {
  std::string seen;
  for (const auto& [identifiers, tests] : ReadEntries()) {
    if (!identifiers.starts_with("CVE-")) continue;
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
