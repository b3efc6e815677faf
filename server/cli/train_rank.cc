#include "server/cli/train_rank.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>

#include "engine/base/durable_dirs.h"
#include "engine/base/error.h"
#include "engine/base/thread_pool.h"
#include "engine/io/atomic_write.h"
#include "server/cli/job_child.h"
#include "server/cli/model_options.h"
#include "server/jobs/process_lock.h"
#include "training/dist/mpi_transport.h"

namespace tandem::server {
namespace {

// Ends at once: a thread may hang in a call of MPI.
[[noreturn]] void EndRank(const std::string& why) {
  std::fprintf(stderr, "tandem: %s; start the same command again to resume\n", why.c_str());
  std::fflush(nullptr);
  std::_Exit(kExitTryAgain);
}

// The ranks of a host share its cores, unless the launcher has given each its own.
int64_t ThreadsOf(const training::LaunchedRank& launched) {
  const int usable = UsableCores();
  const auto all = static_cast<int>(std::thread::hardware_concurrency());
  return usable * 2 <= all ? usable : std::max(1, usable / launched.local_size);
}

// The parts of the first rank, which alone writes to the run's directory.
struct FirstRank {
  FirstRank(const std::filesystem::path& dir, const ShownProgress* shown)
      : lock(LockRunDirectory(dir)) {
    engine::RemoveStaleTemporaries(dir);  // left by a killed run
    job.emplace(dir, shown);
  }

  UniqueFd lock;
  std::optional<OpenJob> job;
};

}  // namespace

int TrainAsRank(const training::TrainSpec& given, const training::LaunchedRank& launched,
                const ShownProgress* shown,
                const std::function<void(const training::TrainOutcome&)>& finish) {
  training::TrainSpec spec = given;
  if (spec.resources.threads == 0) spec.resources.threads = ThreadsOf(launched);
  spec.parallel.ranks_on_host = launched.local_size;
  std::optional<FirstRank> first;
  std::optional<StopOnSignal> stop;
  JobContext context;
  if (launched.rank == 0) {
    MakeDirectories(spec.run_dir());
    first.emplace(spec.run_dir(), shown);
    context = first->job->context();
  } else {
    stop.emplace();
    context.dir = spec.run_dir();
    context.cache_dir = CacheDir();
    context.stop = stop->token();
  }
  training::Collectives ranks([] { return training::OpenMpiTransport(training::MpiPluginPaths()); },
                              {.timeout_s = spec.parallel.rank_timeout_s, .on_timeout = EndRank});
  if (ranks.size() != launched.size || ranks.rank() != launched.rank) {
    throw Error(ErrorCode::kFailedPrecondition,
                "MPI gives rank " + std::to_string(ranks.rank()) + " of " +
                    std::to_string(ranks.size()) + ", but " + launched.launcher + " gave rank " +
                    std::to_string(launched.rank) + " of " + std::to_string(launched.size) +
                    ": start the ranks with the mpirun of Open MPI, or srun --mpi=pmix");
  }
  const training::TrainOutcome outcome = training::RunTraining(spec, context, &ranks);
  const bool stopped = outcome.status == training::TrainOutcome::Status::kStopped;
  if (launched.rank == 0 && !stopped) finish(outcome);
  ranks.Barrier();  // a launcher ends all ranks as soon as one ends with an error code
  ranks.Finish();
  return stopped ? kExitTryAgain : kExitDone;
}

}  // namespace tandem::server
