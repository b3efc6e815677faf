#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/objects/sigv4.h"

namespace tandem::engine {

// The answers of stores, as ObjectClient reads them.

inline constexpr size_t kMaxAnswerBytes = size_t{1} << 20;  // of all except lists and objects

// The text of an answer without the secrets.
std::string WithoutKeys(std::string_view text, const ObjectKeys& keys);
// A size in an answer; nullopt if it is no number or larger than objects can be.
std::optional<uint64_t> ParseSize(std::string_view text);
// Whether a request may succeed when it is repeated. `code` is that of the answer's body.
bool IsTransientAnswer(int status, std::string_view code);

}  // namespace tandem::engine
