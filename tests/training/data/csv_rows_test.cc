#include "training/data/csv_rows.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/training/data/fault.h"
#include "training/data/example.h"
#include "training/data/row_format.h"
#include "training/data/sample_encoder.h"

namespace tandem::training {
namespace {

std::shared_ptr<const CsvRows> Csv(std::string_view text) { return CsvRows::Of(text, "f"); }

TEST(CsvRows, ReadsQuotesCommasAndLineEndsWithinFields) {
  const auto rows = Csv("prompt,completion\r\n\"a, \"\"b\"\"\nc\",d\r\ne,\"\"\r\n");

  ASSERT_EQ(rows->size(), 2);
  EXPECT_EQ(rows->Read(0),
            (nlohmann::ordered_json{{"prompt", "a, \"b\"\nc"}, {"completion", "d"}}));
  EXPECT_EQ(rows->Read(1)["completion"], "");
}

TEST(CsvRows, TakesAnEmptyFieldWithoutQuotesAsAbsent) {
  const auto rows = Csv("a,b,c\n1,,\n");

  EXPECT_EQ(rows->Read(0)["a"], "1");
  EXPECT_TRUE(rows->Read(0)["b"].is_null());
  EXPECT_TRUE(rows->Read(0)["c"].is_null());
}

TEST(CsvRows, NumbersLinesAsAnEditorDoes) {
  const auto rows =
      Csv("\xEF\xBB\xBF"
          "a,b\n\n\"1\n\n\",x\n   \n2,y");

  ASSERT_EQ(rows->size(), 2);
  EXPECT_EQ(rows->columns(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(rows->Where(0), "line 3");
  EXPECT_EQ(rows->Where(1), "line 7");
  EXPECT_EQ(rows->Read(1)["a"], "2");
}

TEST(CsvRows, FindsEveryRowOfALongFile) {
  std::string text = "n,text\n";
  for (int i = 0; i < 1000; ++i) text += std::to_string(i) + (i % 3 ? ",x\n" : ",\"y\n,\"\n");
  const auto rows = Csv(text);

  ASSERT_EQ(rows->size(), 1000);
  for (const int64_t i : {0, 1, 31, 32, 33, 511, 998, 999}) {
    EXPECT_EQ(rows->Read(i)["n"], std::to_string(i));
  }
}

TEST(CsvRows, KeepsAQuoteWithinAnUnquotedFieldAsACharacter) {
  EXPECT_EQ(Csv("a,b\n5\" pipe,x\"y\"\n")->Read(0)["a"], "5\" pipe");
}

TEST(CsvRows, NamesTheFaultOfARow) {
  const auto rows = Csv("a,b\n1\n1,2,3\n\"x\"y,2\n\xff,2\n1,2\n\"open,2\nlast,3\n");
  const auto fault = [&](int64_t i) { return Fault([&] { rows->Read(i); }); };

  ASSERT_EQ(rows->size(), 6);
  EXPECT_EQ(fault(0), "has 1 fields, the header has 2");
  EXPECT_EQ(fault(1), "has 3 fields, the header has 2");
  EXPECT_EQ(fault(2), "has text after the closing quote of field 1");
  EXPECT_EQ(fault(3), "is not valid UTF-8");
  EXPECT_EQ(fault(4), "");
  EXPECT_EQ(fault(5), "has a quote in field 1 that is not closed");
  EXPECT_EQ(rows->Where(5), "line 7");
}

TEST(CsvRows, RefusesARowThatIsTooLongWithoutCopyingIt) {
  std::string text = "a,b\nx,";
  text.append(CsvRows::kMaxCsvRowBytes, 'x');
  text += "\n1,2\n";
  const auto rows = Csv(text);

  EXPECT_NE(Fault([&] { rows->Read(0); }).find("the limit is"), std::string::npos);
  EXPECT_EQ(rows->Read(1)["b"], "2");
}

TEST(CsvRows, RefusesAHeaderThatNamesNoColumns) {
  EXPECT_EQ(Fault([] { Csv(""); }), "f: the file is empty");
  EXPECT_EQ(Fault([] { Csv("a,b\n"); }), "f: the file has a header and no rows");
  EXPECT_EQ(Fault([] { Csv("\na,a\n1,2\n"); }), "f: line 2: the header names the column 'a' twice");
  EXPECT_EQ(Fault([] { Csv("a,,c\n1,2,3\n"); }),
            "f: line 1: the header has a column without a name, number 2");
  EXPECT_NE(Fault([] { Csv("a;b\n1;2\n"); }).find("semicolons; separate them by commas"),
            std::string::npos);
  EXPECT_NE(Fault([] { Csv("\"a\n"); }).find("not closed"), std::string::npos);
  EXPECT_NE(Fault([] { Csv(std::string(300, ',') + "\n1\n"); }).find("more than 256 fields"),
            std::string::npos);
}

TEST(CsvRows, SaysWhatAForeignFileIs) {
  EXPECT_EQ(Fault([] { Csv("PAR1...."); }), "f: not CSV, the file is a Parquet file");
  EXPECT_NE(Fault([] { Csv(std::string_view("a,\0b\n", 5)); }).find("binary"), std::string::npos);
}

TEST(CsvRows, HaveTheFormatsOfJsonRows) {
  EXPECT_EQ(DetectFormat(*Csv("prompt,completion\nq,a\n"), {}), RowFormat::kPromptCompletion);
  EXPECT_EQ(DetectFormat(*Csv("instruction,input,output\nq,,a\n"), {}), RowFormat::kInstruction);
  EXPECT_EQ(DetectFormat(*Csv("prompt,chosen,rejected\nq,a,b\n"), {}, RowKind::kPairs),
            RowFormat::kPreference);
}

TEST(CsvRows, HoldChatsAsJsonText) {
  const auto rows =
      Csv("messages\n\"[{\"\"role\"\":\"\"user\"\",\"\"content\"\":\"\"q\"\"},"
          "{\"\"role\"\":\"\"assistant\"\",\"\"content\"\":\"\"a\"\"}]\"\n\"[{\"\"role\"\":\"\n");
  ExampleOptions options;
  options.format = DetectFormat(*rows, {});
  options.columns = ColumnsOf(options.format, {});

  EXPECT_EQ(LearnedMessages(ParseExample(rows->Read(0), options).chat).size(), 1u);
  EXPECT_NE(Fault([&] { ParseExample(rows->Read(1), options); }), "");
}

}  // namespace
}  // namespace tandem::training
