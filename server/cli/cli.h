#pragma once

namespace tandem::server {

// Runs the verb named on the command line. Exit codes: 0 done, 1 failed, 2 usage, 65 bad data,
// 74 I/O, 75 try again (interrupted, resumable), 130 cancelled. Never throws.
int RunCli(int argc, char** argv);

}  // namespace tandem::server
