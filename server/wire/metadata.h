#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/wire/field_reader.h"

namespace tandem::server {

// The field `metadata`: at most 16 pairs, keys of 64 and values of 512 bytes. Empty if absent.
// Throws kInvalidArgument.
std::vector<std::pair<std::string, std::string>> ParseMetadata(FieldReader& reader);

}  // namespace tandem::server
