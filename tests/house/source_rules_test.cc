#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tests/support/paths.h"

// Functions that the program's sources must not call; tests/SECURITY.md gives the reasons.

namespace tandem::tests {
namespace {

namespace fs = std::filesystem;

// Calls `visit` with each line of the program's sources, without its comment.
void ForEachLine(
    const std::function<void(const std::string& file, const std::string& line)>& visit) {
  for (const char* room : {"engine", "server", "training", "convert", "config"}) {
    for (const auto& entry : fs::recursive_directory_iterator(SourceDir() / room)) {
      const std::string extension = entry.path().extension();
      if (extension != ".cc" && extension != ".h" && extension != ".inc") continue;
      const std::string name = fs::relative(entry.path(), SourceDir());
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) {
        const size_t comment = line.find("//");
        visit(name, comment == std::string::npos ? line : line.substr(0, comment));
      }
    }
  }
}

bool IsWordCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// Whether the line calls this function: "name(" that is not the end of a longer name.
bool Calls(const std::string& line, const std::string& name) {
  const std::string call = name + "(";
  for (size_t at = line.find(call); at != std::string::npos; at = line.find(call, at + 1)) {
    if (at == 0 || !IsWordCharacter(line[at - 1])) return true;
  }
  return false;
}

// The names of the files that call one of the functions.
std::set<std::string> CallersOf(const std::vector<std::string>& functions) {
  std::set<std::string> files;
  ForEachLine([&](const std::string& file, const std::string& line) {
    for (const std::string& function : functions) {
      if (Calls(line, function)) files.insert(fs::path(file).filename());
    }
  });
  return files;
}

using Names = std::set<std::string>;

TEST(SourceRules, NoSourceRunsACommandOrLoadsCode) {
  EXPECT_EQ(CallersOf({"system", "popen", "execl", "execle", "execlp", "execv", "execve", "execvpe",
                       "fexecve", "vfork"}),
            Names());
  // `tandem launch` becomes mpirun, so that signals and the exit code are those of the launcher.
  EXPECT_EQ(CallersOf({"execvp"}), Names({"launch.cc"}));
  // The plug-in for MPI lies beside the program. A rank is watched by its own parent.
  // A spec of the command line may name a library with a loss; the API refuses the key.
  EXPECT_EQ(CallersOf({"dlopen"}), Names({"loss_library.cc", "mpi_transport.cc"}));
  EXPECT_EQ(CallersOf({"fork"}), Names({"rank_guard.cc"}));
  // A job is this program, started without a shell. Tools of a scheduler get fixed arguments.
  EXPECT_EQ(CallersOf({"posix_spawn"}), Names({"child_process.cc"}));
  EXPECT_EQ(CallersOf({"posix_spawnp"}), Names({"tool.cc"}));
}

TEST(SourceRules, NoCheckIsAnAssert) { EXPECT_EQ(CallersOf({"assert"}), Names()); }

// engine/base/attempt.h holds the borders that all rooms share.
TEST(SourceRules, TheServerCatchesExceptionsOnlyAtSharedBorders) {
  std::set<std::string> files;
  ForEachLine([&](const std::string& file, const std::string& line) {
    if (file.starts_with("server/") && line.find("} catch (") != std::string::npos) {
      files.insert(file);
    }
  });
  EXPECT_EQ(files, std::set<std::string>());
}

// Without a viewer the registry finds the models of other keys (--isolate-keys).
TEST(SourceRules, AHandlerThatRunsAModelFindsItForItsViewer) {
  std::set<std::string> finding;
  std::set<std::string> viewing;
  ForEachLine([&](const std::string& file, const std::string& line) {
    if (!file.starts_with("server/handlers/")) return;
    if (line.find("models.Find(") != std::string::npos) finding.insert(file);
    if (line.find("ViewerOf(") != std::string::npos) viewing.insert(file);
  });
  EXPECT_GE(finding.size(), 4u);
  for (const std::string& file : finding) EXPECT_TRUE(viewing.contains(file)) << file;
}

TEST(SourceRules, OnlyTheHubOpensConnections) {
  EXPECT_EQ(CallersOf({"connect", "async_connect"}), Names({"net_stream.cc"}));
}

TEST(SourceRules, OnlyTheHttpServerListens) {
  EXPECT_EQ(CallersOf({"listen"}), Names({"http_server.cc"}));
}

}  // namespace
}  // namespace tandem::tests
