#include "server/terminal/terminal_mode.h"

#include <unistd.h>

#include <mutex>
#include <string_view>

namespace tandem::server {
namespace {

constexpr std::string_view kPasteOn = "\x1b[?2004h";
constexpr std::string_view kPasteOff = "\x1b[?2004l";

// The mode to return to.
struct SavedMode {
  std::mutex mutex;  // guards the rest
  bool is_saved = false;
  bool has_paste = false;
  int input = -1;
  int output = -1;
  termios settings{};
};

SavedMode& Saved() {
  static SavedMode saved;
  return saved;
}

void WriteSwitch(int fd, std::string_view text) {
  // A terminal that is gone needs no switch.
  static_cast<void>(!write(fd, text.data(), text.size()));
}

}  // namespace

TerminalMode::TerminalMode(int input, int output, Kind kind) {
  SavedMode& saved = Saved();
  const std::lock_guard lock(saved.mutex);
  if (tcgetattr(input, &saved.settings) != 0) return;
  termios changed = saved.settings;
  changed.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON);
  changed.c_cc[VMIN] = 1;
  changed.c_cc[VTIME] = 0;
  if (kind == Kind::kEditing) {
    changed.c_lflag &= ~static_cast<tcflag_t>(ISIG | IEXTEN);
    changed.c_iflag &= ~static_cast<tcflag_t>(IXON | ICRNL | INLCR | IGNCR | ISTRIP);
  }
  saved.input = input;
  saved.output = output;
  saved.has_paste = kind == Kind::kEditing;
  saved.is_saved = tcsetattr(input, TCSADRAIN, &changed) == 0;
  if (saved.is_saved && saved.has_paste) WriteSwitch(output, kPasteOn);
}

TerminalMode::~TerminalMode() { RestoreTerminal(); }

void RestoreTerminal() noexcept {
  SavedMode& saved = Saved();
  const std::lock_guard lock(saved.mutex);
  if (!saved.is_saved) return;
  saved.is_saved = false;
  if (saved.has_paste) WriteSwitch(saved.output, kPasteOff);
  tcsetattr(saved.input, TCSADRAIN, &saved.settings);
}

}  // namespace tandem::server
