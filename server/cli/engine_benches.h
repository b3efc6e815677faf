#pragma once

namespace CLI {
class App;
}

namespace tandem::server {

// Adds the options of `tandem bench cores`.
void AddCoresBench(CLI::App& command, int& exit_code);
// Adds the options of `tandem bench fairness`.
void AddFairnessBench(CLI::App& command, int& exit_code);
// Adds the options of `tandem bench states`.
void AddStatesBench(CLI::App& command, int& exit_code);

}  // namespace tandem::server
