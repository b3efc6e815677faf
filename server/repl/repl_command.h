#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tandem::server {

// A line that begins with '/'.
struct ReplCommand {
  enum class Kind {
    kHelp,
    kSystem,
    kSet,
    kShow,
    kSave,
    kLoad,
    kRegenerate,
    kUndo,
    kClear,
    kTokens,
    kRender,
    kExit,
  };
  Kind kind;
  std::string argument;  // the rest of the line, without spaces around it
};

// Whether a line is a command; a space before the slash makes it a text.
inline bool IsReplCommand(std::string_view line) { return line.starts_with('/'); }

// Throws kInvalidArgument for an unknown command, with the nearest one, and for an argument that is
// missing or too much. REQUIRES: IsReplCommand(line).
ReplCommand ParseReplCommand(std::string_view line);

// One line per command.
std::string ReplHelp();

// The commands that begin with `text`, and names of settings after "/set ".
std::vector<std::string> CompleteReplCommand(std::string_view text);

}  // namespace tandem::server
