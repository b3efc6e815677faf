#pragma once

namespace tandem::server {

// Runs the verb named on the command line and returns the exit code (README.md has the table).
// Never throws.
int RunCli(int argc, char** argv);

}  // namespace tandem::server
