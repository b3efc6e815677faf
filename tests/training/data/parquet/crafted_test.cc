// Layouts of older writers that pyarrow cannot produce, byte by byte.

#include <gtest/gtest.h>

#include "tests/training/data/parquet/crafted_file.h"
#include "tests/training/data/parquet/read_rows.h"

namespace tandem::training {
namespace {

using Lines = std::vector<std::string>;

TEST(ParquetLists, TwoLevelsWithARepeatedValue) {
  const std::string file =
      CraftedFile({Root(1), Group("a", kOptional, 1, kListWord), Text("array", kRepeated)},
                  {{.n_values = 5,
                    .pages = DataPage(5, Levels({0, 1, 0, 0, 0}) + Levels({2, 2, 0, 1, 2}) +
                                             Strings({"x", "y", "z"}))}},
                  4);

  EXPECT_EQ(RowLines(file),
            (Lines{R"({"a":["x","y"]})", R"({"a":null})", R"({"a":[]})", R"({"a":["z"]})"}));
}

TEST(ParquetLists, ARepeatedGroupOfSeveralFieldsIsTheElement) {
  const std::string levels = Levels({0, 1}) + Levels({2, 2});
  const CraftedColumn content{.n_values = 2, .pages = DataPage(2, levels + Strings({"x", "y"}))};
  const CraftedColumn role{.n_values = 2, .pages = DataPage(2, levels + Strings({"u", "a"}))};
  const std::string file =
      CraftedFile({Root(1), Group("turns", kOptional, 1, kListWord), Group("element", kRepeated, 2),
                   Text("content", kRequired), Text("role", kRequired)},
                  {content, role}, 1);

  EXPECT_EQ(RowLines(file),
            Lines{R"({"turns":[{"content":"x","role":"u"},{"content":"y","role":"a"}]})"});
}

// A group with one field: its name decides whether the group is the element or only the list level.
TEST(ParquetLists, NamesOfTheRepeatedGroupAreTheFormats) {
  const CraftedColumn one{.n_values = 1,
                          .pages = DataPage(1, Levels({0}) + Levels({2}) + Strings({"x"}))};
  const auto lines = [&](const std::string& name) {
    return RowLines(CraftedFile({Root(1), Group("my", kOptional, 1, kListWord),
                                 Group(name, kRepeated, 1), Text("str", kRequired)},
                                {one}, 1));
  };

  EXPECT_EQ(lines("array"), Lines{R"({"my":[{"str":"x"}]})"});
  EXPECT_EQ(lines("my_tuple"), Lines{R"({"my":[{"str":"x"}]})"});
  EXPECT_EQ(lines("list"), Lines{R"({"my":["x"]})"});
  EXPECT_EQ(lines("bag"), Lines{R"({"my":["x"]})"});
}

TEST(ParquetLists, ARepeatedFieldWithoutAListIsOne) {
  const CraftedColumn numbers{
      .type = 1,
      .n_values = 3,
      .pages = DataPage(3, Levels({0, 1, 0}) + Levels({1, 1, 0}) + FourBytes(7) + FourBytes(8))};
  const CraftedColumn names{.n_values = 2,
                            .pages = DataPage(2, Levels({0, 0}) + Levels({2, 0}) + Strings({"x"}))};
  const std::string file = CraftedFile(
      {Root(2), Value("n", kRepeated, 1), Group("g", kRepeated, 1), Text("name", kOptional)},
      {numbers, names}, 2);

  EXPECT_EQ(RowLines(file), (Lines{R"({"n":[7,8],"g":[{"name":"x"}]})", R"({"n":[],"g":[]})"}));
}

TEST(ParquetLists, TwoLevelsWithinTwoLevels) {
  // [[1, 2], []], null
  const CraftedColumn numbers{.type = 1,
                              .n_values = 4,
                              .pages = DataPage(4, Levels({0, 2, 1, 0}) + Levels({3, 3, 2, 0}) +
                                                       FourBytes(1) + FourBytes(2))};
  const std::string file =
      CraftedFile({Root(1), Group("a", kOptional, 1, kListWord),
                   Group("array", kRepeated, 1, kListWord), Value("array", kRepeated, 1)},
                  {numbers}, 2);

  EXPECT_EQ(RowLines(file), (Lines{R"({"a":[[1,2],[]]})", R"({"a":null})"}));
}

TEST(ParquetPages, APageOfNullsMayLackValuesAltogether) {
  const std::string file =
      CraftedFile({Root(1), Text("a", kOptional)},
                  {{.n_values = 2, .pages = DataPage(2, Levels({0, 0}), /*encoding=*/8)}}, 2);

  EXPECT_EQ(RowLines(file), (Lines{R"({"a":null})", R"({"a":null})"}));
}

TEST(ParquetPages, PagesOfUnknownIndicesArePassedOver) {
  ThriftFields index;
  index.I32(1, 1).I32(2, 3).I32(3, 3).Struct(6, ThriftFields());
  const std::string file =
      CraftedFile({Root(1), Text("a", kRequired)},
                  {{.n_values = 1, .pages = index.str() + "xyz" + DataPage(1, Strings({"x"}))}}, 1);

  EXPECT_EQ(RowLines(file), Lines{R"({"a":"x"})"});
}

TEST(ParquetPages, DictionaryIndicesOfNoBitsAreZero) {
  const std::string indices = std::string(1, '\0') + "\6";  // width 0, one run of three
  const std::string file = CraftedFile(
      {Root(1), Text("a", kRequired)},
      {{.n_values = 3, .pages = DictionaryPage(1, Strings({"x"})) + DataPage(3, indices, 8)}}, 3);

  EXPECT_EQ(RowLines(file), Lines(3, R"({"a":"x"})"));
}

}  // namespace
}  // namespace tandem::training
