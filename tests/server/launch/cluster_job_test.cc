#include <signal.h>

#include <thread>

#include "server/launch/cluster_runner.h"
#include "server/launch/shell_words.h"
#include "server/launch/tool.h"
#include "tests/server/jobs/job_supervisor_fixture.h"

namespace tandem::server {
namespace {

class ClusterJobTest : public testing::Test {
 protected:
  ClusterJobTest() { std::filesystem::create_directory(dir_ / "job"); }
  JobStart StartOf() const { return {"job", "train", dir_ / "job", dir_ / "job" / "log.txt"}; }

  TemporaryDir dir_;
};

TEST_F(ClusterJobTest, TheExitOfTheVerbIsWrittenAndReturned) {
  WriteScript(dir_ / "script", {"echo \"$@\"", "exit 65"});

  EXPECT_EQ(RunClusterJob(StartOf(), dir_ / "script"), 65);

  const std::optional<ExitStatus> exit = ReadExitFile(dir_ / "job");
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->kind, ExitStatus::Kind::kCode);
  EXPECT_EQ(exit->value, 65);
  EXPECT_EQ(FileText(dir_ / "job" / "log.txt"), "train --job " + (dir_ / "job").string() + "\n");
}

TEST_F(ClusterJobTest, ASignalToTheLauncherReachesTheVerb) {
  WriteScript(dir_ / "script",
              {"trap 'exit 75' TERM", ": > \"$3/started\"", "while :; do sleep 0.01; done"});
  // Blocked in every thread, as in a program with one.
  sigset_t term;
  ::sigemptyset(&term);
  ::sigaddset(&term, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &term, nullptr);
  std::thread sender([&] {
    EXPECT_TRUE(WaitFor([&] { return std::filesystem::exists(dir_ / "job" / "started"); }));
    ::kill(::getpid(), SIGTERM);
  });

  EXPECT_EQ(RunClusterJob(StartOf(), dir_ / "script"), 75);
  sender.join();
}

TEST_F(ClusterJobTest, AVerbThatCannotStartLeavesAnExitToo) {
  EXPECT_EQ(RunClusterJob(StartOf(), dir_ / "gone"), 74);
  EXPECT_EQ(ReadExitFile(dir_ / "job")->value, 74);
  EXPECT_NE(FileText(dir_ / "job" / "log.txt").find("could not start"), std::string::npos);
}

TEST_F(ClusterJobTest, ABrokenExitFileIsNoExit) {
  for (const char* text : {"", "{", "[1]", "nonsense"}) {
    WriteFile(dir_ / "job" / "exit.json", text);
    EXPECT_FALSE(ReadExitFile(dir_ / "job")) << text;
  }
  WriteFile(dir_ / "job" / "exit.json", R"({"code":"x"})");
  EXPECT_EQ(ReadExitFile(dir_ / "job")->kind, ExitStatus::Kind::kUnknown);
}

TEST(RunTool, PassesArgumentsInputAndBothStreams) {
  const ToolResult done =
      RunTool({"sh", "-c", "cat; echo \"$1\" >&2; exit 3", "sh", "a 'b' $(c)"}, "input");

  EXPECT_EQ(done.code, 3);
  EXPECT_EQ(done.out, "input");
  EXPECT_EQ(done.error, "a 'b' $(c)\n");
  EXPECT_EQ(done.Reason(), "a 'b' $(c)");
}

TEST(RunTool, EndsAToolThatHangsAndNamesAMissingOne) {
  EXPECT_THROW(RunTool({"sleep", "60"}, "", milliseconds(50)), Error);
  EXPECT_THROW(RunTool({"sh", "-c", "exec >&- 2>&-; sleep 60"}, "", milliseconds(50)), Error);
  try {
    RunTool({"tandem-no-such-tool"});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  }
}

TEST(RunTool, LargeOutputIsCutAndUnreadInputIsNoFault) {
  const ToolResult done =
      RunTool({"sh", "-c", "head -c 3000000 /dev/zero"}, std::string(200000, 'x'));

  EXPECT_EQ(done.code, 0);
  EXPECT_EQ(done.out.size(), size_t{1} << 20);
}

TEST(ShellWords, AWordStaysOneWord) {
  const std::string hostile = "a 'b' \"c\" $(d) `e` \\f; *";

  const ToolResult done = RunTool({"sh", "-c", "printf %s " + ShellWord(hostile)});

  EXPECT_EQ(done.out, hostile);
  EXPECT_THROW(ShellWord("a\nb"), Error);
}

}  // namespace
}  // namespace tandem::server
