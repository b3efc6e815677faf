#pragma once

#include <string>
#include <string_view>

namespace tandem::engine {

// Throws "<file>: <field> <what>" for an unusable tokenizer file.
[[noreturn]] void ThrowBroken(const std::string& file, std::string_view field,
                              std::string_view what);  // kDataLoss
[[noreturn]] void ThrowUnsupported(const std::string& file, std::string_view field,
                                   std::string_view what);  // kUnsupported

}  // namespace tandem::engine
