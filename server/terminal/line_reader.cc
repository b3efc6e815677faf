#include "server/terminal/line_reader.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "engine/io/posix_file.h"
#include "server/terminal/terminal.h"
#include "server/terminal/terminal_mode.h"

namespace tandem::server {
namespace {

constexpr size_t kMaxLineBytes = size_t{16} << 20;

bool CanEdit(int input, int output) {
  const char* const name = std::getenv("TERM");
  return IsTerminal(input) && IsTerminal(output) && name != nullptr && *name != '\0' &&
         std::string_view(name) != "dumb";
}

}  // namespace

LineReader::LineReader(int input, int output, const LineHistory& history, Completer completer)
    : input_(input),
      output_(output),
      can_edit_(CanEdit(input, output)),
      editor_(history, std::move(completer)) {}

std::optional<LineReader::Line> LineReader::Read(const std::string& prompt,
                                                 const std::string& continuation) {
  return can_edit_ ? Edit(prompt, continuation) : ReadPlain();
}

bool LineReader::Fill() {
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t n = read(input_, buffer.data(), buffer.size());
    if (n > 0) unread_.append(buffer.data(), static_cast<size_t>(n));
    if (n > 0) return true;
    // EIO: the terminal has hung up.
    if (n == 0 || errno == EIO) return false;
    if (errno != EINTR) engine::ThrowSystemError("read", "standard input", errno);
  }
}

void LineReader::Write(const std::string& bytes) const {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = write(output_, bytes.data() + done, bytes.size() - done);
    if (n >= 0) done += static_cast<size_t>(n);
    if (n < 0 && errno != EINTR) return;  // the next read reports a terminal that is gone
  }
}

std::optional<LineReader::Line> LineReader::Edit(const std::string& prompt,
                                                 const std::string& continuation) {
  using Outcome = LineEditor::Outcome;
  std::optional<TerminalMode> mode;
  mode.emplace(input_, output_, TerminalMode::Kind::kEditing);
  editor_.Begin(prompt, continuation);
  const auto draw = [&] { Write(editor_.Draw(TerminalWidth(output_), TerminalHeight(output_))); };
  draw();
  for (;;) {
    if (unread_.empty() && !Fill()) {
      Write(editor_.Leave(TerminalWidth(output_)));
      return std::nullopt;
    }
    Outcome outcome = Outcome::kEditing;
    size_t used = 0;
    while (used < unread_.size() && outcome == Outcome::kEditing) {
      outcome = editor_.Feed(unread_[used++]);
    }
    unread_.erase(0, used);
    if (outcome == Outcome::kEditing) {
      draw();
      continue;
    }
    Write(editor_.Leave(TerminalWidth(output_)));
    if (outcome == Outcome::kEnded) return std::nullopt;
    if (outcome != Outcome::kSuspended) {
      return Line{editor_.text(), outcome == Outcome::kInterrupted};
    }
    mode.reset();
    raise(SIGTSTP);
    mode.emplace(input_, output_, TerminalMode::Kind::kEditing);
    draw();
  }
}

std::optional<LineReader::Line> LineReader::ReadPlain() {
  size_t searched = 0;
  for (;;) {
    const size_t end = unread_.find('\n', searched);
    if (end != std::string::npos) {
      Line line{unread_.substr(0, end)};
      unread_.erase(0, end + 1);
      if (line.text.ends_with('\r')) line.text.pop_back();
      return line;
    }
    searched = unread_.size();
    if (searched > kMaxLineBytes) {
      throw Error(ErrorCode::kInvalidArgument, "a line of the input has more than 16 MiB");
    }
    if (!Fill()) break;
  }
  if (unread_.empty()) return std::nullopt;
  return Line{std::exchange(unread_, {})};
}

}  // namespace tandem::server
