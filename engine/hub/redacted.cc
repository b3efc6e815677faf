#include "engine/hub/redacted.h"

namespace tandem::engine {

// One pass over the text: the mark is never searched, so a secret within it does no harm.
std::string Redacted(std::string_view text, std::initializer_list<std::string_view> secrets,
                     std::string_view mark) {
  std::string out;
  while (!text.empty()) {
    size_t longest = 0;
    for (const std::string_view secret : secrets) {
      if (secret.size() > longest && text.starts_with(secret)) longest = secret.size();
    }
    if (longest > 0) {
      out += mark;
      text.remove_prefix(longest);
    } else {
      out.push_back(text.front());
      text.remove_prefix(1);
    }
  }
  return out;
}

}  // namespace tandem::engine
