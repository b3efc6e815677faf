#pragma once

#include "convert/spec/spec.h"
#include "server/cli/progress/shown_progress.h"

namespace tandem::server {

// Runs a conversion in the foreground, until it is done or a signal stops it, and prints its
// result. Returns the exit code; throws what Convert throws.
int ConvertAndPrint(const convert::ConvertSpec& spec, int threads, const ProgressFlags& progress);

}  // namespace tandem::server
