#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/house/include_rules.h"
#include "tests/support/paths.h"
#include "tests/support/sources.h"

// Checks the shape of the tree: every folder has its row, no folder depends on itself, every type
// name has one meaning.

namespace tandem::tests {
namespace {

// Folders that hold sources, outside tests.
std::set<std::string> SourceFolders() {
  std::set<std::string> folders;
  for (const std::string& file : Sources()) {
    if (!file.starts_with("tests/")) folders.insert(FolderOf(file));
  }
  return folders;
}

TEST(Structure, EveryFolderOfSourcesHasARow) {
  std::set<std::string> rows;
  for (const FolderRule& rule : kFolderRules) rows.emplace(rule.folder);

  for (const std::string& folder : SourceFolders()) {
    EXPECT_TRUE(rows.contains(folder)) << folder << " has no row in tests/house/include_rules.h";
  }
}

TEST(Structure, EveryRowHasAFolderOfSources) {
  const std::set<std::string> folders = SourceFolders();

  for (const FolderRule& rule : kFolderRules) {
    if (rule.folder == "tests") continue;
    EXPECT_TRUE(folders.contains(std::string(rule.folder))) << rule.folder << " has no sources";
  }
}

TEST(Structure, EveryRowIsNeeded) {
  std::map<std::string, std::set<std::string>> used;
  for (const std::string& file : Sources()) {
    for (const Include& include : IncludesOf(SourceDir() / file)) {
      if (include.quoted) used[FolderOf(file)].insert(FolderOf(include.path));
    }
  }

  for (const FolderRule& rule : kFolderRules) {
    for (const std::string_view allowed : rule.may_include) {
      if (allowed == "*") continue;
      EXPECT_TRUE(used[std::string(rule.folder)].contains(std::string(allowed)))
          << rule.folder << " may include " << allowed << " and does not";
    }
  }
}

TEST(Structure, NoFolderIncludesItselfThroughOthers) {
  std::map<std::string, std::set<std::string>> edges;
  for (const std::string& file : Sources()) {
    if (file.starts_with("tests/")) continue;
    for (const Include& include : IncludesOf(SourceDir() / file)) {
      const std::string from = FolderOf(file), to = FolderOf(include.path);
      if (include.quoted && from != to) edges[from].insert(to);
    }
  }
  ASSERT_GT(edges.size(), 20u);

  enum class Mark { kNew, kOpen, kDone };
  std::map<std::string, Mark> marks;
  std::vector<std::string> path;
  const std::function<void(const std::string&)> visit = [&](const std::string& folder) {
    marks[folder] = Mark::kOpen;
    path.push_back(folder);
    for (const std::string& next : edges[folder]) {
      if (marks[next] == Mark::kOpen) {
        std::string cycle;
        for (auto it = std::find(path.begin(), path.end(), next); it != path.end(); ++it) {
          cycle += *it + " → ";
        }
        ADD_FAILURE() << "cycle: " << cycle << next;
      }
      if (marks[next] == Mark::kNew) visit(next);
    }
    path.pop_back();
    marks[folder] = Mark::kDone;
  };
  for (const std::string& folder : SourceFolders()) {
    if (marks[folder] == Mark::kNew) visit(folder);
  }
}

TEST(Structure, NoFolderHoldsMoreThan45Files) {
  std::map<std::string, int> files;
  for (const std::string& file : Sources()) {
    if (!file.starts_with("tests/")) ++files[FolderOf(file)];
  }

  for (const auto& [folder, count] : files) {
    // server/cli has one file per verb, as server/handlers has one per endpoint.
    EXPECT_LE(count, 45) << folder << " holds more than one subject: split it";
  }
}

// One name with two meanings in a namespace breaks the one-definition rule as soon as both headers
// meet.
// A document may name a script as a command.
TEST(Structure, EveryFileThatNamesAnInterpreterIsExecutable) {
  namespace fs = std::filesystem;
  size_t n_scripts = 0;
  for (const char* top : {"server", "engine", "training", "convert", "tests", "bench", "config"}) {
    for (const auto& entry : fs::recursive_directory_iterator(SourceDir() / top)) {
      if (!entry.is_regular_file()) continue;
      char start[2] = {};
      std::ifstream(entry.path(), std::ios::binary).read(start, sizeof start);
      if (start[0] != '#' || start[1] != '!') continue;
      ++n_scripts;
      EXPECT_NE(entry.status().permissions() & fs::perms::owner_exec, fs::perms::none)
          << fs::relative(entry.path(), SourceDir());
    }
  }
  EXPECT_GT(n_scripts, 50U);
}

TEST(Structure, ATypeNameOfANamespaceIsDefinedInOneFolder) {
  static const std::regex kNamespace(R"(^namespace (tandem[\w:]*) \{)");
  static const std::regex kType(
      R"(^(?:class|struct|enum class|union) (\w+)(?: final)?\s*(?::[^;]*)?\{)");
  std::map<std::string, std::set<std::string>> folders;
  for (const std::string& file : Sources()) {
    if (file.starts_with("tests/") || !IsHeader(file)) continue;
    std::ifstream stream(SourceDir() / file);
    std::string current;
    for (std::string line; std::getline(stream, line);) {
      std::smatch match;
      if (std::regex_search(line, match, kNamespace)) current = match[1];
      if (std::regex_search(line, match, kType)) {
        folders[current + "::" + match[1].str()].insert(FolderOf(file));
      }
    }
  }
  ASSERT_GT(folders.size(), 200u);

  for (const auto& [name, in] : folders) {
    std::string list;
    for (const std::string& folder : in) list += " " + folder;
    EXPECT_EQ(in.size(), 1u) << name << " is defined in" << list;
  }
}

}  // namespace
}  // namespace tandem::tests
