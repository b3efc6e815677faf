#include "server/cli/progress/progress_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/terminal/display_width.h"

namespace tandem::server {
namespace {

ProgressFigures PackingFigures() {
  return {.task = 7,
          .phase = "packing weights of m",
          .unit = "bytes",
          .done = 1288490189,
          .total = 3113851290,
          .per_second = 85.3 * (1 << 20),
          .seconds_left = 20.4,
          .seconds = 15};
}

ProgressFigures StepFigures() {
  return {.phase = "training run", .unit = "steps", .done = 12, .total = 60, .per_second = 0.25};
}

TEST(ProgressLine, HasShareAmountSpeedAndTimeLeft) {
  EXPECT_EQ(ProgressLine(PackingFigures()),
            "packing weights of m: 41 %, 1.2 of 2.9 GiB, 85.3 MiB/s, 21 s left");
  EXPECT_EQ(ProgressLine(StepFigures()), "training run: 20 %, 12 of 60 steps, 0.25 steps/s");
}

TEST(ProgressLine, LeavesOutWhatIsUnknown) {
  EXPECT_EQ(ProgressLine({.phase = "reading", .unit = "rows", .done = 5}), "reading: 5 rows");
  EXPECT_EQ(ProgressLine({.phase = "pipeline", .done = 1, .total = 4}), "pipeline: 25 %");
  EXPECT_EQ(ProgressLine({.phase = "waiting"}), "waiting");
}

TEST(ProgressLine, RoundsDownSoThat100PercentMeansDone) {
  ProgressFigures figures = StepFigures();
  figures.done = 59'999;
  figures.total = 60'000;
  EXPECT_NE(ProgressLine(figures).find(" 99 %"), std::string::npos);
  figures.done = 60'001;
  EXPECT_NE(ProgressLine(figures).find(" 100 %"), std::string::npos);
}

TEST(ProgressLine, ShowsHostileNamesAsText) {
  for (const std::string phase : {"\x1b[2J\x1b]0;owned\x07", "a\nb\rc",
                                  "\xe2\x80\xae"
                                  "gpj.exe",
                                  "\xff\xfe"}) {
    ProgressFigures figures = StepFigures();
    figures.phase = phase;
    for (const std::string& text :
         {ProgressLine(figures), ProgressEnd(figures), ProgressBar(figures, 80, false)}) {
      for (const char c : text) EXPECT_GE(static_cast<unsigned char>(c), 0x20) << text;
      EXPECT_EQ(text.find("\xe2\x80\xae"), std::string::npos) << text;
    }
  }
}

TEST(ProgressEnd, NamesAmountAndDuration) {
  ProgressFigures figures = PackingFigures();
  figures.done = figures.total;
  figures.seconds = 34.2;
  EXPECT_EQ(ProgressEnd(figures), "packing weights of m: done, 2.9 GiB in 35 s");
}

TEST(RoughDuration, ChoosesAUnitForPeople) {
  EXPECT_EQ(RoughDuration(0.2), "1 s");
  EXPECT_EQ(RoughDuration(119), "119 s");
  EXPECT_EQ(RoughDuration(2048), "34 min");
  EXPECT_EQ(RoughDuration(7500), "2 h 5 min");
  EXPECT_EQ(RoughDuration(-3), "0 s");
}

TEST(ProgressBar, ShowsEverythingOnAWideTerminal) {
  EXPECT_EQ(ProgressBar(PackingFigures(), 120, false),
            "packing weights of m   41 %  [###########.................]  1.2 of 2.9 GiB, 85.3 "
            "MiB/s, 21 s left");
}

TEST(ProgressBar, IsNarrowerThanTheTerminal) {
  ProgressFigures wide = PackingFigures();
  wide.phase = "packing weights of 大きなモデル-with-a-very-long-name-that-goes-on-and-on";
  for (const ProgressFigures& figures : {PackingFigures(), StepFigures(), wide}) {
    for (int columns = 2; columns <= 200; ++columns) {
      const std::string bar = ProgressBar(figures, columns, false);
      EXPECT_LT(DisplayWidth(bar), columns) << bar;
      EXPECT_EQ(bar.find('\x1b'), std::string::npos);
    }
  }
}

TEST(ProgressBar, KeepsTheShareOnANarrowTerminal) {
  for (const int columns : {20, 30, 40, 60}) {
    EXPECT_NE(ProgressBar(PackingFigures(), columns, false).find("41 %"), std::string::npos);
  }
}

TEST(ProgressBar, ColoursOnlyTheFilledPart) {
  const std::string bar = ProgressBar(PackingFigures(), 120, true);
  const size_t begin = bar.find("\x1b[32m");
  const size_t end = bar.find("\x1b[0m");
  ASSERT_NE(begin, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  EXPECT_EQ(bar.substr(begin + 5, end - begin - 5), std::string(11, '#'));
}

TEST(ProgressJson, IsOneObjectPerLine) {
  const std::string line = ProgressJson(PackingFigures(), false);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["event"], "progress");
  EXPECT_EQ(json["task"], 7);
  EXPECT_EQ(json["phase"], "packing weights of m");
  EXPECT_EQ(json["unit"], "bytes");
  EXPECT_EQ(json["total"], 3113851290);
  EXPECT_EQ(json["is_finished"], false);
  EXPECT_NEAR(json["seconds_left"].get<double>(), 20.4, 1e-9);
}

TEST(ProgressJson, LeavesOutUnknownMembersAndSurvivesAnyBytes) {
  const auto json =
      nlohmann::json::parse(ProgressJson({.phase = "\xff\n\"", .unit = "rows"}, true));
  EXPECT_FALSE(json.contains("total"));
  EXPECT_FALSE(json.contains("per_second"));
  EXPECT_FALSE(json.contains("seconds_left"));
  EXPECT_EQ(json["is_finished"], true);
}

}  // namespace
}  // namespace tandem::server
