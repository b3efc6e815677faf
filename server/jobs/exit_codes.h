#pragma once

namespace tandem::server {

// Exit codes of this program's verbs, where sysexits.h has one. The process of a job ends with one
// of them, and DecideOutcome reads it. server/cli/README.md lists them.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;      // wrong usage, configuration or spec
inline constexpr int kExitBadData = 65;   // damaged data
inline constexpr int kExitInUse = 69;     // another process works in the directory
inline constexpr int kExitIo = 74;        // file or network error
inline constexpr int kExitTryAgain = 75;  // stopped: start the same command again to resume
inline constexpr int kExitCancelled = 130;

}  // namespace tandem::server
