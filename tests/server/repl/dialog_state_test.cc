#include "server/repl/dialog_state.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

using Json = nlohmann::json;  // the order of members is of no importance

DialogState TwoTurns() {
  DialogState dialog;
  dialog.system = "Be brief.";
  dialog.settings.Set("temperature", "0.5");
  dialog.Add({"user", "one"});
  dialog.Add({"assistant", "two", "thought"});
  dialog.Add({"user", "three"});
  dialog.Add({"assistant", "four"});
  return dialog;
}

void WriteText(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file) << text;
}

TEST(DialogState, TheRequestHasTheSystemPromptTheMessagesAndTheSettings) {
  DialogState dialog = TwoTurns();
  dialog.settings.Set("think", "off");
  EXPECT_EQ(Json::parse(dialog.RequestJson("m")), Json::parse(R"({
      "model": "m", "temperature": 0.5, "chat_template_kwargs": {"enable_thinking": false},
      "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"},
                   {"role": "assistant", "content": "two", "reasoning_content": "thought"},
                   {"role": "user", "content": "three"},
                   {"role": "assistant", "content": "four"}]})"));
}

TEST(DialogState, AnAnswerOrATurnCanBeTakenBack) {
  DialogState dialog = TwoTurns();
  EXPECT_EQ(dialog.DropAnswer(), "three");
  EXPECT_EQ(dialog.messages().size(), 3u);
  EXPECT_EQ(dialog.DropAnswer(), std::nullopt);
  EXPECT_TRUE(dialog.DropTurn());
  EXPECT_TRUE(dialog.DropTurn());
  EXPECT_FALSE(dialog.DropTurn());
  EXPECT_EQ(dialog.system, "Be brief.");
}

TEST(DialogState, ASavedChatLoadsAsItWas) {
  const tests::TemporaryDir dir;
  TwoTurns().Save(dir / "chat.json", "m");
  DialogState loaded;
  loaded.Add({"user", "replaced"});
  loaded.Load(dir / "chat.json");
  EXPECT_EQ(loaded.RequestJson("m"), TwoTurns().RequestJson("m"));
}

TEST(DialogState, ASaveToJsonlAppendsATrainingExample) {
  const tests::TemporaryDir dir;
  TwoTurns().Save(dir / "chats.jsonl", "m");
  TwoTurns().Save(dir / "chats.jsonl", "m");
  std::ifstream file(dir / "chats.jsonl");
  int n_lines = 0;
  for (std::string line; std::getline(file, line); ++n_lines) {
    EXPECT_EQ(Json::parse(line).size(), 1u);
    EXPECT_EQ(Json::parse(line)["messages"].size(), 5u);
  }
  EXPECT_EQ(n_lines, 2);
}

TEST(DialogState, AFaultyFileChangesNothing) {
  const tests::TemporaryDir dir;
  const std::filesystem::path file = dir / "chat.json";
  DialogState dialog = TwoTurns();
  const std::string before = dialog.RequestJson("m");
  for (const char* text : {"", "nonsense", "[]", "{}", R"({"messages": 1})", R"({"messages": [1]})",
                           R"({"messages": [{"role": "king", "content": "x"}]})",
                           R"({"messages": [{"role": "user", "content": 5}]})",
                           R"({"messages": [], "settings": {"temperature": 9}})",
                           R"({"messages": [], "settings": {"unknown": 1}})"}) {
    WriteText(file, text);
    EXPECT_THROW(dialog.Load(file), Error) << text;
    EXPECT_EQ(dialog.RequestJson("m"), before) << text;
  }
  EXPECT_THROW(dialog.Load(dir / "missing"), Error);
}

TEST(DialogState, AMessageWithoutContentIsEmptyText) {
  const tests::TemporaryDir dir;
  WriteText(
      dir / "chat.json",
      R"({"messages": [{"role": "assistant", "content": null, "tool_calls": [{"id": "a"}]}]})");
  DialogState dialog;
  dialog.Load(dir / "chat.json");
  EXPECT_EQ(dialog.messages().at(0).content, "");
  EXPECT_EQ(dialog.messages().at(0).tool_calls, R"([{"id":"a"}])");
}

}  // namespace
}  // namespace tandem::server
