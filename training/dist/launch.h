#pragma once

#include <functional>
#include <optional>
#include <string>

namespace tandem::training {

// One of several processes that a launcher started together.
struct LaunchedRank {
  int rank = 0;
  int size = 1;
  int local_size = 1;    // on this host; 1 if unknown
  std::string launcher;  // "mpirun", "srun"
};

// Reads the variables that mpirun (OMPI_COMM_WORLD_*) and srun (SLURM_PROCID of a step, PMIX_RANK)
// set. Absent for a process of its own, and where the launcher started only one. `variable` returns
// null for an unset variable. Throws kInvalidArgument naming a variable that makes no sense.
std::optional<LaunchedRank> FindLaunchedRank(
    const std::function<const char*(const char* name)>& variable);

}  // namespace tandem::training
