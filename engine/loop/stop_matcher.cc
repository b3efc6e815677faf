#include "engine/loop/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace tandem::engine {

StopMatcher::StopMatcher(const std::vector<std::string>& strings) {
  for (const std::string& text : strings) {
    Automaton automaton{text, std::vector<size_t>(text.size(), 0), 0};
    for (size_t i = 1, matched = 0; i < text.size(); ++i) {
      while (matched > 0 && text[i] != text[matched]) matched = automaton.fallback[matched - 1];
      matched += text[i] == text[matched] ? 1 : 0;
      automaton.fallback[i] = matched;
    }
    automata_.push_back(std::move(automaton));
  }
}

std::optional<size_t> StopMatcher::Feed(char byte) {
  std::optional<size_t> found;
  partial_ = 0;
  for (size_t i = 0; i < automata_.size(); ++i) {
    Automaton& a = automata_[i];
    while (a.state > 0 && a.text[a.state] != byte) a.state = a.fallback[a.state - 1];
    a.state += a.text[a.state] == byte ? 1 : 0;
    if (a.state == a.text.size()) {
      if (!found || a.text.size() > automata_[*found].text.size()) found = i;
      a.state = a.fallback[a.state - 1];
    }
    partial_ = std::max(partial_, a.state);
  }
  return found;
}

}  // namespace tandem::engine
