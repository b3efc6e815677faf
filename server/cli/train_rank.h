#pragma once

#include <functional>

#include "training/dist/launch.h"
#include "training/run/run.h"

namespace tandem::server {

// Trains as one rank of several, over MPI. `finish` writes the result of the run; it is called on
// the first rank only, before any rank ends. Returns the exit code. After a fault on this rank the
// caller must end the process: the launcher then ends the other ranks.
int TrainAsRank(const training::TrainSpec& spec, const training::LaunchedRank& launched,
                const std::function<void(const training::TrainOutcome&)>& finish);

}  // namespace tandem::server
