#include "training/dist/launch.h"

#include <charconv>
#include <cstring>

#include "engine/base/error.h"

namespace tandem::training {
namespace {

constexpr int kMostLaunched = 1 << 20;

std::optional<int> NumberIn(const std::function<const char*(const char*)>& variable,
                            const char* name, int least) {
  const char* text = variable(name);
  if (text == nullptr) return std::nullopt;
  int value = 0;
  const char* last = text + std::strlen(text);
  const auto [end, fault] = std::from_chars(text, last, value);
  if (fault != std::errc() || end != last || value < least || value > kMostLaunched) {
    throw Error(ErrorCode::kInvalidArgument, "the environment variable " + std::string(name) +
                                                 " of the launcher is no number from " +
                                                 std::to_string(least) + " to " +
                                                 std::to_string(kMostLaunched));
  }
  return value;
}

}  // namespace

std::optional<LaunchedRank> FindLaunchedRank(
    const std::function<const char*(const char*)>& variable) {
  LaunchedRank found;
  const char* rank_name = "OMPI_COMM_WORLD_RANK";
  found.launcher = "mpirun";
  std::optional<int> size = NumberIn(variable, "OMPI_COMM_WORLD_SIZE", 1);
  std::optional<int> local = NumberIn(variable, "OMPI_COMM_WORLD_LOCAL_SIZE", 1);
  if (!size) {
    // A batch script has SLURM_PROCID and SLURM_NTASKS too; only a step has its number of tasks.
    found.launcher = "srun";
    size = NumberIn(variable, "SLURM_STEP_NUM_TASKS", 1);
    rank_name = variable("PMIX_RANK") != nullptr ? "PMIX_RANK" : "SLURM_PROCID";
  }
  if (!size || *size == 1) return std::nullopt;
  const std::optional<int> rank = NumberIn(variable, rank_name, 0);
  if (!rank || *rank >= *size) {
    throw Error(ErrorCode::kInvalidArgument,
                "the launcher names " + std::to_string(*size) + " ranks, but " + rank_name +
                    (rank ? " is " + std::to_string(*rank) : " is not set") +
                    ": start the ranks with mpirun, or with srun --mpi=pmix");
  }
  found.rank = *rank;
  found.size = *size;
  found.local_size = local.value_or(1);
  return found;
}

}  // namespace tandem::training
