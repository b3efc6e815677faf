#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "training/observe/metrics.h"

namespace tandem::training {
namespace {

// Writes flags as booleans and counts as whole numbers.
nlohmann::ordered_json JsonOf(const Scalar& scalar) {
  const std::string_view name = scalar.name;
  const double value = scalar.value;
  if (name == "learning/updated" || name == "learning/finite" || name == "learning/skipped") {
    return value != 0;
  }
  if (!std::isfinite(value)) return nullptr;  // JSON has no NaN or infinity
  const bool whole = value == std::floor(value) && std::abs(value) < 0x1p53;
  return whole ? nlohmann::ordered_json(static_cast<int64_t>(value))
               : nlohmann::ordered_json(value);
}

class JsonLines : public MetricsSink {
 public:
  explicit JsonLines(const std::filesystem::path& path) {
    // A killed process may have left an incomplete line.
    std::ifstream old(path, std::ios::binary | std::ios::ate);
    bool half_line = false;
    if (old && old.tellg() > 0) {
      old.seekg(-1, std::ios::end);
      half_line = old.get() != '\n';
    }
    file_.open(path, std::ios::app);
    if (half_line) file_ << '\n';
  }

  void Write(const MetricsRow& row) override {
    nlohmann::ordered_json line = {{"step", row.step}, {"unix_seconds", row.unix_seconds}};
    for (const Scalar& scalar : row.scalars) line[scalar.name] = JsonOf(scalar);
    file_.clear();
    file_ << line.dump() << '\n' << std::flush;
  }

 private:
  std::ofstream file_;
};

}  // namespace

std::unique_ptr<MetricsSink> MakeJsonLines(const std::filesystem::path& path) {
  return std::make_unique<JsonLines>(path);
}

}  // namespace tandem::training
