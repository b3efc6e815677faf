#pragma once

#include "convert/spec/spec.h"

namespace tandem::server {

// Runs a conversion in the foreground, until it is done or a signal stops it, and prints its
// result. Returns the exit code; throws what Convert throws.
int ConvertAndPrint(const convert::ConvertSpec& spec, int threads);

}  // namespace tandem::server
