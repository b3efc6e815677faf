#pragma once

#include <array>

#include "server/jobs/exit_codes.h"

namespace tandem::server {

struct ExitCodeDoc {
  int code;
  const char* meaning;
};

// The exit codes of every verb, for help and man pages. server/README.md has the same table.
inline constexpr std::array<ExitCodeDoc, 8> kExitCodeDocs{{
    {kExitDone, "done"},
    {kExitFailed, "failed"},
    {kExitUsage, "wrong usage, configuration or spec"},
    {kExitBadData, "damaged data"},
    {kExitInUse, "directory in use by another process"},
    {kExitIo, "file or network error"},
    {kExitTryAgain, "interrupted; run the same command again to resume"},
    {kExitCancelled, "cancelled"},
}};

}  // namespace tandem::server
