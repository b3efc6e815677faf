#include "training/observe/trace.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

namespace tandem::training {
namespace {

using std::chrono::milliseconds;

Trace TwoSteps() {
  Trace trace;
  const Trace::Clock::time_point start{};
  for (int64_t step = 3; step < 5; ++step) {
    trace.set_step(step);
    const auto from = start + milliseconds(10 * step);
    trace.Add(Trace::Lane::kData, "data", "", from, from + milliseconds(1));
    trace.Add(Trace::Lane::kCompute, "linear", "forward", from + milliseconds(1),
              from + milliseconds(4));
    trace.Add(Trace::Lane::kCompute, "linear", "backward", from + milliseconds(4),
              from + milliseconds(10));
    trace.Add(Trace::Lane::kSteps, "step", "", from, from + milliseconds(10));
  }
  return trace;
}

TEST(Trace, TheJsonIsWhatPerfettoReads) {
  const auto json = nlohmann::json::parse(TwoSteps().ChromeJson());
  std::map<int, std::string> lanes;
  int spans = 0;
  for (const auto& event : json.at("traceEvents")) {
    if (event.at("ph") == "M" && event.at("name") == "thread_name") {
      lanes[event.at("tid")] = event.at("args").at("name");
    }
    if (event.at("ph") != "X") continue;
    ++spans;
    EXPECT_GE(event.at("ts"), 0);
    EXPECT_GT(event.at("dur"), 0);
    if (event.at("name") == "linear backward") {
      EXPECT_EQ(lanes.at(event.at("tid")), "compute");
      EXPECT_NEAR(event.at("dur").get<double>(), 6000, 1e-6);
    }
    if (event.at("name") == "step 4") {
      EXPECT_EQ(lanes.at(event.at("tid")), "steps");
      EXPECT_NEAR(event.at("ts").get<double>(), 10000, 1e-6);
    }
  }
  EXPECT_EQ(spans, 8);
}

TEST(Trace, TheSummaryHasSharesOfTheSteps) {
  const std::string text = TwoSteps().Summary();
  EXPECT_TRUE(text.starts_with("2 steps, 10.000 ms each\n")) << text;
  EXPECT_LT(text.find("linear backward"), text.find("linear forward"));
  EXPECT_NE(text.find("60.0%"), std::string::npos);
  EXPECT_NE(text.find("10.0%"), std::string::npos);
}

TEST(Trace, WithoutOneASpanDoesNothing) {
  { const TraceSpan span(nullptr, Trace::Lane::kCompute, "linear"); }
  Trace trace;
  { const TraceSpan span(&trace, Trace::Lane::kCompute, "linear"); }
  EXPECT_FALSE(trace.empty());
}

}  // namespace
}  // namespace tandem::training
