#pragma once

#include <termios.h>

namespace tandem::server {

// Changes the mode of a terminal while the object lives. At most one object exists at a time. Does
// nothing for a descriptor that is no terminal.
class TerminalMode {
 public:
  enum class Kind {
    kEditing,    // raw: every key arrives as bytes at once; also turns bracketed paste on
    kAnswering,  // keys are not echoed and wait for the next line; Ctrl-C raises SIGINT
  };
  // Writes the switches of bracketed paste to `output`.
  TerminalMode(int input, int output, Kind kind);
  ~TerminalMode();
  TerminalMode(const TerminalMode&) = delete;
  TerminalMode& operator=(const TerminalMode&) = delete;
};

// Ends the mode of the living object, if there is one, before the process ends otherwise. Any
// thread.
void RestoreTerminal() noexcept;

}  // namespace tandem::server
