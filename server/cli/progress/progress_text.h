#pragma once

#include <cstdint>
#include <string>

namespace tandem::server {

// How far a piece of work is, with its speed. Phases may hold any bytes: the functions below make
// them visible text.
struct ProgressFigures {
  uint64_t task = 0;
  std::string phase = {};
  std::string unit =
      {};             // "bytes", a plural such as "steps", or empty: only the percentage matters
  int64_t done = 0;   // in units
  int64_t total = 0;  // 0: unknown
  double per_second = 0;    // 0: unknown
  double seconds_left = 0;  // 0: unknown
  double seconds = 0;       // since the beginning
};

// One line without a line feed: "packing weights of m: 42 %, 1.2 of 2.9 GiB, 85.3 MiB/s, 20 s
// left".
std::string ProgressLine(const ProgressFigures& figures);

// The line after the work: "packing weights of m: done, 2.9 GiB in 34 s".
std::string ProgressEnd(const ProgressFigures& figures);

// ProgressLine with a bar, in less than `columns` columns. It leaves out first the speed,
// then the amount and the time left, and cuts the phase.
std::string ProgressBar(const ProgressFigures& figures, int columns, bool has_colour);

// One JSON object without a line feed. Members without a known value are absent.
std::string ProgressJson(const ProgressFigures& figures, bool is_finished);

// "20 s", "34 min", "2 h 5 min".
std::string RoughDuration(double seconds);

}  // namespace tandem::server
