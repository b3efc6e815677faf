#include "engine/chat/assistant_marks.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/attempt.h"
#include "engine/io/json.h"

namespace tandem::engine {
namespace {

constexpr std::string_view kThinkOpen = "<think>", kThinkClose = "</think>";
constexpr std::string_view kCallOpen = "<tool_call>", kCallClose = "</tool_call>";
constexpr std::string_view kSpace = " \t\r\n";

using Marks = std::vector<std::pair<size_t, size_t>>;

void AddThought(std::string_view content, Marks& marks) {
  const size_t open = std::min(content.find_first_not_of(kSpace), content.size());
  if (!content.substr(open).starts_with(kThinkOpen)) return;
  const size_t inside = open + kThinkOpen.size();
  const size_t close = content.find(kThinkClose, inside);
  if (close == std::string_view::npos) return;
  if (content.substr(inside, close - inside).find(kThinkOpen) != std::string_view::npos) return;
  marks.emplace_back(open, inside);
  marks.emplace_back(close, close + kThinkClose.size());
}

// Text that is not JSON is an ordinary answer.
bool IsCall(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos || text[begin] != '{') return false;
  bool is_call = false;
  ErrorOf([&] {
    const auto call = ParseUntrustedJson(text.substr(begin), "call");
    is_call = call.contains("name") && call["name"].is_string();
  });
  return is_call;
}

// Walks back from the end, block by block, down to `begin`.
void AddCalls(std::string_view content, size_t begin, Marks& marks) {
  Marks found;  // from the last to the first
  while (true) {
    const size_t last = content.find_last_not_of(kSpace);
    content = content.substr(0, last == std::string_view::npos ? 0 : last + 1);
    if (!content.ends_with(kCallClose)) break;
    const size_t close = content.size() - kCallClose.size();
    const size_t open = content.substr(0, close).rfind(kCallOpen);
    if (open == std::string_view::npos || open < begin) break;
    const size_t inside = open + kCallOpen.size();
    if (!IsCall(content.substr(inside, close - inside))) break;
    found.emplace_back(close, content.size());
    found.emplace_back(open, inside);
    content = content.substr(0, open);
  }
  marks.insert(marks.end(), found.rbegin(), found.rend());
}

}  // namespace

Marks FindAssistantMarks(std::string_view content) {
  Marks marks;
  AddThought(content, marks);
  AddCalls(content, marks.empty() ? 0 : marks.back().second, marks);
  return marks;
}

}  // namespace tandem::engine
