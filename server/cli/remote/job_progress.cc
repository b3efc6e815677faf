#include "server/cli/remote/job_progress.h"

#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "server/cli/remote/table.h"
#include "server/terminal/display_width.h"
#include "server/terminal/terminal.h"
#include "server/terminal/visible_text.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::seconds kFiguresInterval{10};
constexpr const char* kEraseLine = "\r\x1b[K";

std::string NumberCell(const Json& data, const char* name, const char* format) {
  const auto found = data.find(name);
  if (found == data.end() || !found->is_number()) return "";
  char text[64];
  std::snprintf(text, sizeof text, format, found->get<double>());
  return text;
}

}  // namespace

std::string EventLine(const Json& event) {
  const std::string level = CellOf(event, "level");
  return TimeCellOf(event, "created_at") + "  " +
         (level == "info" ? "" : VisibleLine(level) + ": ") + VisibleLine(CellOf(event, "message"));
}

std::string FiguresLine(const Json& event) {
  if (!event.is_object() || CellOf(event, "type") != "metrics") return "";
  const Json data = event.value("data", Json());
  if (!data.is_object()) return "";
  std::string line =
      "step " + NumberCell(data, "step", "%.0f") + "/" + NumberCell(data, "total_steps", "%.0f");
  const auto add = [&](const char* label, const std::string& value) {
    if (!value.empty()) line += std::string("  ") + label + " " + value;
  };
  add("loss", NumberCell(data, "train_loss", "%.4f"));
  add("validation loss", NumberCell(data, "valid_loss", "%.4f"));
  add("accuracy", NumberCell(data, "train_mean_token_accuracy", "%.3f"));
  add("learning rate", NumberCell(data, "learning_rate", "%.2e"));
  add("tokens/s", NumberCell(data, "tokens_per_second", "%.0f"));
  return line;
}

JobProgressLine::JobProgressLine() : is_terminal_(IsTerminal(STDERR_FILENO)) {}

void JobProgressLine::Take(const Json& event) {
  const std::string figures = FiguresLine(event);
  if (figures.empty()) {
    End();
    std::fprintf(stderr, "%s\n", EventLine(event).c_str());
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (is_terminal_) {
    const int columns = TerminalWidth(STDERR_FILENO) - 1;
    const std::string shown =
        DisplayWidth(figures) > columns ? FitColumns(figures, columns) : figures;
    std::fprintf(stderr, "%s%s", kEraseLine, shown.c_str());
    std::fflush(stderr);
    has_line_ = true;
  } else if (last_shown_ == std::chrono::steady_clock::time_point() ||
             now - last_shown_ >= kFiguresInterval) {
    std::fprintf(stderr, "%s\n", figures.c_str());
    last_shown_ = now;
  }
}

void JobProgressLine::End() {
  if (has_line_) std::fputs("\n", stderr);
  has_line_ = false;
}

}  // namespace tandem::server
