#include "server/terminal/terminal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace tandem::server {
namespace {

// The two ends of a pseudo-terminal.
class PseudoTerminal {
 public:
  PseudoTerminal() : master_(posix_openpt(O_RDWR | O_NOCTTY)) {
    EXPECT_EQ(grantpt(master_), 0);
    EXPECT_EQ(unlockpt(master_), 0);
    char name[64];
    EXPECT_EQ(ptsname_r(master_, name, sizeof name), 0);
    slave_ = open(name, O_RDWR | O_NOCTTY);
    EXPECT_GE(slave_, 0);
  }
  ~PseudoTerminal() {
    close(slave_);
    close(master_);
  }
  int fd() const { return slave_; }

 private:
  int master_;
  int slave_ = -1;
};

TEST(Terminal, AFileIsNoTerminalAndHasNoColour) {
  const int file = open("/dev/null", O_RDWR);
  EXPECT_FALSE(IsTerminal(file));
  EXPECT_FALSE(UseColour(file));
  EXPECT_EQ(TerminalWidth(file), 80);
  EXPECT_EQ(TerminalHeight(file), 24);
  close(file);
}

TEST(Terminal, WidthIsTheTerminalsOwn) {
  const PseudoTerminal terminal;
  EXPECT_EQ(TerminalWidth(terminal.fd()), 80);
  const winsize size{.ws_row = 50, .ws_col = 123, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(ioctl(terminal.fd(), TIOCSWINSZ, &size), 0);
  EXPECT_EQ(TerminalWidth(terminal.fd()), 123);
  EXPECT_EQ(TerminalHeight(terminal.fd()), 50);
}

TEST(Terminal, ColourObeysNoColorAndTerm) {
  const PseudoTerminal terminal;
  setenv("TERM", "xterm", 1);
  unsetenv("NO_COLOR");
  EXPECT_TRUE(UseColour(terminal.fd()));
  setenv("NO_COLOR", "", 1);
  EXPECT_TRUE(UseColour(terminal.fd()));
  setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(UseColour(terminal.fd()));
  unsetenv("NO_COLOR");
  setenv("TERM", "dumb", 1);
  EXPECT_FALSE(UseColour(terminal.fd()));
  unsetenv("TERM");
  EXPECT_FALSE(UseColour(terminal.fd()));
}

TEST(Terminal, StyledTextIsPlainWithoutColour) {
  EXPECT_EQ(Styled(kDim, "x", true), "\x1b[2mx\x1b[0m");
  EXPECT_EQ(Styled(kDim, "x", false), "x");
  EXPECT_EQ(Styled(kDim, "", true), "");
}

}  // namespace
}  // namespace tandem::server
