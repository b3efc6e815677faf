#pragma once

#include <string_view>
#include <utility>
#include <vector>

namespace tandem::engine {

// The marks that an assistant's own message spells, as [begin, end) in bytes of `content`, in
// order. A template that copies the content would write them itself if it knew thoughts and calls,
// so they count as the template's text. All other text of the message stays a client's. The marks
// are:
//
// - a thought at the beginning: white space, <think>, text without another <think>, </think>;
// - calls at the end: <tool_call>, a JSON object with a string `name`, </tool_call>, one or
// several,
//   with white space between and behind.
//
// An unpaired mark and a mark elsewhere is text. Linear in the content.
std::vector<std::pair<size_t, size_t>> FindAssistantMarks(std::string_view content);

}  // namespace tandem::engine
