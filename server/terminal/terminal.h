#pragma once

#include <string>
#include <string_view>

// The terminal behind a file descriptor. Any thread.
namespace tandem::server {

bool IsTerminal(int fd);

// Columns of the terminal; 80 if the descriptor is no terminal or the size is unknown.
int TerminalWidth(int fd);
// Lines of the terminal; 24 if unknown.
int TerminalHeight(int fd);

// Whether to write colours and other styles: on a terminal whose TERM is set and is not `dumb`,
// unless NO_COLOR is set and not empty.
bool UseColour(int fd);

// Styles as escape sequences. All end with kPlain.
inline constexpr std::string_view kPlain = "\x1b[0m";
inline constexpr std::string_view kBold = "\x1b[1m";
inline constexpr std::string_view kDim = "\x1b[2m";
inline constexpr std::string_view kRed = "\x1b[31m";
inline constexpr std::string_view kGreen = "\x1b[32m";

// The text in a style; unchanged without colour.
std::string Styled(std::string_view style, std::string_view text, bool has_colour);

}  // namespace tandem::server
