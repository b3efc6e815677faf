#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tandem::server {

// Shows the events of a fine-tuning job on standard error: on a terminal the figures of the last
// step in one changing line, elsewhere a line every ten seconds. Messages get a line each. One
// thread.
class JobProgressLine {
 public:
  JobProgressLine();
  void Take(const nlohmann::ordered_json& event);
  // Ends the changing line.
  void End();

 private:
  const bool is_terminal_;
  bool has_line_ = false;
  std::chrono::steady_clock::time_point last_shown_{};
};

// One line for an event: time, level unless it is info, and message.
std::string EventLine(const nlohmann::ordered_json& event);

// "step 12/60  loss 1.234  …" of a metrics event; empty for other events.
std::string FiguresLine(const nlohmann::ordered_json& event);

}  // namespace tandem::server
