#pragma once

#include <string>

#include "convert/spec/spec.h"

namespace tandem::convert {

// Identity of a conversion: the settings of the spec, and name, length, modification time and inode
// of every file of the source and the base. An unfinished target with the same identity can be
// resumed. Overwriting, verifying and certifying are not part of it. Throws kIo.
std::string IdentityOf(const ConvertSpec& spec);

}  // namespace tandem::convert
