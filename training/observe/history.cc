#include "training/observe/history.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "training/observe/metrics.h"

namespace tandem::training {
namespace {

double NumberOr(const nlohmann::json& line, const char* name, double standard) {
  const auto at = line.find(name);
  return at != line.end() && at->is_number() ? at->get<double>() : standard;
}

}  // namespace

MetricsHistory ReadHistory(const std::filesystem::path& path, int64_t first_step) {
  MetricsHistory history;
  std::map<int64_t, double> seconds;
  std::ifstream file(path);
  for (std::string text; std::getline(file, text);) {
    const auto line = nlohmann::json::parse(text, nullptr, false);
    if (!line.is_object() || !line.contains("step") || !line["step"].is_number_integer()) continue;
    const int64_t step = line["step"];
    const auto loss = line.find("learning/loss");
    if (loss != line.end() && !loss->is_number()) continue;  // of a skipped step
    if (loss != line.end()) {
      const double took = NumberOr(line, "perf/step_time_seconds", 0);
      const double began = NumberOr(line, "unix_seconds", 0) - took;
      if (history.started_unix == 0) history.started_unix = std::max(0.0, began);
      if (IsRedone(MetricsRow::Kind::kStep, step, first_step)) continue;
      if (line.value("learning/finite", true)) seconds[step] = took;
      history.losses[step] = loss->get<double>();
    } else if (line.contains("eval/avg_loss")) {
      if (IsRedone(MetricsRow::Kind::kBetweenSteps, step, first_step)) continue;
      history.eval_losses[step] = NumberOr(line, "eval/avg_loss", 0);
    }
  }
  for (const auto& [step, took] : seconds) history.productive_seconds += took;
  return history;
}

}  // namespace tandem::training
