// Files of rows: readable ones, and the messages of refusals.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_dir.h"
#include "tests/training/data/fault.h"
#include "training/data/example.h"
#include "training/data/json_rows.h"
#include "training/data/row_format.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

fs::path Fixture(const char* name) {
  return tests::SourceDir() / "tests" / "training" / "data" / "fixtures" / name;
}

TEST(JsonRows, NumbersLinesAsAnEditorDoes) {
  const auto rows = JsonRows::Of("\xEF\xBB\xBF{\"a\":1}\r\n\n  \n{\"a\":2}\n{\"a\":3}", "f");

  ASSERT_EQ(rows->size(), 3);
  EXPECT_EQ(rows->Read(1)["a"], 2);
  EXPECT_EQ(rows->Where(0), "line 1");
  EXPECT_EQ(rows->Where(1), "line 4");
  EXPECT_EQ(rows->Where(2), "line 5");
}

TEST(JsonRows, ReadsElementsOfAnArrayAsRows) {
  const auto rows = JsonRows::Of("\n[{\"a\":\"],[{\"},\n {\"a\":[1,{\"b\":2}]}\n]\n", "f");

  ASSERT_EQ(rows->size(), 2);
  EXPECT_EQ(rows->Read(0)["a"], "],[{");
  EXPECT_EQ(rows->Read(1)["a"][1]["b"], 2);
  EXPECT_EQ(rows->Where(1), "line 3");
}

TEST(JsonRows, ABraceThatNothingOpenedIsARowWithAFault) {
  const auto rows = JsonRows::Of("[{\"a\":1}, },\n}}, {\"a\":2}]", "f");

  ASSERT_EQ(rows->size(), 4);
  EXPECT_NE(Fault([&] { rows->Read(1); }), "");
  EXPECT_NE(Fault([&] { rows->Read(2); }), "");
  EXPECT_EQ(rows->Read(3)["a"], 2);
}

TEST(JsonRows, FindsEveryRowOfALongFile) {
  std::string text;
  for (int i = 0; i < 1000; ++i)
    text += "{\"n\":" + std::to_string(i) + "}\n" + (i % 7 ? "" : "\n");
  const auto rows = JsonRows::Of(text, "f");

  ASSERT_EQ(rows->size(), 1000);
  for (const int64_t i : {0, 1, 31, 32, 33, 511, 998, 999}) EXPECT_EQ(rows->Read(i)["n"], i);
}

TEST(JsonRows, SaysWhatAForeignFileIs) {
  EXPECT_EQ(Fault([] { JsonRows::Of("", "f"); }), "f: the file is empty");
  EXPECT_EQ(Fault([] { JsonRows::Of(" \n\n", "f"); }), "f: the file is empty");
  EXPECT_EQ(Fault([] { JsonRows::Of("[]", "f"); }), "f: the file has no rows");
  EXPECT_EQ(Fault([] { JsonRows::Of("PAR1....", "f"); }),
            "f: not JSON, the file is a Parquet file");
  EXPECT_NE(Fault([] { JsonRows::Of("\x1f\x8b....", "f"); }).find("gzip"), std::string::npos);
  EXPECT_NE(Fault([] { JsonRows::Of(std::string_view("{\0}", 3), "f"); }).find("binary"),
            std::string::npos);
}

TEST(JsonRows, RefusesALineTooLongWithoutReadingIt) {
  std::string text = "{\"a\":1}\n{\"a\":\"";
  text.append(JsonRows::kMaxRowBytes, 'x');
  text += "\"}\n{\"a\":3}\n";
  const auto rows = JsonRows::Of(text, "f");

  ASSERT_EQ(rows->size(), 3);
  EXPECT_NE(Fault([&] { rows->Read(1); }).find("the limit is 16777216"), std::string::npos);
  EXPECT_EQ(rows->Read(2)["a"], 3);
}

TEST(RowFormat, IsToldByColumns) {
  const auto format = [](const char* file) {
    return DetectFormat(*JsonRows::Open(Fixture(file)), {});
  };

  EXPECT_EQ(format("chat.jsonl"), RowFormat::kMessages);
  EXPECT_EQ(format("sharegpt.jsonl"), RowFormat::kShareGpt);
  EXPECT_EQ(format("alpaca.json"), RowFormat::kInstruction);
  EXPECT_EQ(format("prompt_completion.jsonl"), RowFormat::kPromptCompletion);
  EXPECT_EQ(format("text.jsonl"), RowFormat::kText);
  EXPECT_EQ(Fault([] { DetectFormat(*JsonRows::Of("{\"x\":1,\"y\":2}", "f"), {}); }),
            "f: the columns 'x', 'y' match no known format; set data.format and data.columns");
  EXPECT_NE(
      Fault([] { DetectFormat(*JsonRows::Of("{\"chosen\":1}", "f"), {}); }).find("preference rows"),
      std::string::npos);
}

TEST(RowFormat, IsToldByWhatNamedColumnsHold) {
  const auto rows =
      JsonRows::Of(R"({"c":[{"role":"user"}],"q":"a","r":"b","d":[{"from":"x"}]})", "f");

  EXPECT_EQ(DetectFormat(*rows, {"c"}), RowFormat::kMessages);
  EXPECT_EQ(DetectFormat(*rows, {"d"}), RowFormat::kShareGpt);
  EXPECT_EQ(DetectFormat(*rows, {"q"}), RowFormat::kText);
  EXPECT_EQ(DetectFormat(*rows, {"q", "r"}), RowFormat::kPromptCompletion);
}

TEST(RowFormat, ColumnsAreRenamedInOrder) {
  EXPECT_EQ(ColumnsOf(RowFormat::kInstruction, {"q", "context", "a"}),
            (std::vector<std::string>{"q", "a", "context", "system"}));
  EXPECT_EQ(ColumnsOf(RowFormat::kMessages, {"tools"}), (std::vector<std::string>{"tools", ""}));
  EXPECT_THROW(ColumnsOf(RowFormat::kText, {"a", "b"}), Error);
  EXPECT_THROW(ColumnsOf(RowFormat::kPromptCompletion, {"a"}), Error);
}

Example Parsed(RowFormat format, const std::string& row, bool as_chat = false) {
  ExampleOptions options;
  options.format = format;
  options.columns = ColumnsOf(format, {});
  options.instructions_as_chat = as_chat;
  return ParseExample(ordered_json::parse(row), options);
}

TEST(Example, AnswersAreLearnedButThoseOfWeightZero) {
  const auto rows = JsonRows::Open(Fixture("chat.jsonl"));
  const Example example = Parsed(RowFormat::kMessages, rows->Read(1).dump());

  EXPECT_EQ(example.chat.learned, (std::vector<bool>{false, false, false, false, true}));
  EXPECT_FALSE((*example.chat.messages)[2].contains("weight"));
}

TEST(Example, ShareGptBecomesMessages) {
  const auto rows = JsonRows::Open(Fixture("sharegpt.jsonl"));
  const Example spoken = Parsed(RowFormat::kShareGpt, rows->Read(0).dump());
  const Example called = Parsed(RowFormat::kShareGpt, rows->Read(1).dump());

  EXPECT_EQ((*spoken.chat.messages)[0]["content"], "Be short.");
  EXPECT_EQ((*spoken.chat.messages)[2]["role"], "assistant");
  EXPECT_EQ((*called.chat.messages)[1]["tool_calls"][0]["function"]["arguments"]["city"], "Ulm");
  EXPECT_EQ((*called.chat.messages)[2]["role"], "tool");
  EXPECT_EQ((*called.chat.tools)[0]["function"]["name"], "weather");
  EXPECT_EQ(called.chat.learned, (std::vector<bool>{false, true, false, true}));
}

TEST(Example, InstructionsAreAChatOrAlpacasWords) {
  const auto rows = JsonRows::Open(Fixture("alpaca.json"));
  const Example chat = Parsed(RowFormat::kInstruction, rows->Read(0).dump(), true);
  const Example plain = Parsed(RowFormat::kInstruction, rows->Read(0).dump());

  EXPECT_EQ((*chat.chat.messages)[0]["content"], "Name the opposite.\n\nhot, [or \"warm\"]");
  EXPECT_TRUE(plain.plain.prompt.ends_with(
      "### Instruction:\nName the opposite.\n\n### Input:\nhot, [or \"warm\"]\n\n### Response:\n"));
  EXPECT_EQ(plain.plain.completion, "cold");
}

TEST(Example, OfPromptAndCompletionAsMessagesOnlyTheCompletionIsLearned) {
  const Example example =
      Parsed(RowFormat::kPromptCompletion,
             R"({"prompt":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},
          {"role":"user","content":"c"}],"completion":[{"role":"assistant","content":"d"}]})");

  EXPECT_EQ(example.chat.learned, (std::vector<bool>{false, false, false, true}));
  EXPECT_THROW(Parsed(RowFormat::kPromptCompletion, R"({"prompt":"a","completion":[]})"), Error);
}

TEST(Example, SaysWhatIsWrongWithEveryBadLine) {
  const auto rows = JsonRows::Open(Fixture("bad.jsonl"));
  const std::vector<std::string> expected = {
      "",
      "JSON: ",
      "JSON: ",
      "duplicate name 'messages'",
      "messages must have at least one message",
      "messages must be a list",
      "'messages' is missing",
      "must be a JSON object, got array",
      "messages[0].role must be system, developer, user, assistant or tool, got 'human'",
      "nothing to learn",
      "must end with a message of the assistant, ends with one of the user",
      "weight 0 on every message",
      "messages[1].weight must be 0 or 1, got '0.5'",
      "messages[0].weight is only allowed on messages of the assistant",
      "messages[1].content is required",
      "messages[0].content is required",
      "messages[0].content[0] has type 'image_url'",
      "messages[1].tool_calls[0].function.arguments",
      "messages[1].content is required",
      "tools[0].function must be an object",
      "messages[1].function_call is the legacy form"};

  ASSERT_EQ(rows->size(), static_cast<int64_t>(expected.size()));
  ExampleOptions options;
  options.columns = ColumnsOf(RowFormat::kMessages, {});
  for (int64_t i = 0; i < rows->size(); ++i) {
    const std::string fault = Fault([&] { ParseExample(rows->Read(i), options); });
    EXPECT_EQ(fault.empty(), i == 0) << i;
    EXPECT_NE(fault.find(expected[static_cast<size_t>(i)]), std::string::npos)
        << i << ": " << fault;
    EXPECT_EQ(fault.find('\n'), std::string::npos) << i;
  }
}

}  // namespace
}  // namespace tandem::training
