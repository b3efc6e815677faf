#include "server/wire/utf8.h"

#include <utility>

#include "engine/base/utf8.h"

namespace tandem::server {

int64_t CharacterCounter::Push(std::string_view bytes) {
  int64_t first = n_decided_;
  const size_t n_held = unfinished_.size();
  const std::string text = std::move(unfinished_.append(bytes));
  unfinished_.clear();
  std::string_view left = text;
  while (!left.empty()) {
    const Utf8Unit unit = NextUtf8(left);
    if (unit.kind == Utf8Kind::kTruncated) {
      unfinished_ = left;
      break;
    }
    ++n_decided_;
    left.remove_prefix(unit.size);
    // The unfinished character ended before these bytes.
    if (text.size() - left.size() <= n_held) first = n_decided_;
  }
  return first;
}

void CharacterCounter::Flush() {
  if (!unfinished_.empty()) ++n_decided_;
  unfinished_.clear();
}

}  // namespace tandem::server
