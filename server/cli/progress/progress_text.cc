#include "server/cli/progress/progress_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "server/terminal/display_width.h"
#include "server/terminal/terminal.h"
#include "server/terminal/visible_text.h"

namespace tandem::server {
namespace {

constexpr size_t kMostPhaseBytes = 200;
constexpr int64_t kLeastPhaseColumns = 12;
constexpr int64_t kLeastBarColumns = 8;
constexpr int64_t kMostBarColumns = 30;

struct ByteUnit {
  double bytes;
  const char* name;
};

ByteUnit ByteUnitOf(double bytes) {
  static constexpr std::array<ByteUnit, 4> kUnits{
      {{0x1p40, "TiB"}, {0x1p30, "GiB"}, {0x1p20, "MiB"}, {0x1p10, "KiB"}}};
  for (const ByteUnit& unit : kUnits) {
    if (bytes >= unit.bytes) return unit;
  }
  return {1, "B"};
}

std::string Fixed(double value, int digits) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

bool IsBytes(const ProgressFigures& figures) { return figures.unit == "bytes"; }

std::string BytesIn(double bytes, const ByteUnit& unit) {
  return Fixed(bytes / unit.bytes, unit.bytes > 1 ? 1 : 0);
}

std::string AmountDone(const ProgressFigures& figures) {
  if (!IsBytes(figures)) return std::to_string(figures.done) + " " + figures.unit;
  const ByteUnit unit = ByteUnitOf(static_cast<double>(figures.done));
  return BytesIn(static_cast<double>(figures.done), unit) + " " + unit.name;
}

// "1.2 of 2.9 GiB", "12 of 60 steps"; without a total "12 steps".
std::string Amount(const ProgressFigures& figures) {
  if (figures.unit.empty()) return "";
  if (figures.total <= 0) return AmountDone(figures);
  if (!IsBytes(figures)) {
    return std::to_string(figures.done) + " of " + std::to_string(figures.total) + " " +
           figures.unit;
  }
  const ByteUnit unit = ByteUnitOf(static_cast<double>(figures.total));
  return BytesIn(static_cast<double>(figures.done), unit) + " of " +
         BytesIn(static_cast<double>(figures.total), unit) + " " + unit.name;
}

std::string Speed(const ProgressFigures& figures) {
  if (figures.per_second <= 0 || figures.unit.empty()) return "";
  if (IsBytes(figures)) {
    const ByteUnit unit = ByteUnitOf(figures.per_second);
    return BytesIn(figures.per_second, unit) + " " + unit.name + "/s";
  }
  const int digits = figures.per_second < 1 ? 2 : figures.per_second < 100 ? 1 : 0;
  return Fixed(figures.per_second, digits) + " " + figures.unit + "/s";
}

std::string TimeLeft(const ProgressFigures& figures) {
  return figures.seconds_left > 0 ? RoughDuration(figures.seconds_left) + " left" : "";
}

std::string Joined(std::initializer_list<std::string> parts) {
  std::string text;
  for (const std::string& part : parts) {
    if (!part.empty()) text += (text.empty() ? "" : ", ") + part;
  }
  return text;
}

// From 0 to 1; 0 without a total.
double Fraction(const ProgressFigures& figures) {
  if (figures.total <= 0) return 0;
  const double fraction = static_cast<double>(figures.done) / static_cast<double>(figures.total);
  return std::clamp(fraction, 0.0, 1.0);
}

// Rounded down: 100 % means done.
std::string Percent(const ProgressFigures& figures) {
  if (figures.total <= 0) return "";
  return std::to_string(static_cast<int>(100 * Fraction(figures))) + " %";
}

std::string PhaseText(const ProgressFigures& figures) {
  return VisibleLine(figures.phase, kMostPhaseBytes);
}

std::string BarText(double fraction, int64_t columns, bool has_colour) {
  const auto n = static_cast<size_t>(columns - 2);
  const auto filled = static_cast<size_t>(fraction * static_cast<double>(n));
  return "[" + Styled(kGreen, std::string(filled, '#'), has_colour) + std::string(n - filled, '.') +
         "]";
}

}  // namespace

std::string RoughDuration(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(std::clamp(seconds, 0.0, 1e9)));
  if (whole < 120) return std::to_string(whole) + " s";
  if (whole < 7200) return std::to_string(whole / 60) + " min";
  return std::to_string(whole / 3600) + " h " + std::to_string(whole / 60 % 60) + " min";
}

std::string ProgressLine(const ProgressFigures& figures) {
  const std::string facts =
      Joined({Percent(figures), Amount(figures), Speed(figures), TimeLeft(figures)});
  return PhaseText(figures) + (facts.empty() ? "" : ": " + facts);
}

std::string ProgressEnd(const ProgressFigures& figures) {
  const std::string amount = figures.unit.empty() ? "" : ", " + AmountDone(figures);
  return PhaseText(figures) + ": done" + amount + " in " + RoughDuration(figures.seconds);
}

std::string ProgressBar(const ProgressFigures& figures, int columns, bool has_colour) {
  // The last column stays free: some terminals wrap after it.
  const int64_t room = std::max(columns - 1, 1);
  const std::string phase = PhaseText(figures);
  const std::string amount = Amount(figures), speed = Speed(figures), left = TimeLeft(figures);
  std::string percent = Percent(figures);
  if (!percent.empty()) percent.insert(0, 5 - std::min<size_t>(5, percent.size()), ' ');

  const int64_t least_phase = std::min(DisplayWidth(phase), kLeastPhaseColumns);
  std::string facts;
  int64_t rest = 0;  // columns beside the phase and the bar
  for (const std::string& candidate :
       {Joined({amount, speed, left}), Joined({amount, left}), left, std::string()}) {
    facts = candidate;
    rest = (percent.empty() ? 0 : 2 + DisplayWidth(percent)) +
           (facts.empty() ? 0 : 2 + DisplayWidth(facts));
    if (least_phase + rest <= room) break;
  }
  if (rest >= room) {
    const std::string& only = percent.empty() ? phase : percent;
    return FitColumns(only, std::min(room, DisplayWidth(only)));
  }

  const int64_t free = room - rest;  // columns of the phase and the bar
  constexpr int64_t kLeastBar = 2 + kLeastBarColumns;
  int64_t phase_columns = std::min(DisplayWidth(phase), free);
  int64_t bar_columns = 0;
  if (figures.total > 0 && least_phase + kLeastBar <= free) {
    phase_columns = std::min(DisplayWidth(phase), free - kLeastBar);
    bar_columns = std::min(kMostBarColumns, free - phase_columns - 2);
  }
  std::string text = FitColumns(phase, phase_columns);
  if (!percent.empty()) text += "  " + percent;
  if (bar_columns > 0) text += "  " + BarText(Fraction(figures), bar_columns, has_colour);
  return text + (facts.empty() ? "" : "  " + facts);
}

std::string ProgressJson(const ProgressFigures& figures, bool is_finished) {
  nlohmann::ordered_json json = {{"event", "progress"},
                                 {"task", figures.task},
                                 {"phase", figures.phase},
                                 {"done", figures.done}};
  if (figures.total > 0) json["total"] = figures.total;
  if (!figures.unit.empty()) json["unit"] = figures.unit;
  const auto rounded = [](double value) { return std::round(value * 100) / 100; };
  if (figures.per_second > 0) json["per_second"] = rounded(figures.per_second);
  if (figures.seconds_left > 0) json["seconds_left"] = rounded(figures.seconds_left);
  json["seconds"] = rounded(figures.seconds);
  json["is_finished"] = is_finished;
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace tandem::server
