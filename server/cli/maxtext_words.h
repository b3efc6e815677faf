#pragma once

#include <span>
#include <string>

#include "convert/spec/spec.h"

namespace tandem::server {

// The command line of MaxText's to_maxtext as a conversion to MaxText's format: an optional config
// file (base.yml), then key=value words, with or without leading dashes.

// Whether one of the words is key=value and no file of that name exists.
bool HasMaxTextWords(std::span<const std::string> words);

// Sets source, target, format and options. Returns a sentence about words without effect, or "".
// Throws kInvalidArgument naming an unknown key with the nearest known one, a wrong value with the
// allowed ones, or a missing key. Never repeats the value of a token.
std::string ReadMaxTextWords(std::span<const std::string> words, convert::ConvertSpec* spec);

}  // namespace tandem::server
