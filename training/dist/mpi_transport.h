#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "training/dist/transport.h"

namespace tandem::training {

// Where the plug-in may lie: TANDEM_MPI_PLUGIN alone if it is set, else beside the program and in
// its ../lib/tandem.
std::vector<std::filesystem::path> MpiPluginPaths();
// The second case, for a program that may be another one.
std::vector<std::filesystem::path> MpiPluginPathsOf(const std::filesystem::path& program);

// Loads tandem_mpi.so and initialises MPI in the calling thread, which must be the only user of the
// result. At most once in a process. Throws kFailedPrecondition that says what to install when the
// plug-in is missing.
std::unique_ptr<Transport> OpenMpiTransport(const std::vector<std::filesystem::path>& plugins);

}  // namespace tandem::training
