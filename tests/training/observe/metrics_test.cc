#include "training/observe/metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "engine/io/atomic_write.h"
#include "tests/support/temporary_dir.h"
#include "training/observe/event_file.h"
#include "training/observe/history.h"
#include "training/observe/loss_plot.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

MetricsRow StepRow(int64_t step, double loss) {
  return {
      MetricsRow::Kind::kStep,
      step,
      1000.0 + static_cast<double>(step),
      {{"learning/total_weights", 7}, {"learning/loss", loss}, {"perf/step_time_seconds", 0.5}}};
}
MetricsRow EvalRow(int64_t steps_done, double loss) {
  return {MetricsRow::Kind::kBetweenSteps, steps_done, 1000, {{"eval/avg_loss", loss}}};
}

class Metrics : public testing::Test {
 protected:
  // Six steps with an evaluation after each third step; a second process resumes after
  // `first_step`.
  template <class Make>
  void WriteInTwoProcesses(const Make& make, int64_t first_step) {
    {
      const auto sink = make(0);
      for (int64_t step = 0; step < 6; ++step) {
        sink->Write(StepRow(step, 10 - static_cast<double>(step)));
        if (step % 3 == 2) sink->Write(EvalRow(step + 1, 20 - static_cast<double>(step)));
      }
    }
    const auto sink = make(first_step);
    for (int64_t step = first_step; step < 8; ++step) {
      sink->Write(StepRow(step, 10 - static_cast<double>(step)));
      if (step % 3 == 2) sink->Write(EvalRow(step + 1, 20 - static_cast<double>(step)));
    }
    sink->Flush();
  }

  std::vector<std::string> Lines(const fs::path& path) const {
    std::vector<std::string> lines;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }

  tests::TemporaryDir dir_;
};

TEST_F(Metrics, ACsvHasEveryRowOnceAfterARestart) {
  const fs::path path = dir_.path() / "metrics.csv";
  for (const int64_t first_step : {0, 3, 4, 6}) {
    fs::remove(path);
    WriteInTwoProcesses([&](int64_t first) { return MakeCsv(path, first); }, first_step);
    std::vector<std::string> cells;
    for (const std::string& line : Lines(path)) cells.push_back(line.substr(0, line.find(',')));
    EXPECT_EQ(cells,
              (std::vector<std::string>{"step", "0", "1", "2", "3", "3", "4", "5", "6", "6", "7"}))
        << first_step;
  }
  EXPECT_TRUE(
      Lines(path)[0].starts_with("step,unix_seconds,learning/total_weights,learning/loss,"));
  EXPECT_TRUE(Lines(path)[1].starts_with("0,1000,7,10,,"));
}

TEST_F(Metrics, HalfARowOfAKilledProcessIsDropped) {
  const fs::path path = dir_.path() / "metrics.csv";
  MakeCsv(path, 0)->Write(StepRow(0, 1));
  std::ofstream(path, std::ios::app) << "1,1001,0.5";
  MakeCsv(path, 1)->Write(StepRow(1, 0.5));
  EXPECT_EQ(Lines(path).size(), 3u);
}

TEST_F(Metrics, NumbersThatAreNoneAreNullEmptyOrAbsent) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  const MetricsRow row{MetricsRow::Kind::kStep,
                       3,
                       1000,
                       {{"learning/total_weights", 7},
                        {"learning/loss", kNone},
                        {"learning/raw_grad_norm", kInfinite},
                        {"learning/skipped", 1}}};
  MakeJsonLines(dir_.path() / "metrics.jsonl")->Write(row);
  MakeCsv(dir_.path() / "metrics.csv", 0)->Write(row);
  MakeTensorBoard(dir_.path() / "tb", 0)->Write(row);

  EXPECT_EQ(Lines(dir_.path() / "metrics.jsonl").at(0),
            R"({"step":3,"unix_seconds":1000.0,"learning/total_weights":7,"learning/loss":null,)"
            R"("learning/raw_grad_norm":null,"learning/skipped":true})");
  EXPECT_TRUE(Lines(dir_.path() / "metrics.csv").at(1).starts_with("3,1000,7,,,,,"));
  const fs::path events = fs::directory_iterator(dir_.path() / "tb")->path();
  const std::string text = engine::ReadWholeFile(events, 1 << 20);
  std::string_view rest = text;
  std::string_view payload;
  TensorBoardEvent event;
  ASSERT_TRUE(TakeRecord(&rest, &payload) && TakeRecord(&rest, &payload));
  ASSERT_TRUE(DecodeEvent(payload, &event));
  ASSERT_EQ(event.scalars.size(), 2u);
  EXPECT_EQ(event.scalars[1].first, "learning/skipped");
  EXPECT_TRUE(ReadHistory(dir_.path() / "metrics.jsonl", 9).losses.empty());
}

TEST_F(Metrics, EventFilesHaveEveryEventOnceAfterARestart) {
  for (const int64_t first_step : {0, 3, 4, 6}) {
    const fs::path dir = dir_.path() / ("tb" + std::to_string(first_step));
    WriteInTwoProcesses([&](int64_t first) { return MakeTensorBoard(dir, first); }, first_step);
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(dir)) files.push_back(entry.path());
    ASSERT_EQ(files.size(), 1u);
    EXPECT_NE(files[0].filename().string().find("tfevents"), std::string::npos);

    const std::string text = engine::ReadWholeFile(files[0], 1 << 20);
    std::string_view rest = text;
    std::string_view payload;
    TensorBoardEvent event;
    ASSERT_TRUE(TakeRecord(&rest, &payload));
    ASSERT_TRUE(DecodeEvent(payload, &event));
    EXPECT_EQ(event.file_version, "brain.Event:2");
    std::vector<std::pair<int64_t, std::string>> seen;
    while (TakeRecord(&rest, &payload)) {
      ASSERT_TRUE(DecodeEvent(payload, &event));
      const auto& scalar = event.scalars.size() > 1 ? event.scalars[1] : event.scalars[0];
      seen.emplace_back(event.step, scalar.first);
      const double expected = scalar.first == "learning/loss"
                                  ? 10 - static_cast<double>(event.step)
                                  : 21 - static_cast<double>(event.step);
      EXPECT_EQ(scalar.second, expected);
    }
    EXPECT_TRUE(rest.empty());
    EXPECT_EQ(seen.size(), 10u) << first_step;
    EXPECT_EQ(seen[3].first, 3);
    EXPECT_EQ(seen[3].second, "eval/avg_loss");
  }
}

TEST_F(Metrics, TheHistoryIsOfTheStepsThatCount) {
  const fs::path path = dir_.path() / "metrics.jsonl";
  std::ofstream(path) << "{\"step\": 0, \"learning/lo";  // a truncated line
  WriteInTwoProcesses([&](int64_t) { return MakeJsonLines(path); }, 4);

  const MetricsHistory history = ReadHistory(path, 7);
  EXPECT_EQ(history.losses.size(), 7u);
  EXPECT_EQ(history.losses.at(6), 4);
  EXPECT_EQ(history.eval_losses.size(), 2u);
  EXPECT_EQ(history.productive_seconds, 3.5);  // steps 4 and 5 ran twice and count once
  EXPECT_EQ(history.started_unix, 999.5);
  EXPECT_EQ(ReadHistory(dir_.path() / "none", 7).started_unix, 0);
}

TEST_F(Metrics, ThePlotHasBothCurvesFromBeforeARestart) {
  const fs::path lines = dir_.path() / "metrics.jsonl";
  const fs::path path = dir_.path() / "loss.svg";
  WriteInTwoProcesses([&](int64_t) { return MakeJsonLines(lines); }, 4);
  const auto plot = MakeLossPlot(path, lines, 8);
  plot->Write(StepRow(8, 2));
  EXPECT_FALSE(fs::exists(path));
  plot->Flush();

  const std::string svg = engine::ReadWholeFile(path, 1 << 20);
  EXPECT_TRUE(svg.starts_with("<svg "));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  size_t points = 0;
  for (size_t at = svg.find("points=\""); at != std::string::npos;
       at = svg.find("points=\"", at + 1)) {
    const size_t end = svg.find('"', at + 8);
    points += static_cast<size_t>(std::count(svg.begin() + static_cast<std::ptrdiff_t>(at),
                                             svg.begin() + static_cast<std::ptrdiff_t>(end), ','));
  }
  EXPECT_EQ(points, 11u);  // nine steps, two evaluations
}

TEST_F(Metrics, APictureOfManyStepsStaysSmall) {
  std::map<int64_t, double> losses;
  for (int64_t step = 0; step < 100'000; ++step) losses[step] = 1.0 / static_cast<double>(step + 1);
  losses[5] = std::numeric_limits<double>::quiet_NaN();
  const std::string svg = DrawLosses(losses, {});
  EXPECT_LT(svg.size(), 40'000u);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_FALSE(DrawLosses({}, {}).empty());
  EXPECT_EQ(DrawLosses({{0, 1.0}}, {}).find("inf"), std::string::npos);
}

}  // namespace
}  // namespace tandem::training
