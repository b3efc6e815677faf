#include "engine/adapter/name_ends.h"

#include <iterator>

namespace tandem::engine {

std::string Reversed(std::string_view text) { return {text.rbegin(), text.rend()}; }

NameEnds::NameEnds(const std::vector<std::string>& ends) {
  std::set<std::string> all;
  for (const std::string& end : ends) all.insert(Reversed(end));
  // A text that begins with another follows it, after others of the same kind only.
  for (const std::string& text : all) {
    if (!reversed_.empty() && text.starts_with(*reversed_.rbegin())) continue;
    reversed_.insert(reversed_.end(), text);
  }
}

bool NameEnds::HasEndOf(std::string_view name) const {
  // Texts between a name's beginning and the name share that beginning, so only one can be it.
  const std::string reversed = Reversed(name);
  const auto after = reversed_.upper_bound(reversed);
  return after != reversed_.begin() && reversed.starts_with(*std::prev(after));
}

bool EndedNames::HasNameWith(std::string_view end) const {
  const std::string reversed = Reversed(end);
  const auto first = reversed_.lower_bound(reversed);
  return first != reversed_.end() && first->starts_with(reversed);
}

}  // namespace tandem::engine
