#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <string>

#include "engine/io/atomic_write.h"
#include "training/observe/metrics.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

std::string Shown(double value) {
  if (!std::isfinite(value)) return "";
  char text[32];
  const auto [end, failed] = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end);
}

std::string HeaderLine() {
  std::string line = "step,unix_seconds";
  for (const char* name : kMetricNames) line.append(",").append(name);
  return line;
}

// Only rows of steps have the first metric (the third cell).
bool IsKept(const std::string& line, int64_t first_step) {
  int64_t step = 0;
  const auto [after, failed] = std::from_chars(line.data(), line.data() + line.size(), step);
  const auto cells = std::count(line.begin(), line.end(), ',');
  if (failed != std::errc() || cells != static_cast<int64_t>(kMetricNames.size()) + 1) return false;
  const size_t third = line.find(',', line.find(',') + 1) + 1;
  const auto kind = line[third] == ',' ? MetricsRow::Kind::kBetweenSteps : MetricsRow::Kind::kStep;
  return !IsRedone(kind, step, first_step);
}

class Csv : public MetricsSink {
 public:
  Csv(const fs::path& path, int64_t first_step) {
    std::string kept = HeaderLine() + "\n";
    std::ifstream old(path);
    for (std::string line; std::getline(old, line) && !old.eof();) {  // eof: an incomplete line
      if (IsKept(line, first_step)) kept += line + "\n";
    }
    engine::WriteFileAtomically(path, kept);
    file_.open(path, std::ios::app);
  }

  void Write(const MetricsRow& row) override {
    std::string line = std::to_string(row.step) + "," + Shown(row.unix_seconds);
    for (const char* name : kMetricNames) {
      line += ',';
      for (const Scalar& scalar : row.scalars) {
        if (std::string_view(scalar.name) == name) line += Shown(scalar.value);
      }
    }
    file_.clear();
    file_ << line << '\n' << std::flush;
  }

 private:
  std::ofstream file_;
};

}  // namespace

std::unique_ptr<MetricsSink> MakeCsv(const fs::path& path, int64_t first_step) {
  return std::make_unique<Csv>(path, first_step);
}

}  // namespace tandem::training
