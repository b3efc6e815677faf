#pragma once

#include <optional>

namespace tandem::server {

// Splits the process of a rank in two before it does any work: the child works, the parent waits,
// forwards SIGTERM, SIGINT and SIGUSR1, and turns a death by a signal (out of memory, a crash) into
// kExitTryAgain. The launcher then ends all ranks with that code. Returns nothing in the child, and
// the exit code in the parent. The child dies with the parent. Call it before threads start.
std::optional<int> GuardRank(int rank);

}  // namespace tandem::server
