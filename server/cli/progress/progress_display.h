#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "engine/base/progress.h"
#include "server/cli/progress/progress_rate.h"
#include "server/cli/progress/progress_text.h"

namespace tandem::server {

enum class ProgressStyle {
  kBar,    // one line of a terminal, drawn again and again, removed at the end
  kLines,  // a line every ten seconds, and one at the end of work that took longer
  kJson,   // one object per line: at the beginning, every second, at the end
};

// Shows the progress of this process's tasks. A bar or line is about the newest task; JSON is about
// all. Any thread.
class ProgressDisplay : public ProgressSink {
 public:
  struct Options {
    ProgressStyle style = ProgressStyle::kLines;
    bool has_colour = false;
    std::function<void(std::string_view text)> write;  // to the terminal or log; must not throw
    std::function<int()> columns = [] { return 80; };
    std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
  };
  explicit ProgressDisplay(Options options);
  // Removes the bar.
  ~ProgressDisplay() override;

  void Show(const ProgressState& state) noexcept override;

  // Removes the bar while `print` runs, so that it can write whole lines to the same terminal.
  void Around(const std::function<void()>& print);

 private:
  using Time = std::chrono::steady_clock::time_point;

  struct Task {
    ProgressFigures figures;
    ProgressRate rate;
    Time begin;
    Time next_line;
    bool has_line = false;
  };

  Task& Update(const ProgressState& state, Time now);
  void ShowBar(Time now);
  void ShowLine(Task& task, bool is_finished, Time now);
  void ShowJson(Task& task, bool is_finished, Time now);
  void RemoveBar();

  const Options options_;
  std::mutex mutex_;  // guards the rest, and the order of writes
  std::map<uint64_t, Task> tasks_;
  std::string bar_;  // on the terminal now; empty: none
};

}  // namespace tandem::server
