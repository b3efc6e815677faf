#pragma once

#include <string>

#include "convert/spec/spec.h"

namespace tandem::convert {

// What tells whether an unfinished target is that of this conversion: what is asked for, and of all
// files of the source and the base their names, lengths, times and inodes. Overwriting and
// comparing do not count. Throws kIo.
std::string IdentityOf(const ConvertSpec& spec);

}  // namespace tandem::convert
