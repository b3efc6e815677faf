#include <CLI/CLI.hpp>

#include "server/cli/checkpoint/checkpoint_verbs.h"
#include "server/cli/verbs.h"

namespace tandem::server {

void AddCheckpoint(CLI::App& command, int& exit_code) {
  command.require_subcommand(1);
  AddCheckpointShowing(command);
  AddCheckpointChecking(command, exit_code);
  AddCheckpointWriting(command, exit_code);
}

}  // namespace tandem::server
