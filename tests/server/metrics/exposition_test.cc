#include "server/metrics/exposition.h"

#include <gtest/gtest.h>

#include <limits>

namespace tandem::server {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Exposition, WritesHelpTypeAndOneLineForEachMetric) {
  const std::vector<MetricFamily> families{
      {"t:requests", "Requests.", MetricType::kCounter, {{{{"a", "x"}, {"b", "y"}}, 3, {}}}},
      {"up", "", MetricType::kGauge, {{{}, 0.5, {}}}}};

  EXPECT_EQ(ExpositionText(families),
            "# HELP t:requests Requests.\n"
            "# TYPE t:requests counter\n"
            "t:requests{a=\"x\",b=\"y\"} 3\n"
            "# TYPE up gauge\n"
            "up 0.5\n");
}

TEST(Exposition, WritesCountSumAndCumulativeBucketsOfAHistogram) {
  const Metric metric{{{"m", "x"}}, 2.25, {{1, 0.1}, {4, kInfinity}}};

  EXPECT_EQ(ExpositionText({{"h", "", MetricType::kHistogram, {metric}}}),
            "# TYPE h histogram\n"
            "h_count{m=\"x\"} 4\n"
            "h_sum{m=\"x\"} 2.25\n"
            "h_bucket{m=\"x\",le=\"0.1\"} 1\n"
            "h_bucket{m=\"x\",le=\"+Inf\"} 4\n");
}

TEST(Exposition, WritesABucketWithoutOtherLabels) {
  const Metric metric{{}, 1, {{1, kInfinity}}};

  const std::string text = ExpositionText({{"h", "", MetricType::kHistogram, {metric}}});

  EXPECT_NE(text.find("h_bucket{le=\"+Inf\"} 1\n"), std::string::npos) << text;
}

TEST(Exposition, EscapesWhatWouldEndAValueOrALine) {
  const Metric metric{{{"model", "a\"b\\c\nd"}}, 1, {}};

  EXPECT_EQ(ExpositionText({{"g", "one\ntwo \"quoted\"", MetricType::kGauge, {metric}}}),
            "# HELP g one\\ntwo \"quoted\"\n"
            "# TYPE g gauge\n"
            "g{model=\"a\\\"b\\\\c\\nd\"} 1\n");
}

TEST(Exposition, WritesLargeCountsWithoutExponentAndKeepsSpecialValues) {
  const auto number = [](double value) {
    const std::string text = ExpositionText({{"g", "", MetricType::kGauge, {{{}, value, {}}}}});
    return text.substr(text.find("\ng ") + 3);
  };

  EXPECT_EQ(number(123456789012), "123456789012\n");
  EXPECT_EQ(number(1000000), "1000000\n");
  EXPECT_EQ(number(0.1), "0.1\n");
  EXPECT_EQ(number(-kInfinity), "-Inf\n");
  EXPECT_EQ(number(std::numeric_limits<double>::quiet_NaN()), "NaN\n");
}

}  // namespace
}  // namespace tandem::server
