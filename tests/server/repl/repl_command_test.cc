#include "server/repl/repl_command.h"

#include <gtest/gtest.h>

#include "engine/base/attempt.h"

namespace tandem::server {
namespace {

std::string FaultOfCommand(const std::string& line) {
  const auto error = ErrorOf([&] { ParseReplCommand(line); });
  return error ? error->what() : "";
}

TEST(ReplCommand, TheArgumentIsTheRestOfTheLine) {
  const ReplCommand command = ParseReplCommand("/system  Be brief.\nAnd kind. ");
  EXPECT_EQ(command.kind, ReplCommand::Kind::kSystem);
  EXPECT_EQ(command.argument, "Be brief.\nAnd kind.");
  EXPECT_EQ(ParseReplCommand("/bye").kind, ReplCommand::Kind::kExit);
  EXPECT_EQ(ParseReplCommand("/regen ").kind, ReplCommand::Kind::kRegenerate);
}

TEST(ReplCommand, AMisspeltCommandSuggestsTheNearest) {
  EXPECT_NE(FaultOfCommand("/sytem x").find("did you mean /system?"), std::string::npos);
  EXPECT_NE(FaultOfCommand("/regn").find("did you mean /regen?"), std::string::npos);
  EXPECT_EQ(FaultOfCommand("/usr/local/share/x").find("did you mean"), std::string::npos);
  EXPECT_NE(FaultOfCommand("/usr/local/share/x").find("a space before the slash"),
            std::string::npos);
}

TEST(ReplCommand, AMissingOrSuperfluousArgumentShowsTheForm) {
  EXPECT_EQ(FaultOfCommand("/save"), "use it as /save FILE");
  EXPECT_EQ(FaultOfCommand("/undo 3"), "use it as /undo");
}

TEST(ReplCommand, CompletesCommandsAndSettings) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(CompleteReplCommand("/s"), (Words{"/system", "/set", "/show", "/save"}));
  EXPECT_EQ(CompleteReplCommand("/set top"), (Words{"/set top_p", "/set top_k"}));
  EXPECT_EQ(CompleteReplCommand("hello"), Words());
}

TEST(ReplCommand, TheHelpNamesEveryCommand) {
  for (const std::string& name : CompleteReplCommand("/")) {
    EXPECT_NE(ReplHelp().find("  " + name + " "), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace tandem::server
