#include "server/batches/batch_input.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

constexpr const char* kCompletions = "/v1/completions";

std::string CompletionLine(const std::string& custom_id, const std::string& body = "{}") {
  return R"({"custom_id":")" + custom_id + R"(","method":"POST","url":"/v1/completions","body":)" +
         body + "}";
}

class BatchInputTest : public testing::Test {
 protected:
  BatchInput Open(const std::string& text, int64_t max_line_bytes = 1 << 20) {
    std::ofstream(dir_ / "in.jsonl", std::ios::binary) << text;
    return BatchInput(dir_ / "in.jsonl", max_line_bytes);
  }
  CheckedInput Check(const std::string& text, int64_t max_line_bytes = 1 << 20) {
    return CheckBatchInput(Open(text, max_line_bytes), kCompletions, [] { return false; });
  }
  // "line code param" of each error.
  std::vector<std::string> Faults(const std::string& text, int64_t max_line_bytes = 1 << 20) {
    std::vector<std::string> faults;
    for (const BatchError& error : Check(text, max_line_bytes).errors) {
      EXPECT_FALSE(error.message.empty());
      faults.push_back((error.line ? std::to_string(*error.line) : "-") + " " + error.code + " " +
                       error.param);
    }
    return faults;
  }
  using Texts = std::vector<std::string>;

  tests::TemporaryDir dir_;
};

TEST_F(BatchInputTest, LinesAreFoundAndReadBackWhateverTheirEnds) {
  const BatchInput input = Open("one\n\n \t\r\ntwo\r\n" + std::string(300'000, 'x') + "\nlast");
  const std::vector<LineSpan> lines = LinesOf(input);

  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(input.Read(lines[0]), "one");
  EXPECT_EQ(input.Read(lines[1]), "two\r");
  EXPECT_EQ(input.Read(lines[2]), std::string(300'000, 'x'));
  EXPECT_EQ(input.Read(lines[3]), "last");
  EXPECT_EQ(lines[1].number, 4);
  EXPECT_EQ(lines[3].number, 6);
}

TEST_F(BatchInputTest, AValidInputHasNoErrorsAndNamesTheOneModelOfItsLines) {
  const std::string a = CompletionLine("a", R"({"model":"m"})");

  const CheckedInput one = Check(a + "\n" + CompletionLine("b", R"({"model":"m"})") + "\r\n\n");
  const CheckedInput two = Check(a + "\n" + CompletionLine("b", R"({"model":"other"})"));
  const CheckedInput none = Check(CompletionLine("a"));

  EXPECT_TRUE(one.errors.empty());
  EXPECT_EQ(one.lines.size(), 2u);
  EXPECT_EQ(one.model, "m");
  EXPECT_TRUE(two.errors.empty());
  EXPECT_EQ(two.model, std::nullopt);
  EXPECT_EQ(none.model, std::nullopt);
}

TEST_F(BatchInputTest, EveryFaultHasItsLineCodeAndParam) {
  const std::string good = CompletionLine("good");
  EXPECT_EQ(Faults(""), Texts{"- empty_file "});
  EXPECT_EQ(Faults("\n \n"), Texts{"- empty_file "});
  EXPECT_EQ(Faults(good + "\n{\n[]\n\"x\"\n"),
            (Texts{"2 invalid_json_line ", "3 invalid_json_line ", "4 invalid_json_line "}));
  EXPECT_EQ(Faults(good + "\n\n" + good), Texts{"3 duplicate_custom_id custom_id"});
  EXPECT_EQ(Faults("{}"), Texts{"1 missing_required_parameter custom_id"});
  EXPECT_EQ(Faults(CompletionLine("")), Texts{"1 invalid_value custom_id"});
  EXPECT_EQ(Faults(CompletionLine(std::string(513, 'x'))), Texts{"1 invalid_value custom_id"});
  EXPECT_EQ(Faults(CompletionLine("a", "null")), Texts{"1 missing_required_parameter body"});
  EXPECT_EQ(Faults(CompletionLine("a", "[]")), Texts{"1 invalid_type body"});
  EXPECT_EQ(Faults(CompletionLine("a", R"({"stream":true})")),
            Texts{"1 unsupported_value body.stream"});
  EXPECT_EQ(Faults(CompletionLine("a", R"({"stream":false,"background":null})")), Texts{});
  EXPECT_EQ(Faults(CompletionLine("a", R"({"background":true})")),
            Texts{"1 unsupported_value body.background"});
  EXPECT_EQ(Faults(R"({"custom_id":"a","method":"GET","url":"/v1/completions","body":{}})"),
            Texts{"1 invalid_method method"});
  EXPECT_EQ(Faults(R"({"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{}})"),
            Texts{"1 invalid_url url"});
  EXPECT_EQ(Faults(R"({"custom_id":7,"method":"POST","url":"/v1/completions","body":{}})"),
            Texts{"1 invalid_type custom_id"});
  EXPECT_EQ(Faults("{\"custom_id\":\"\xff\"}"), Texts{"1 invalid_json_line "});
}

TEST_F(BatchInputTest, ALineOfTheBoundIsTakenAndALongerOneIsRefused) {
  const std::string exact = CompletionLine("a");
  const auto bytes = static_cast<int64_t>(exact.size());

  EXPECT_EQ(Faults(exact + "\n" + CompletionLine("b"), bytes), Texts{});
  EXPECT_EQ(Faults(CompletionLine("b") + "\n" + CompletionLine("longer"), bytes),
            Texts{"2 request_too_large "});
  EXPECT_EQ(Faults(std::string(1 << 20, ' '), 100), Texts{"1 request_too_large "});
}

TEST_F(BatchInputTest, AtMostFiftyFaultsAreListed) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "{\n";
  EXPECT_EQ(Faults(text).size(), 50u);
}

TEST_F(BatchInputTest, AStoppingServerEndsTheCheck) {
  const BatchInput input = Open(CompletionLine("a"));
  EXPECT_THROW(CheckBatchInput(input, kCompletions, [] { return true; }), Error);
}

TEST(BatchLineTest, TheBodyKeepsItsFieldsInOrder) {
  const BatchLine line = ParseBatchLine(
      CompletionLine("a", R"({"z":1.0,"model":"m","a":[12345678901234567890,"é\n"]})"),
      kCompletions);

  EXPECT_EQ(line.custom_id, "a");
  EXPECT_EQ(line.model, "m");
  EXPECT_EQ(line.body, R"({"z":1.0,"model":"m","a":[12345678901234567890,"é\n"]})");
}

}  // namespace
}  // namespace tandem::server
