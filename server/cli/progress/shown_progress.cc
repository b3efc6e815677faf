#include "server/cli/progress/shown_progress.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/base/log.h"
#include "server/cli/progress/progress_display.h"
#include "server/terminal/terminal.h"

namespace tandem::server {
namespace {

// A closed or full standard error loses progress, nothing else.
void WriteToStderr(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(STDERR_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

std::optional<ProgressStyle> StyleOf(const ProgressFlags& flags) {
  if (flags.quiet || flags.style == "none") return std::nullopt;
  if (flags.style == "json") return ProgressStyle::kJson;
  if (flags.style == "lines" || !CanDrawBar()) return ProgressStyle::kLines;
  return ProgressStyle::kBar;
}

}  // namespace

bool CanDrawBar() {
  const char* const name = std::getenv("TERM");
  return IsTerminal(STDERR_FILENO) && name != nullptr && *name != '\0' &&
         std::string_view(name) != "dumb";
}

void AddProgressFlags(CLI::App& command, ProgressFlags& flags) {
  auto* const style =
      command
          .add_option("--progress", flags.style,
                      "progress of long work, on standard error. auto: a bar on a terminal, a line "
                      "every 10 s elsewhere; json: one object per line")
          ->check(CLI::IsMember({"auto", "lines", "json", "none"}))
          ->capture_default_str();
  command.add_flag("-q,--quiet", flags.quiet, "show no progress; like --progress none")
      ->excludes(style);
}

ShownProgress::ShownProgress(const ProgressFlags& flags) {
  const std::optional<ProgressStyle> style = StyleOf(flags);
  if (!style) return;
  ProgressDisplay::Options options;
  options.style = *style;
  options.has_colour = UseColour(STDERR_FILENO);
  options.write = WriteToStderr;
  options.columns = [] { return TerminalWidth(STDERR_FILENO); };
  display_ = std::make_shared<ProgressDisplay>(std::move(options));
  SetProgressSink(display_);
  SetLogAroundWrite(
      [display = display_](const std::function<void()>& write) { display->Around(write); });
}

ShownProgress::~ShownProgress() {
  if (!display_) return;
  SetProgressSink(nullptr);
  SetLogAroundWrite({});
}

void ShownProgress::Print(const std::function<void()>& print) const {
  if (display_) return display_->Around(print);
  print();
}

void LogProgress() {
  ProgressDisplay::Options options;
  options.write = [](std::string_view line) {
    while (line.ends_with('\n')) line.remove_suffix(1);
    LogEvent(spdlog::level::info, "progress", {{"what", std::string(line)}});
  };
  SetProgressSink(std::make_shared<ProgressDisplay>(std::move(options)));
}

}  // namespace tandem::server
