#pragma once

#include <functional>
#include <memory>
#include <string>

namespace CLI {
class App;
}

namespace tandem::server {

class ProgressDisplay;

// Flags of the verbs that may take long.
struct ProgressFlags {
  std::string style = "auto";  // auto, lines, json or none
  bool quiet = false;
};

// Adds --quiet and --progress.
void AddProgressFlags(CLI::App& command, ProgressFlags& flags);

// Shows the progress of this process on standard error while it lives. On a terminal a bar stays
// below the lines of the log and of Print; elsewhere a line comes every ten seconds.
// At most one instance at a time.
class ShownProgress {
 public:
  explicit ShownProgress(const ProgressFlags& flags);
  ~ShownProgress();
  ShownProgress(const ShownProgress&) = delete;
  ShownProgress& operator=(const ShownProgress&) = delete;

  // Runs `print`, which writes whole lines to the terminal, without the bar in between. Any thread.
  void Print(const std::function<void()>& print) const;

 private:
  std::shared_ptr<ProgressDisplay> display_;  // null: nothing is shown
};

// Sends the progress of this process to the log, one line every ten seconds.
void LogProgress();

// Whether standard error is a terminal on which a line can be drawn again.
bool CanDrawBar();

}  // namespace tandem::server
