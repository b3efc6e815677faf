#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace tandem::server {

// A key press, or a paste.
struct Key {
  enum class Kind {
    kText,   // a typed character
    kPaste,  // pasted text, line breaks as LF
    kEnter,
    kNewLine,  // Alt-Enter: a line break inside the text
    kTab,
    kLeft,
    kRight,
    kUp,
    kDown,
    kHome,
    kEnd,
    kWordLeft,
    kWordRight,
    kBackspace,
    kDelete,
    kKillToEnd,
    kKillToBegin,
    kKillWordLeft,
    kKillWordRight,
    kYank,
    kInterrupt,   // Ctrl-C
    kEndOfInput,  // Ctrl-D
    kClearScreen,
    kSuspend,  // Ctrl-Z
  };
  Kind kind;
  std::string text = {};  // of kText and kPaste; valid UTF-8
};

// Decodes the bytes of a terminal in raw mode: UTF-8, the escape sequences of xterm and its kin,
// and bracketed paste. Drops sequences that it does not know and bytes that are not UTF-8. One
// thread.
class KeyDecoder {
 public:
  // A paste beyond this size is cut.
  static constexpr size_t kMaxPasteBytes = size_t{4} << 20;

  // Returns the key that the byte completes.
  std::optional<Key> Feed(char byte);

 private:
  std::optional<Key> FeedText();
  std::optional<Key> FeedEscape(char byte);
  std::optional<Key> FeedPaste(char byte);

  enum class State { kText, kEscape, kSequence, kPaste };
  State state_ = State::kText;
  std::string pending_;       // a character or sequence that is not complete, or the paste
  bool is_function_ = false;  // ESC O instead of ESC [
};

}  // namespace tandem::server
