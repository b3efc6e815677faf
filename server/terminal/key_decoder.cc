#include "server/terminal/key_decoder.h"

#include <string_view>
#include <utility>

#include "engine/base/utf8.h"

namespace tandem::server {
namespace {

using Kind = Key::Kind;

constexpr std::string_view kPasteEnd = "\x1b[201~";
// Longer sequences are no keys.
constexpr size_t kMaxSequenceBytes = 32;

std::optional<Key> ControlKey(char byte) {
  switch (byte) {
    case 0x01:
      return Key{Kind::kHome};
    case 0x02:
      return Key{Kind::kLeft};
    case 0x03:
      return Key{Kind::kInterrupt};
    case 0x04:
      return Key{Kind::kEndOfInput};
    case 0x05:
      return Key{Kind::kEnd};
    case 0x06:
      return Key{Kind::kRight};
    case 0x08:
    case 0x7F:
      return Key{Kind::kBackspace};
    case 0x09:
      return Key{Kind::kTab};
    case 0x0A:
    case 0x0D:
      return Key{Kind::kEnter};
    case 0x0B:
      return Key{Kind::kKillToEnd};
    case 0x0C:
      return Key{Kind::kClearScreen};
    case 0x0E:
      return Key{Kind::kDown};
    case 0x10:
      return Key{Kind::kUp};
    case 0x15:
      return Key{Kind::kKillToBegin};
    case 0x17:
      return Key{Kind::kKillWordLeft};
    case 0x19:
      return Key{Kind::kYank};
    case 0x1A:
      return Key{Kind::kSuspend};
    default:
      return std::nullopt;
  }
}

std::optional<Key> AltKey(char byte) {
  switch (byte) {
    case 'b':
      return Key{Kind::kWordLeft};
    case 'f':
      return Key{Kind::kWordRight};
    case 'd':
      return Key{Kind::kKillWordRight};
    case 0x08:
    case 0x7F:
      return Key{Kind::kKillWordLeft};
    case 0x0A:
    case 0x0D:
      return Key{Kind::kNewLine};
    default:
      return std::nullopt;
  }
}

// A sequence such as "1;5C" or "3~", without its beginning.
std::optional<Key> SequenceKey(std::string_view sequence) {
  const bool is_modified = sequence.find(';') != std::string_view::npos;
  const std::string_view number = sequence.substr(0, sequence.find_first_not_of("0123456789"));
  switch (sequence.back()) {
    case 'A':
      return Key{Kind::kUp};
    case 'B':
      return Key{Kind::kDown};
    case 'C':
      return Key{is_modified ? Kind::kWordRight : Kind::kRight};
    case 'D':
      return Key{is_modified ? Kind::kWordLeft : Kind::kLeft};
    case 'H':
      return Key{Kind::kHome};
    case 'F':
      return Key{Kind::kEnd};
    case '~':
      if (number == "1" || number == "7") return Key{Kind::kHome};
      if (number == "4" || number == "8") return Key{Kind::kEnd};
      if (number == "3") return Key{Kind::kDelete};
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

// Terminals send pasted line breaks as CR. Other controls could act like keys: drops them.
std::string CleanPaste(std::string_view bytes) {
  std::string out;
  for (size_t i = 0; i < bytes.size();) {
    const Utf8Unit unit = NextUtf8(bytes.substr(i));
    const char c = bytes[i];
    if (c == '\r') {
      out.push_back('\n');
      if (i + 1 < bytes.size() && bytes[i + 1] == '\n') ++i;
    } else if (unit.kind == Utf8Kind::kWhole &&
               (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') && c != 0x7F) {
      out.append(bytes.substr(i, unit.size));
    }
    i += unit.size;
  }
  return out;
}

}  // namespace

std::optional<Key> KeyDecoder::Feed(char byte) {
  switch (state_) {
    case State::kPaste:
      return FeedPaste(byte);
    case State::kEscape:
    case State::kSequence:
      return FeedEscape(byte);
    case State::kText:
      break;
  }
  const auto code = static_cast<unsigned char>(byte);
  if (code == 0x1B) {
    pending_.clear();
    state_ = State::kEscape;
    return std::nullopt;
  }
  if (code < 0x20 || code == 0x7F) {
    pending_.clear();
    return ControlKey(byte);
  }
  pending_.push_back(byte);
  return FeedText();
}

std::optional<Key> KeyDecoder::FeedText() {
  while (!pending_.empty()) {
    const Utf8Unit unit = NextUtf8(pending_);
    if (unit.kind == Utf8Kind::kTruncated) return std::nullopt;
    std::string unit_bytes = pending_.substr(0, unit.size);
    pending_.erase(0, unit.size);
    // At most the last byte begins another character.
    if (unit.kind == Utf8Kind::kWhole) return Key{Kind::kText, std::move(unit_bytes)};
  }
  return std::nullopt;
}

std::optional<Key> KeyDecoder::FeedEscape(char byte) {
  if (state_ == State::kEscape) {
    if (byte == '[' || byte == 'O') {
      is_function_ = byte == 'O';
      state_ = State::kSequence;
      return std::nullopt;
    }
    if (byte == 0x1B) return std::nullopt;  // ESC ESC: the second one may begin a sequence
    state_ = State::kText;
    return AltKey(byte);
  }
  pending_.push_back(byte);
  const bool is_final = byte >= 0x40 && byte <= 0x7E;
  if (!is_final && pending_.size() <= kMaxSequenceBytes) return std::nullopt;
  const std::string sequence = std::exchange(pending_, {});
  state_ = State::kText;
  if (!is_final) return std::nullopt;
  if (sequence == "200~" && !is_function_) {
    state_ = State::kPaste;
    return std::nullopt;
  }
  return SequenceKey(sequence);
}

std::optional<Key> KeyDecoder::FeedPaste(char byte) {
  pending_.push_back(byte);
  if (!pending_.ends_with(kPasteEnd)) {
    // Beyond the limit only the end mark matters.
    const size_t most = kMaxPasteBytes + kPasteEnd.size();
    if (pending_.size() > most) pending_.erase(kMaxPasteBytes, 1);
    return std::nullopt;
  }
  pending_.resize(pending_.size() - kPasteEnd.size());
  state_ = State::kText;
  Key key{Kind::kPaste, CleanPaste(std::exchange(pending_, {}))};
  if (key.text.empty()) return std::nullopt;
  return key;
}

}  // namespace tandem::server
