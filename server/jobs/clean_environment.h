#pragma once

#include <string_view>
#include <vector>

namespace tandem::server {

// Who gets the environment of this process. Each reader gets fewer secrets than the one before.
enum class EnvironmentReader {
  kJob,        // a job on this machine: all but the server's own keys
  kTool,       // a tool that logs in elsewhere, such as kubectl: no token of the hub either. Its
               // helpers use the keys of a cloud
  kScheduler,  // a tool whose scheduler stores the environment, such as sbatch: no secret at all
};

// Whether the variable is a secret that `reader` does not get.
bool IsHiddenFrom(EnvironmentReader reader, std::string_view name);

// The entries that `reader` gets, with a null at the end. They live until the environment changes.
std::vector<char*> CleanEnvironment(EnvironmentReader reader);

}  // namespace tandem::server
