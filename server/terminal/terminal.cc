#include "server/terminal/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

namespace tandem::server {

bool IsTerminal(int fd) { return isatty(fd) == 1; }

int TerminalWidth(int fd) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

int TerminalHeight(int fd) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 ? size.ws_row : 24;
}

bool UseColour(int fd) {
  const char* const refused = std::getenv("NO_COLOR");
  if (refused != nullptr && *refused != '\0') return false;
  const char* const name = std::getenv("TERM");
  return IsTerminal(fd) && name != nullptr && *name != '\0' && std::string_view(name) != "dumb";
}

std::string Styled(std::string_view style, std::string_view text, bool has_colour) {
  if (!has_colour || text.empty()) return std::string(text);
  return std::string(style).append(text).append(kPlain);
}

}  // namespace tandem::server
