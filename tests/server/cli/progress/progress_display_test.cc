#include "server/cli/progress/progress_display.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>

namespace tandem::server {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view kClear = "\r\x1b[K";

class ProgressDisplayTest : public testing::Test {
 protected:
  ProgressDisplay& Start(ProgressStyle style) {
    display_ = std::make_unique<ProgressDisplay>(
        ProgressDisplay::Options{.style = style,
                                 .write = [this](std::string_view text) { written_ += text; },
                                 .columns = [] { return 100; },
                                 .now = [this] { return now_; }});
    return *display_;
  }
  void Show(uint64_t task, const char* phase, int64_t done, bool is_finished = false) {
    display_->Show({.task = task,
                    .phase = phase,
                    .unit = "steps",
                    .done = done,
                    .total = 100,
                    .is_finished = is_finished});
  }
  std::string Written() { return std::exchange(written_, ""); }

  std::chrono::steady_clock::time_point now_{1h};
  std::string written_;
  std::unique_ptr<ProgressDisplay> display_;
};

TEST_F(ProgressDisplayTest, ShortWorkShowsNoBar) {
  Start(ProgressStyle::kBar);
  Show(1, "packing", 0);
  now_ += 200ms;
  Show(1, "packing", 100, true);

  EXPECT_EQ(Written(), "");
}

TEST_F(ProgressDisplayTest, ABarIsDrawnInPlaceAndRemovedAtTheEnd) {
  Start(ProgressStyle::kBar);
  Show(1, "packing", 0);
  now_ += 1s;
  Show(1, "packing", 10);
  const std::string first = Written();
  EXPECT_TRUE(first.starts_with(kClear)) << first;
  EXPECT_NE(first.find("packing"), std::string::npos);
  EXPECT_NE(first.find("10 %"), std::string::npos);
  EXPECT_EQ(first.find('\n'), std::string::npos);

  now_ += 1s;
  Show(1, "packing", 20);
  EXPECT_NE(Written().find("20 %"), std::string::npos);
  Show(1, "packing", 100, true);
  EXPECT_EQ(Written(), kClear);
}

TEST_F(ProgressDisplayTest, AnUnchangedBarIsNotDrawnAgain) {
  Start(ProgressStyle::kBar);
  Show(1, "packing", 0);
  now_ += 1s;
  Show(1, "packing", 0);
  Written();
  Show(1, "packing", 0);

  EXPECT_EQ(Written(), "");
}

TEST_F(ProgressDisplayTest, TheNewestLongTaskIsShownAndThenTheOneBeforeAgain) {
  Start(ProgressStyle::kBar);
  Show(1, "training", 0);
  now_ += 1s;
  Show(1, "training", 1);
  Show(2, "evaluating", 0);
  EXPECT_EQ(Written().find("evaluating"), std::string::npos);
  now_ += 1s;
  Show(2, "evaluating", 50);
  EXPECT_NE(Written().find("evaluating"), std::string::npos);
  Show(2, "evaluating", 100, true);

  EXPECT_NE(Written().find("training"), std::string::npos);
}

TEST_F(ProgressDisplayTest, LinesAppearAboveTheBar) {
  ProgressDisplay& display = Start(ProgressStyle::kBar);
  Show(1, "training", 0);
  now_ += 1s;
  Show(1, "training", 7);
  const std::string bar = Written();
  display.Around([&] { written_ += "completed step\n"; });

  EXPECT_EQ(Written(), std::string(kClear) + "completed step\n" + bar);
}

TEST_F(ProgressDisplayTest, TheBarReturnsAfterAFailedPrint) {
  ProgressDisplay& display = Start(ProgressStyle::kBar);
  Show(1, "training", 0);
  now_ += 1s;
  Show(1, "training", 7);
  const std::string bar = Written();
  EXPECT_THROW(display.Around([] { throw std::runtime_error("full disk"); }), std::runtime_error);

  EXPECT_EQ(Written(), std::string(kClear) + bar);
}

TEST_F(ProgressDisplayTest, ItsDestructorRemovesTheBar) {
  Start(ProgressStyle::kBar);
  Show(1, "training", 0);
  now_ += 1s;
  Show(1, "training", 7);
  Written();
  display_.reset();

  EXPECT_EQ(written_, kClear);
}

TEST_F(ProgressDisplayTest, LinesComeEveryTenSecondsWithoutControls) {
  Start(ProgressStyle::kLines);
  Show(1, "packing", 0);
  for (int second = 1; second <= 35; ++second) {
    now_ += 1s;
    Show(1, "packing", second);
  }
  Show(1, "packing", 100, true);

  EXPECT_EQ(Written(),
            "packing: 10 %, 10 of 100 steps, 1.0 steps/s, 90 s left\n"
            "packing: 20 %, 20 of 100 steps, 1.0 steps/s, 80 s left\n"
            "packing: 30 %, 30 of 100 steps, 1.0 steps/s, 70 s left\n"
            "packing: done, 100 steps in 35 s\n");
}

TEST_F(ProgressDisplayTest, ShortWorkAndFailedWorkEndWithoutALine) {
  Start(ProgressStyle::kLines);
  Show(1, "packing", 0);
  now_ += 5s;
  Show(1, "packing", 100, true);
  EXPECT_EQ(Written(), "");

  Show(2, "packing", 0);
  now_ += 11s;
  Show(2, "packing", 40);
  EXPECT_NE(Written(), "");
  Show(2, "packing", 41, true);
  EXPECT_EQ(Written(), "");
}

TEST_F(ProgressDisplayTest, JsonHasTheFirstAndTheLastStateAndOnePerSecond) {
  Start(ProgressStyle::kJson);
  Show(1, "packing", 0);
  for (int i = 1; i <= 20; ++i) {
    now_ += 100ms;
    Show(1, "packing", i);
  }
  Show(1, "packing", 100, true);

  const std::string text = Written();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
  EXPECT_TRUE(text.starts_with("{\"event\":\"progress\",\"task\":1"));
  EXPECT_TRUE(text.ends_with("\"is_finished\":true}\n"));
}

}  // namespace
}  // namespace tandem::server
