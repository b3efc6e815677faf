#include "server/terminal/line_history.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using Entries = std::vector<std::string>;

std::string ContentOf(const fs::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST(LineHistory, EntriesSurviveInAPrivateFile) {
  const tests::TemporaryDir dir;
  const fs::path file = dir.path() / "state" / "history";
  {
    LineHistory history(file);
    history.Add("one");
    history.Add("two\nlines \"quoted\" 你");
  }
  EXPECT_EQ(LineHistory(file).entries(), (Entries{"one", "two\nlines \"quoted\" 你"}));
  EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(fs::status(file.parent_path()).permissions(), fs::perms::owner_all);
}

TEST(LineHistory, AFileThatOthersMayReadBecomesPrivate) {
  const tests::TemporaryDir dir;
  const fs::path file = dir.path() / "history";
  std::ofstream(file) << "\"old\"\n";
  fs::permissions(file, fs::perms(0644));
  EXPECT_EQ(LineHistory(file).entries(), Entries{"old"});
  EXPECT_EQ(fs::status(file).permissions(), fs::perms(0600));
}

TEST(LineHistory, RepetitionsAndEmptyTextsAreLeftOut) {
  LineHistory history;
  history.Add("a");
  history.Add("a");
  history.Add("");
  history.Add("b");
  history.Add("a");
  EXPECT_EQ(history.entries(), (Entries{"a", "b", "a"}));
}

TEST(LineHistory, LinesThatAreNoJsonStringsAreSkipped) {
  const tests::TemporaryDir dir;
  const fs::path file = dir.path() / "history";
  std::ofstream(file) << "\"a\"\nnonsense\n{\"b\": 1}\n\xff\n\"c\"\n\"unfinished";
  EXPECT_EQ(LineHistory(file).entries(), (Entries{"a", "c"}));
}

TEST(LineHistory, IsBoundedInMemoryAndOnDisk) {
  const tests::TemporaryDir dir;
  const fs::path file = dir.path() / "history";
  {
    LineHistory history(file);
    for (size_t i = 0; i < 3 * LineHistory::kMaxEntries; ++i) history.Add(std::to_string(i));
    EXPECT_EQ(history.entries().size(), LineHistory::kMaxEntries);
  }
  const size_t before = ContentOf(file).size();
  const LineHistory history(file);
  EXPECT_EQ(history.entries().size(), LineHistory::kMaxEntries);
  EXPECT_EQ(history.entries().back(), "2999");
  EXPECT_LT(ContentOf(file).size(), before / 2);
}

TEST(LineHistory, ALinkOrADirectoryIsNotUsedAndTheReasonIsKnown) {
  const tests::TemporaryDir dir;
  const fs::path target = dir.path() / "target";
  std::ofstream(target) << "\"secret\"\n";
  fs::create_symlink(target, dir.path() / "link");
  LineHistory linked(dir.path() / "link");
  EXPECT_FALSE(linked.fault().empty());
  linked.Add("typed");
  EXPECT_EQ(ContentOf(target), "\"secret\"\n");
  EXPECT_EQ(linked.entries(), Entries{"typed"});

  const LineHistory directory(dir.path());
  EXPECT_FALSE(directory.fault().empty());
}

}  // namespace
}  // namespace tandem::server
