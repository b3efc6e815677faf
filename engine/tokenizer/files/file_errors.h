#pragma once

#include <string>
#include <string_view>

namespace tandem::engine {

// One line for a tokenizer file that cannot be used: "<file>: <field> <what>".
[[noreturn]] void ThrowBroken(const std::string& file, std::string_view field,
                              std::string_view what);  // kDataLoss
[[noreturn]] void ThrowUnsupported(const std::string& file, std::string_view field,
                                   std::string_view what);  // kUnsupported

}  // namespace tandem::engine
