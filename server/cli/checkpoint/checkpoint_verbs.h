#pragma once

namespace CLI {
class App;
}

namespace tandem::server {

// The verbs of `tandem checkpoint`, one file per group.
void AddCheckpointShowing(CLI::App& command);                   // ls, show
void AddCheckpointChecking(CLI::App& command, int& exit_code);  // verify, diff, hash
void AddCheckpointWriting(CLI::App& command, int& exit_code);   // gc, export-params, reshard

}  // namespace tandem::server
