#pragma once

#include <string_view>

namespace tandem::server {

// Name, version, SPDX licence and copyright of each library in the program, as lines of text.
std::string_view ThirdPartyText();

}  // namespace tandem::server
