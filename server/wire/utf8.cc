#include "server/wire/utf8.h"

#include <utility>

#include "engine/tokenizer/unicode.h"

namespace tandem::server {

// RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
bool IsValidUtf8(std::string_view bytes) {
  size_t i = 0;
  const auto at = [&](size_t k) { return static_cast<unsigned char>(bytes[k]); };
  while (i < bytes.size()) {
    const unsigned char lead = at(i);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    size_t n = 0;
    unsigned char low = 0x80;
    unsigned char high = 0xbf;
    if (lead >= 0xc2 && lead <= 0xdf) {
      n = 1;
    } else if (lead >= 0xe0 && lead <= 0xef) {
      n = 2;
      if (lead == 0xe0) low = 0xa0;
      if (lead == 0xed) high = 0x9f;
    } else if (lead >= 0xf0 && lead <= 0xf4) {
      n = 3;
      if (lead == 0xf0) low = 0x90;
      if (lead == 0xf4) high = 0x8f;
    } else {
      return false;
    }
    if (i + n >= bytes.size()) return false;
    if (at(i + 1) < low || at(i + 1) > high) return false;
    for (size_t k = 2; k <= n; ++k) {
      if ((at(i + k) & 0xc0) != 0x80) return false;
    }
    i += n + 1;
  }
  return true;
}

int64_t CharacterCounter::Push(std::string_view bytes) {
  int64_t first = n_decided_;
  const size_t n_held = unfinished_.size();
  const std::string text = std::move(unfinished_.append(bytes));
  unfinished_.clear();
  std::string_view left = text;
  while (!left.empty()) {
    const engine::Utf8Unit unit = engine::NextUtf8(left);
    if (unit.kind == engine::Utf8Kind::kTruncated) {
      unfinished_ = left;
      break;
    }
    ++n_decided_;
    left.remove_prefix(unit.size);
    // What was unfinished has ended without any of these bytes.
    if (text.size() - left.size() <= n_held) first = n_decided_;
  }
  return first;
}

void CharacterCounter::Flush() {
  if (!unfinished_.empty()) ++n_decided_;
  unfinished_.clear();
}

}  // namespace tandem::server
