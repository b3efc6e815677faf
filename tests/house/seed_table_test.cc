#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

#include "tests/house/text_of.h"
#include "tests/support/paths.h"

// training/SEEDS.md names the test of each promise; every named test must exist.

namespace tandem::tests {
namespace {

namespace fs = std::filesystem;

// "Suite.Name" of every TEST, TEST_F and TEST_P; "e2e/file.py test_name" of every Python test.
std::set<std::string> TestsOfTheRepository() {
  static const std::regex kTest(R"((?:^|\n)TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\))");
  static const std::regex kPythonTest(R"(\n    def (test_\w+)\()");
  std::set<std::string> names;
  const auto collect = [&](const std::string& text, const std::regex& pattern, const auto& name) {
    for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it) {
      names.insert(name(*it));
    }
  };
  for (const auto& entry : fs::recursive_directory_iterator(SourceDir() / "tests")) {
    const std::string file = entry.path().filename();
    if (file.ends_with("_test.cc")) {
      collect(TextOf(entry.path()), kTest,
              [](const std::smatch& m) { return m.str(1) + "." + m.str(2); });
    } else if (file.ends_with("_test.py")) {
      collect(TextOf(entry.path()), kPythonTest,
              [&](const std::smatch& m) { return "e2e/" + file + " " + m.str(1); });
    }
  }
  return names;
}

TEST(SeedTable, EveryTestItNamesExists) {
  const std::string table = TextOf(SourceDir() / "training/SEEDS.md");
  const std::set<std::string> tests = TestsOfTheRepository();
  ASSERT_GT(tests.size(), 100u);
  // Names in backticks that look like a test or a test script.
  static const std::regex kNamed(R"(`([A-Z]\w+\.[A-Z]\w+|e2e/\w+\.py test_\w+|tests/[\w/.]+)`)");
  int named = 0;
  for (std::sregex_iterator it(table.begin(), table.end(), kNamed), end; it != end; ++it) {
    const std::string name = it->str(1);
    ++named;
    if (name.starts_with("tests/")) {
      EXPECT_TRUE(fs::exists(SourceDir() / name)) << name;
    } else {
      EXPECT_TRUE(tests.contains(name)) << name;
    }
  }
  EXPECT_GT(named, 50);
}

// Every row of the inventory that is about training appears exactly once, itself or in a group.
TEST(SeedTable, EveryRowStandsThereOnce) {
  const std::string table = TextOf(SourceDir() / "training/SEEDS.md");
  static const std::regex kRow(R"(\n- ([A-E]\d+(?:, [A-E]\d+)*): )");
  std::multiset<std::string> rows;
  for (std::sregex_iterator it(table.begin(), table.end(), kRow), end; it != end; ++it) {
    const std::string cell = it->str(1);
    static const std::regex kName(R"([A-E]\d+)");
    for (std::sregex_iterator row(cell.begin(), cell.end(), kName), last; row != last; ++row) {
      rows.insert(row->str());
    }
  }
  const std::pair<char, int> seeds[] = {{'A', 35}, {'B', 19}, {'C', 29}, {'D', 15}, {'E', 12}};
  for (const auto& [seed, count] : seeds) {
    for (int i = 1; i <= count; ++i) {
      const std::string row = seed + std::to_string(i);
      EXPECT_EQ(rows.count(row), 1u) << row;
    }
  }
}

}  // namespace
}  // namespace tandem::tests
