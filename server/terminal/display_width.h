#pragma once

#include <cstdint>
#include <string>
#include <string_view>

// Columns that text takes on a terminal.
namespace tandem::server {

// 0 for marks and joiners, 2 for wide characters of East Asia and emoji, else 1. Controls count as
// nothing: pass text through visible_text.h first.
int CharacterWidth(uint32_t code_point);

// Sum over the characters. A byte that is not UTF-8 counts as one column.
int64_t DisplayWidth(std::string_view text);

// The text, padded with spaces or cut to exactly `columns`; a cut text ends in "…".
std::string FitColumns(std::string_view text, int64_t columns);

}  // namespace tandem::server
