#include "training/observe/loss_plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <vector>

#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "training/observe/history.h"
#include "training/observe/metrics.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

constexpr double kWidth = 900;
constexpr double kHeight = 420;
constexpr double kLeft = 70;
constexpr double kRight = 20;
constexpr double kTop = 30;
constexpr double kBottom = 50;
constexpr size_t kMaxPoints = 1000;

struct Point {
  double x = 0;
  double y = 0;
};

// Averages neighbours until at most kMaxPoints remain. Drops values that are not finite.
std::vector<Point> Thinned(const std::map<int64_t, double>& losses) {
  std::vector<Point> points;
  for (const auto& [step, loss] : losses) {
    if (std::isfinite(loss)) points.push_back({static_cast<double>(step), loss});
  }
  const size_t group = (points.size() + kMaxPoints - 1) / kMaxPoints;
  if (group <= 1) return points;
  std::vector<Point> thinned;
  for (size_t first = 0; first < points.size(); first += group) {
    const size_t n = std::min(group, points.size() - first);
    Point mean;
    for (size_t i = first; i < first + n; ++i) {
      mean.x += points[i].x / static_cast<double>(n);
      mean.y += points[i].y / static_cast<double>(n);
    }
    thinned.push_back(mean);
  }
  return thinned;
}

std::string Format(const char* format, auto... values) {
  char text[256];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

// 1, 2 or 5 times a power of ten; about five of them make up `range`.
double TickStep(double range) {
  const double raw = range / 5;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw) return factor * power;
  }
  return 10 * power;
}

struct Axis {
  double min = 0;
  double max = 1;
  double from = 0;  // pixels
  double to = 1;

  double At(double value) const { return from + (value - min) / (max - min) * (to - from); }
};

Axis AxisOf(const std::vector<Point>& a, const std::vector<Point>& b, double Point::*member,
            double from, double to) {
  Axis axis{0, 1, from, to};
  std::optional<double> min;
  std::optional<double> max;
  for (const auto* points : {&a, &b}) {
    for (const Point& point : *points) {
      min = std::min(min.value_or(point.*member), point.*member);
      max = std::max(max.value_or(point.*member), point.*member);
    }
  }
  if (min) axis.min = *min;
  if (max) axis.max = *max;
  if (axis.max <= axis.min) axis.max = axis.min + 1;
  return axis;
}

std::string Grid(const Axis& x, const Axis& y) {
  std::string out;
  const double y_step = TickStep(y.max - y.min);
  for (double tick = std::ceil(y.min / y_step) * y_step; tick <= y.max; tick += y_step) {
    out += Format("<path d=\"M%.1f %.1fH%.1f\" stroke=\"#ddd\"/>\n", x.from, y.At(tick), x.to);
    out += Format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", x.from - 8,
                  y.At(tick) + 4, tick);
  }
  const double x_step = std::max(1.0, TickStep(x.max - x.min));
  for (double tick = std::ceil(x.min / x_step) * x_step; tick <= x.max; tick += x_step) {
    out += Format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.0f</text>\n", x.At(tick),
                  y.from + 20, tick);
  }
  out += Format("<path d=\"M%.1f %.1fV%.1fH%.1f\" fill=\"none\" stroke=\"#333\"/>\n", x.from, y.to,
                y.from, x.to);
  out += Format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">step</text>\n",
                (x.from + x.to) / 2, kHeight - 10);
  return out;
}

std::string Curve(const std::vector<Point>& points, const Axis& x, const Axis& y,
                  const char* color) {
  if (points.empty()) return "";
  std::string out =
      Format("<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" points=\"", color);
  for (const Point& point : points) out += Format("%.1f,%.1f ", x.At(point.x), y.At(point.y));
  return out + "\"/>\n";
}

class LossPlot : public MetricsSink {
 public:
  LossPlot(const fs::path& path, const fs::path& history, int64_t first_step) : path_(path) {
    MetricsHistory read = ReadHistory(history, first_step);
    training_ = std::move(read.losses);
    validation_ = std::move(read.eval_losses);
  }

  void Write(const MetricsRow& row) override {
    for (const Scalar& scalar : row.scalars) {
      if (!std::isfinite(scalar.value)) continue;
      const std::string_view name = scalar.name;
      if (name == "learning/loss") training_[row.step] = scalar.value;
      if (name == "eval/avg_loss") validation_[row.step] = scalar.value;
    }
  }

  void Flush() override { engine::WriteFileAtomically(path_, DrawLosses(training_, validation_)); }

 private:
  const fs::path path_;
  std::map<int64_t, double> training_;
  std::map<int64_t, double> validation_;
};

}  // namespace

std::string DrawLosses(const std::map<int64_t, double>& training,
                       const std::map<int64_t, double>& validation) {
  const std::vector<Point> ours = Thinned(training);
  const std::vector<Point> theirs = Thinned(validation);
  const Axis x = AxisOf(ours, theirs, &Point::x, kLeft, kWidth - kRight);
  const Axis y = AxisOf(ours, theirs, &Point::y, kHeight - kBottom, kTop);
  return Format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
             "font-family=\"sans-serif\" font-size=\"12\">\n"
             "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
             kWidth, kHeight) +
         Grid(x, y) + Curve(ours, x, y, "#1f77b4") + Curve(theirs, x, y, "#d62728") +
         Format("<text x=\"%.0f\" y=\"18\" fill=\"#1f77b4\">training loss</text>\n", kLeft) +
         Format("<text x=\"%.0f\" y=\"18\" fill=\"#d62728\">validation loss</text>\n",
                kLeft + 110) +
         "</svg>\n";
}

std::unique_ptr<MetricsSink> MakeLossPlot(const fs::path& path, const fs::path& history,
                                          int64_t first_step) {
  return std::make_unique<LossPlot>(path, history, first_step);
}

}  // namespace tandem::training
